from __future__ import annotations

import pytest

from autoplan.errors import ConfigError
from autoplan.jobs.messages import SplitProbe
from autoplan.plan import knobs
from autoplan.plan.knobs import KNOBS, Tuning
from autoplan.tuning.space.legal_values import Situation, choices, independent_knobs, legal, legal_values
from cost_models.config import Precision
from cost_models.hardware.lookup import cluster as hardware_cluster
from tests.builders.observations import cluster, config, observation

ROWS = knobs.by_name()
ALL = frozenset(knobs.tunable_fields())


def situation(own=None, there=None, **facts):
    own = own or config()
    return Situation(observation(own, **facts), own, there or cluster())


def test_every_knob_that_is_tuned_by_itself_has_legal_values():
    together = {"batch", "mesh"}
    assert {knob.name for knob in independent_knobs()} == {
        knob.name for knob in KNOBS if knob.tuning is Tuning.FREE and knob.field not in together
    }


def test_legal_values_are_registered_once():
    with pytest.raises(ValueError, match="the legal values of precision are listed twice"):
        legal_values("precision")(lambda situation: legal(ROWS["precision"], situation))


@pytest.mark.parametrize(
    ("name", "listed"),
    [
        ("precision", ["float32", "mixed_bfloat16", "mixed_float16"]),
        ("remat", ["none", "activations"]),
        ("steps_per_execution", [1, 8, 32]),
        ("jit_compile", [True, False]),
    ],
)
def test_the_scripts_own_value_comes_first(name, listed):
    assert choices(ROWS[name], situation(), {}, ALL)[0] == listed
    held = choices(ROWS[name], situation(), {}, ALL - {ROWS[name].field})[0]
    assert held == listed[:1]
    fixed = choices(ROWS[name], situation(), {name: listed[-1]}, ALL)[0]
    assert fixed == listed[-1:]


def test_a_mixture_of_policies_stays():
    mixed = situation(config(precision="other"))
    assert choices(ROWS["precision"], mixed, {}, ALL)[0] == ["other"]
    with pytest.raises(ConfigError, match=r"--fix precision=float32: the script mixes dtype policies by hand, .*leave"):
        choices(ROWS["precision"], mixed, {"precision": "float32"}, ALL)


def test_policies_that_lose_values_of_an_input_are_not_tried_unless_they_are_pinned():
    row = next(knob for knob in independent_knobs() if knob.name == "precision")
    ids = "the input has whole numbers up to 4999"
    lost = SplitProbe(lost_values={"mixed_bfloat16": ids, "mixed_float16": ids})
    here = situation(config(64), probe=lost)
    listed, found = choices(row, here, {}, frozenset({"precision"}))
    assert (listed, found.why_none) == ([Precision.FLOAT32], ids)
    assert choices(row, here, {"precision": Precision.MIXED_BFLOAT16}, frozenset())[0] == [Precision.MIXED_BFLOAT16]
    years = situation(config(64), probe=SplitProbe(lost_values={"mixed_bfloat16": ids}))
    listed, found = choices(row, years, {}, frozenset({"precision"}))
    assert (listed, found.why_none) == ([Precision.FLOAT32, Precision.MIXED_FLOAT16], None)


@pytest.mark.parametrize(
    ("executions", "size", "chosen", "holds"), [(8, 64, False, True), (32, 64, False, False), (32, 64, True, True)]
)
def test_an_execution_is_no_longer_than_an_epoch_unless_it_was_chosen(executions, size, chosen, holds):
    rule = legal(ROWS["steps_per_execution"], situation()).holds
    assert rule(config(size, steps_per_execution=executions), chosen) is holds


def test_counted_micro_steps_come_in_whole_executions():
    rule = legal(ROWS["steps_per_execution"], situation(explicit_steps_per_epoch=True, steps_per_epoch=12)).holds
    assert rule(config(64, steps_per_execution=4), True)
    assert not rule(config(64, steps_per_execution=8), True)


def test_freed_memory_matters_where_pages_cost_something():
    assert choices(ROWS["keep_freed_memory"], situation(), {}, ALL)[0] == [False]
    assert choices(ROWS["keep_freed_memory"], situation(there=cluster(pages=4e9)), {}, ALL)[0] == [False, True]
    there = cluster(kind="gpu")
    with pytest.raises(ConfigError, match=r"--fix keep_freed_memory=true: .*; leave it out"):
        choices(ROWS["keep_freed_memory"], situation(there=there), {"keep_freed_memory": True}, ALL)


CALL = {
    "layer": "encoder",
    "query": [1, 256, 4, 64],
    "key": [1, 256, 4, 64],
    "value": [1, 256, 4, 64],
    "dtype": "float32",
}
BF16 = {"precision": "mixed_bfloat16"}
UNFUSED = {"attention": "unfused"}


def attention_on(name, own=None, **changes):
    there = cluster() if name == "local" else hardware_cluster(name)
    return situation(own or config(), there, attention_calls=[CALL | changes])


def attention_listed(where, fixed=None, free=ALL):
    listed, rule = choices(ROWS["attention"], where, fixed or {}, free)
    return listed, rule.holds or (lambda config, chosen: True)


def test_both_kinds_of_attention_are_tried_on_a_gpu_where_the_kernel_is_used():
    listed, holds = attention_listed(attention_on("gpu-a100-80gb"))
    assert listed == ["auto", "unfused"]
    assert [holds(config(**UNFUSED, **more), False) for more in (BF16, {}, {"precision": "mixed_float16"})] == [
        True,
        False,
        True,
    ]
    assert holds(config(**UNFUSED), True), "a pin is kept"
    own = attention_on("gpu-a100-80gb", config(**UNFUSED))
    assert attention_listed(own)[0] == ["unfused", "auto"]
    mixed = attention_on("gpu-a100-80gb", config(precision="other"), dtype="bfloat16")
    assert attention_listed(mixed)[1](config(precision="other", **UNFUSED), False), "as the layers compute"


def test_unfused_attention_is_tried_on_a_tpu_where_the_kernel_is_used_even_if_the_knob_is_not_free():
    for free in (ALL, ALL - {"attention"}):
        assert attention_listed(attention_on("tpu-v5e-1"), free=free)[0] == ["auto", "unfused"]
    assert attention_listed(attention_on("tpu-v5e-1", causal=True))[0] == ["auto"]


@pytest.mark.parametrize(
    ("where", "reason"),
    [
        (attention_on("local"), "Keras fuses attention on GPUs and TPUs only"),
        (attention_on("gpu-t4"), "cuDNN's fused attention needs compute capability 8.0, which gpu-t4 lacks"),
        (attention_on("gpu-a100-80gb", follows_setting=False), "no layer of this model computes attention that Keras"),
        (attention_on("gpu-a100-80gb", config(backend="tensorflow")), "Keras has no fused attention on TensorFlow"),
        (attention_on("gpu-a100-80gb", config(backend="torch")), "PyTorch fuses attention itself"),
        (situation(there=hardware_cluster("tpu-v5e-1")), "no layer of this model computes attention that Keras could"),
    ],
)
def test_attention_stays_where_the_setting_changes_nothing(where, reason):
    assert attention_listed(where)[0] == ["auto"]
    with pytest.raises(ConfigError, match=f"--fix attention=unfused: {reason}.*; leave it out"):
        choices(ROWS["attention"], where, {"attention": "unfused"}, ALL)
    assert attention_listed(where, {"attention": "auto"})[0] == ["auto"]
