from __future__ import annotations

import re

import pytest

from autoplan.errors import ConfigError
from autoplan.tuning.space.known_issues import Versions
from autoplan.tuning.space.legal_configs import legal_configs
from cost_models.config import Precision, RematMode
from cost_models.hardware.lookup import cluster as hardware_cluster
from tests.builders.observations import VERSIONS, cluster, config, observation


def space(own=None, devices=1, versions=VERSIONS, facts=None, **wishes):
    return legal_configs(observation(own, **(facts or {})), cluster(devices), versions, **wishes)


def splits(found):
    """(global batch, accumulation, devices on the data axis) of every configuration."""
    return {(c.batch.global_size, c.batch.accumulation, c.mesh.data) for c in found.configs}


def values(found, read):
    return {read(c) for c in found.configs}


def test_the_baseline_is_legal_and_first():
    own = config(64, 2)
    found = space(own)
    assert found.configs[0] == found.baseline == own
    assert len(set(found.configs)) == len(found.configs)


def test_the_effective_batch_is_kept():
    assert splits(space(config(64, 2))) == {(128 // a, a, 1) for a in (1, 2, 4, 8, 16, 32, 64, 128)}


def test_a_moving_average_of_weights_keeps_the_batch_as_it_is():
    assert splits(space(config(64, 2), facts={"ema": True})) == {(64, 2, 1)}
    assert splits(space(config(64, 2), facts={"constraint": "MinMaxNorm of dense/kernel"})) == {(64, 2, 1)}
    assert splits(space(config(64, 2), facts={"ema": True}, effective_batch=(32, 512))) == {(64, 2, 1)}


def test_executions_divide_the_micro_steps_that_a_script_counts_itself():
    counted = {"explicit_steps_per_epoch": True, "steps_per_epoch": 6}
    found = space(config(64), facts=counted, fix={"steps_per_execution": "4"})
    # 6 micro-steps of 64 are 12 of 32 and 24 of 16, which divide by 4; 6 and 3 do not.
    assert {c.batch.global_size for c in found.configs if c != found.baseline} == {32, 16, 8, 4, 2, 1}


def test_every_knob_takes_its_values():
    found = space()
    assert values(found, lambda c: c.precision) == {
        Precision.FLOAT32,
        Precision.MIXED_BFLOAT16,
        Precision.MIXED_FLOAT16,
    }
    assert values(found, lambda c: c.remat.mode) == {RematMode.NONE, RematMode.ACTIVATIONS}
    assert len(found.configs) == 3 * 2 * len(splits(found))


def test_freed_memory_may_be_kept_where_pages_are_known_to_cost_time():
    here = cluster(pages=4e9)
    found = legal_configs(observation(), here, VERSIONS)
    assert values(found, lambda c: c.keep_freed_memory) == {False, True}
    assert not found.baseline.keep_freed_memory
    assert values(space(), lambda c: c.keep_freed_memory) == {False}
    held = legal_configs(observation(held={"keep_freed_memory": "it runs"}), here, VERSIONS)
    assert values(held, lambda c: c.keep_freed_memory) == {False}
    pinned = legal_configs(observation(), here, VERSIONS, fix={"keep_freed_memory": "true"})
    assert values(pinned, lambda c: c.keep_freed_memory) == {True}


@pytest.mark.parametrize(
    ("there", "facts", "reason"),
    [
        (cluster(pages=4e9), {"held": {"keep_freed_memory": "it runs"}}, "it runs"),
        (
            hardware_cluster("tpu-v5e-1"),
            {},
            "it only affects training on a CPU, and tpu-v5e-1 is a TPU",
        ),
        (cluster(), {}, "the cost of mapping memory again is not known for "),
    ],
)
def test_freed_memory_that_is_not_kept_is_explained_to_who_asked_for_it(there, facts, reason):
    found = legal_configs(observation(**facts), there, VERSIONS, only=["keep_freed_memory"])
    assert found.configs == (found.baseline,)
    (told,) = found.rejected
    assert told.config == found.baseline.with_(keep_freed_memory=True)
    assert told.reason.startswith(f"keep_freed_memory is not tuned here: {reason}")
    unasked = legal_configs(observation(**facts), there, VERSIONS)
    assert not any("keep_freed_memory" in one.reason for one in unasked.rejected)


@pytest.mark.parametrize(
    ("only", "there", "own", "fix", "reason"),
    [
        (
            ["mesh"],
            cluster(),
            config(64),
            {},
            "mesh is not tuned here: a machine has one device, and --devices simulates more",
        ),
        (["mesh"], hardware_cluster("gpu-t4"), config(64), {}, "mesh is not tuned here: gpu-t4 has one device"),
        (
            ["mesh.data"],
            cluster(4),
            config(64),
            {"mesh": "data=2"},
            "mesh is not tuned here: --fix sets its data axis to 2",
        ),
        (
            ["precision"],
            cluster(),
            config(64, precision="other"),
            {},
            "precision is not tuned here: the script mixes dtype",
        ),
    ],
)
def test_a_named_knob_that_has_nothing_to_be_turned_to_is_explained(only, there, own, fix, reason):
    found = legal_configs(observation(own), there, VERSIONS, only=only, fix=fix)
    assert len(found.configs) == 1
    (told,) = found.rejected
    assert (told.stage, told.figures) == ("held", {"configurations": 0})
    assert told.reason.startswith(reason)
    assert not any("not tuned here" in one.reason for one in legal_configs(observation(own), there, VERSIONS).rejected)


def test_a_named_knob_that_is_turned_needs_no_word():
    found = legal_configs(observation(config(64)), cluster(4), VERSIONS, only=["mesh", "batch", "precision"])
    assert len(found.configs) > 1
    assert not any("not tuned here" in one.reason for one in found.rejected)


def test_freed_memory_is_known_to_go_back_on_jax_alone():
    torch = config().with_(backend="torch")
    found = legal_configs(observation(torch), cluster(pages=4e9), VERSIONS, only=["keep_freed_memory"])
    (reason,) = (one.reason for one in found.rejected if "freed" in one.reason)
    assert reason.endswith("it only helps compiled programs of JAX, and this training runs on torch")


def test_freed_memory_is_not_kept_on_an_accelerator():
    there = hardware_cluster("tpu-v5e-1")
    with pytest.raises(
        ConfigError, match=r"keep_freed_memory=true: it only affects training on a CPU, and tpu-v5e-1 is a TPU"
    ):
        legal_configs(observation(), there, VERSIONS, fix={"keep_freed_memory": "true"})
    pinned = legal_configs(observation(), there, VERSIONS, fix={"keep_freed_memory": "false"})
    assert values(pinned, lambda c: c.keep_freed_memory) == {False}


def test_what_gains_nothing_here_is_left_out_and_named_once():
    found = space()
    assert values(found, lambda c: c.steps_per_execution) == {1}
    assert values(found, lambda c: c.jit_compile) == {True}
    told = {r.figures["issue"]: r for r in found.rejected}
    assert set(told) == {"jax-steps-per-execution", "jax-without-compilation"}
    assert {r.stage for r in found.rejected} == {"known_issue"}
    assert told["jax-without-compilation"].figures["configurations"] == len(found.configs)
    assert "keras#23527" in told["jax-steps-per-execution"].reason


def test_only_issues_that_dropped_something_are_named():
    recurrent = space(facts={"recurrent": True})
    assert values(recurrent, lambda c: c.remat.mode) == {RematMode.NONE}
    assert "remat-activations-recurrent" in {r.figures["issue"] for r in recurrent.rejected}
    assert "remat-activations-recurrent" not in {r.figures["issue"] for r in space().rejected}


def test_where_it_gains_steps_per_execution_is_1_8_32_up_to_an_epoch():
    later = Versions("3.16.0", "0.11", "cpu")
    found = space(config(64), versions=later, only=["steps_per_execution"])
    assert values(found, lambda c: c.steps_per_execution) == {1, 8}  # an epoch has 16 micro-steps
    found = space(config(8), versions=later, only=["steps_per_execution"])
    assert values(found, lambda c: c.steps_per_execution) == {1, 8, 32}


def test_a_baseline_without_compilation_may_be_mended():
    own = config(jit_compile=False)
    found = space(own)
    assert found.baseline == own
    assert {c.jit_compile for c in found.configs if c != own} == {True}


@pytest.mark.parametrize(
    ("own", "facts", "versions"),
    [
        (config(steps_per_execution=4), {}, VERSIONS),  # no gain on JAX
        (config(jit_compile=False), {}, VERSIONS),
        (config(backend="torch", steps_per_execution=2), {}, VERSIONS),  # rejected
        (config(remat={"mode": "full"}, backend="torch"), {"batch_norm": True}, VERSIONS),  # wrong
        (config(precision="mixed_float16"), {"unscaled_train_step": True}, VERSIONS),
        (config(3, mesh={"data": 3}), {}, VERSIONS),  # 3 of 4 devices
        (config(64, steps_per_execution=5), {"explicit_steps_per_epoch": True, "steps_per_epoch": 16}, VERSIONS),
    ],
)
def test_the_scripts_own_configuration_is_in_the_space_whatever_is_known_of_it(own, facts, versions):
    for wishes in ({}, {"only": ["precision", "steps_per_execution"]}, {"fix": {"accumulation": "1"}}):
        found = space(own, devices=4, versions=versions, facts=facts, **wishes)
        assert found.configs[0] == own
        assert found.configs.count(own) == 1
        assert found.excluded_by is None


@pytest.mark.parametrize(
    ("own", "wishes", "excluded_by"),
    [
        (config(64), {"fix": {"precision": "mixed_bfloat16"}}, "--fix precision=mixed_bfloat16"),
        (config(64), {"effective_batch": (128, 256)}, "--effective-batch 128..256"),
        (
            config(64),
            {"effective_batch": (32, 32), "fix": {"remat": "activations"}},
            "--fix remat.mode=activations with --effective-batch 32",
        ),
        (config(64), {"fix": {"batch.local": "16", "jit_compile": "on"}}, "--fix batch.local=16"),
        (config(64, steps_per_execution=4), {"fix": {"steps_per_execution": "1"}}, "--fix steps_per_execution=1"),
        (config(64, mesh={"data": 8}), {}, "the hardware (4 devices)"),
    ],
)
def test_only_options_and_the_hardware_exclude_it_and_are_named(own, wishes, excluded_by):
    found = space(own, devices=4, **wishes)
    assert own not in found.configs
    assert found.excluded_by == excluded_by


def test_accumulation_takes_one_divisor_an_octave():
    found = space(config(1000), facts={"samples": 10_000})
    accumulations = values(found, lambda c: c.batch.accumulation)
    assert accumulations == {1, 2, 4, 8, 20, 40, 100, 200, 500, 1000}


def test_a_batch_that_divides_the_epoch_is_preferred_within_an_octave():
    # 96 = 32 x 3 = 48 x 2 in one octave; 1120 samples divide by 32, not by 48.
    found = space(config(96), facts={"samples": 1120})
    assert (32, 3, 1) in splits(found)
    assert (48, 2, 1) not in splits(found)


def test_the_baselines_own_accumulation_is_always_there():
    found = space(config(32, 3), facts={"samples": 96 * 10})
    assert (32, 3, 1) in splits(found)


def test_explicit_micro_steps_an_epoch_stay_whole():
    facts = {"explicit_steps_per_epoch": True, "steps_per_epoch": 3, "samples": None}
    found = space(config(16, 4), facts=facts)  # 48 samples an epoch
    assert values(found, lambda c: c.batch.global_size) == {16, 8, 4, 2, 1}


def test_data_that_cannot_be_rebatched_keep_their_batch():
    found = space(config(16, 4), devices=4, facts={"rebatchable": False})
    assert splits(found) == {(16, 4, 1), (16, 4, 2), (16, 4, 4)}


def test_a_small_data_set_bounds_the_global_batch():
    found = space(config(8, 8), facts={"samples": 32})
    assert max(values(found, lambda c: c.batch.global_size)) == 32


def test_the_mesh_takes_the_divisors_of_the_devices():
    found = space(config(64), devices=6)
    assert values(found, lambda c: c.mesh.data) == {1, 2}  # 3 and 6 do not divide a power of two
    assert all(c.batch.global_size % c.mesh.data == 0 for c in found.configs)
    assert values(space(config(60), devices=6), lambda c: c.mesh.data) == {1, 2, 3, 6}


def test_a_freed_effective_batch_takes_powers_of_two_and_the_baselines_own():
    found = space(config(48), effective_batch=(40, 300), facts={"samples": 10_000})
    assert values(found, lambda c: c.batch.effective) == {48, 64, 128, 256}
    found = space(config(8), effective_batch=(64, 4096), facts={"samples": 1024})
    assert values(found, lambda c: c.batch.effective) == {64, 128, 256, 512, 1024}
    assert found.baseline.batch.effective == 8


def test_a_mixture_of_policies_stays():
    own = config(precision="other")
    assert values(space(own), lambda c: c.precision) == {Precision.OTHER}
    with pytest.raises(ConfigError, match="mixes dtype policies by hand"):
        space(own, fix={"precision": "float32"})


def test_the_baselines_own_values_stay_in_the_space():
    own = config(precision="bfloat16", remat={"mode": "full"})
    found = space(own)
    assert Precision.BFLOAT16 in values(found, lambda c: c.precision)
    assert RematMode.FULL in values(found, lambda c: c.remat.mode)


def test_only_frees_the_named_knobs():
    found = space(config(64, 2, precision="mixed_bfloat16"), devices=4, only=["batch"])
    assert values(found, lambda c: c.precision) == {Precision.MIXED_BFLOAT16}
    assert values(found, lambda c: c.mesh.data) == {1}
    assert len(splits(found)) == 8


def test_pins_hold():
    found = space(config(64), devices=8, fix={"mesh": "data=8", "precision": "float32", "accumulation": "2"})
    assert splits(found) == {(32, 2, 8)}
    assert values(found, lambda c: c.precision) == {Precision.FLOAT32}
    assert found.baseline not in found.configs


def test_a_pinned_batch_need_not_be_a_power_of_two():
    found = space(config(1000), fix={"batch": "200"}, facts={"samples": 10_000})
    assert splits(found) == {(200, 5, 1)}


def test_what_gains_nothing_may_be_pinned():
    found = space(fix={"steps_per_execution": "32"})
    assert values(found, lambda c: c.steps_per_execution) == {32}
    found = space(config(steps_per_execution=4), only=["batch"])
    assert values(found, lambda c: c.steps_per_execution) == {4}


@pytest.mark.parametrize(
    ("wishes", "told"),
    [
        (
            {"fix": {"batch": "48"}},
            "with an effective batch of 64; legal values are global: 1, 2, 4, 8, 16, 32, 64",
        ),
        (
            {"fix": {"batch.effective": "128"}},
            "legal values are effective: 64; --effective-batch 128 allows another one, which is another training",
        ),
        ({"fix": {"batch": "16", "accumulation": "2"}}, "legal values are global: 32; accumulation: 4"),
        (
            {"only": ["precision"], "effective_batch": (128, 256)},
            "--effective-batch 128..256: the effective batch stays 64 here, because --only does not name batch",
        ),
        ({"fix": {"mesh": "data=3"}}, "a machine has 4 device(s); the data axis can be 1, 2, 4 (see --devices)"),
        ({"fix": {"mesh": "data=4", "batch": "2"}}, "legal values are global: 4, 8, 16, 32, 64"),
        (
            {"fix": {"layout.shard_state": "true", "mesh": "data=1"}},
            "one device has no other device to share its state with",
        ),
        ({"fix": {"backend": "torch"}}, "not tuned; this training has backend=jax"),
        ({"effective_batch": (100, 110)}, "--effective-batch 100..110: no power of two lies in it"),
        ({"effective_batch": (0, 64)}, "--effective-batch 0..64: expected 1 <= LO <= HI"),
    ],
)
def test_an_impossible_wish_is_told_with_what_would_be_legal(wishes, told):
    with pytest.raises(ConfigError) as caught:
        space(config(64), devices=4, **wishes)
    assert told in str(caught.value)


def test_a_single_effective_batch_is_that_and_no_other():
    """48 is no power of two, and the script's own 64 is not in the range."""
    found = space(config(64), effective_batch=(48, 48))
    assert values(found, lambda c: c.batch.effective) == {48}
    assert found.baseline.batch.effective == 64
    with pytest.raises(ConfigError, match="--effective-batch 2000: an epoch has no more than 1024 samples"):
        space(config(64), effective_batch=(2000, 2000), facts={"samples": 1024})


def test_an_odd_effective_batch_does_not_divide_over_a_pinned_mesh():
    with pytest.raises(ConfigError) as caught:
        space(config(30), devices=8, fix={"mesh": "data=8"})
    assert str(caught.value) == (
        "the effective batch of 30 cannot be split over 8 devices on the data axis; what works here: "
        "--fix mesh=data=1, --fix mesh=data=2 or --effective-batch 32, which is another training"
    )
    for option in (
        {"fix": {"mesh": "data=1"}},
        {"fix": {"mesh": "data=2"}},
        {"effective_batch": (32, 32), "fix": {"mesh": "data=8"}},
    ):
        assert space(config(30), devices=8, **option).configs


HELD_BATCHES = [
    ({"ema": True}, "Keras averages weights after every micro-step (use_ema)"),
    ({"constraint": "MinMaxNorm of dense/kernel"}, "Keras applies the constraint MinMaxNorm of dense/kernel"),
    (
        {"rebatchable": False, "own_optimizers": ["d_optimizer"], "why_fixed_batch": "its train_step applies its own"},
        "its train_step applies its own",
    ),
    ({"rebatchable": False, "why_fixed_batch": "the loss is a sum"}, "the loss is a sum"),
    (
        {"rebatchable": False, "why_fixed_batch": "the data (X) cannot be re-batched (why)"},
        "the data (X) cannot be re-batched",
    ),
    ({"rebatchable": False, "data": "other"}, "the data cannot be re-batched"),
]


@pytest.mark.parametrize(("facts", "reason"), HELD_BATCHES)
@pytest.mark.parametrize("fix", [{"accumulation": "2"}, {"batch": "32"}, {"batch.local": "16"}])
def test_a_refusal_names_what_holds_the_batch_and_advises_only_what_helps(facts, reason, fix):
    with pytest.raises(ConfigError) as caught:
        space(config(64), facts=facts, fix=fix)
    message = str(caught.value)
    assert f"the batch stays 64 here, because {reason}" in message
    assert "legal values" not in message
    if "--effective-batch" in message:
        assert splits(space(config(64), facts=facts, fix=fix, effective_batch=(128, 128))) == {(64, 2, 1)}
    else:
        with pytest.raises(ConfigError):
            space(config(64), facts=facts, fix=fix, effective_batch=(32, 128))


@pytest.mark.parametrize(("facts", "reason"), HELD_BATCHES[:2])
def test_a_held_batch_refuses_another_effective_batch_with_the_reason(facts, reason):
    with pytest.raises(
        ConfigError, match=rf"--effective-batch 128\.\.256: the batch stays 64 here, because {re.escape(reason)}"
    ):
        space(config(64), facts=facts, effective_batch=(128, 256))


def test_a_held_batch_of_one_on_a_larger_mesh_is_told_what_works():
    with pytest.raises(ConfigError) as caught:
        space(config(1), devices=4, fix={"mesh": "data=4"})
    assert "--fix mesh=data=1 or --effective-batch 4, which is another training" in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        space(config(6), devices=4, facts={"ema": True}, fix={"mesh": "data=4"})
    assert str(caught.value).endswith("what works here: --fix mesh=data=1 or --fix mesh=data=2")


def test_a_pin_that_a_known_issue_forbids_is_told_with_its_reason():
    with pytest.raises(ConfigError) as caught:
        space(facts={"recurrent": True}, fix={"remat": "activations"})
    message = str(caught.value)
    assert message.startswith("--fix and --only leave no configuration that works: remat.mode=activations: ")
    assert "[observed with Keras 3.15.1" in message


HELD = {"precision": "a live model", "remat": "a live model", "mesh": "a live model"}


def test_what_a_source_holds_is_not_turned_and_is_named_once_with_the_reason():
    found = space(devices=2, facts={"held": HELD})
    assert values(found, lambda c: (c.precision, c.remat.mode, c.mesh.data)) == {
        (Precision.FLOAT32, RematMode.NONE, 1),
    }
    assert len(splits(found)) > 1
    assert values(found, lambda c: c.jit_compile) == {True}  # the other value is a known issue, not held
    [held] = [one for one in found.rejected if one.stage == "held"]
    assert held.reason == "precision and remat and mesh cannot be tuned here: a live model"
    assert held.config.precision == "mixed_bfloat16"
    assert held.figures == {"configurations": 4}


def test_state_is_split_only_where_that_is_asked_and_somebody_shares_it():
    plain, sharing = space(devices=4), space(devices=4, shard_state=True)
    assert values(plain, lambda c: c.layout.shard_state) == {False}
    split = {c for c in sharing.configs if c.layout.shard_state}
    assert {c.mesh.data for c in split} == {2, 4}
    assert set(sharing.configs) - split == set(plain.configs)
    assert {c.with_(layout=c.layout.__class__()) for c in split} == {c for c in plain.configs if c.mesh.data > 1}
    own = config(64, mesh={"data": 4}, layout={"shard_state": True})
    assert values(space(own, devices=4, shard_state=True), lambda c: c.layout.shard_state) == {True}


def test_what_is_held_is_named_only_where_it_would_have_been_turned():
    assert not [one for one in space(facts={"held": HELD}, only=["batch"]).rejected if one.stage == "held"]
    [held] = [one for one in space(facts={"held": HELD}).rejected if one.stage == "held"]
    assert held.reason.startswith("precision and remat cannot")  # there is one device


def test_a_held_knob_may_be_pinned_to_what_it_is_and_to_nothing_else():
    assert space(facts={"held": HELD}, fix={"precision": "float32", "mesh": "data=1"}).configs
    with pytest.raises(ConfigError, match=r"--fix precision=mixed_bfloat16: it stays float32 here, because a live mo"):
        space(facts={"held": HELD}, fix={"precision": "mixed_bfloat16"})
    with pytest.raises(ConfigError, match=r"--fix mesh.data=2: it stays 1 here, because a live model"):
        space(devices=2, facts={"held": HELD}, fix={"mesh": "data=2"})


def test_state_is_split_where_that_is_pinned_or_asked_for():
    pinned = space(config(64), devices=4, fix={"layout.shard_state": "true"}).configs
    assert {one.layout.shard_state for one in pinned} == {True}
    assert {one.mesh.data for one in pinned} == {2, 4}
    both = space(config(64), devices=4, shard_state=True).configs
    assert {(one.mesh.data > 1, one.layout.shard_state) for one in both} == {
        (False, False),
        (True, False),
        (True, True),
    }
    assert not any(one.layout.shard_state for one in space(config(64), devices=4).configs)


@pytest.mark.parametrize("only", [(), ("jit_compile",), ("jit_compile", "precision")])
def test_compilation_that_the_model_does_not_allow_is_named_with_its_reason(only):
    reason = "Keras cannot compile layers of type RandomCrop"
    own = config(64, jit_compile=False)
    found = space(own, facts={"held": {"jit_compile": reason}}, only=only)
    assert values(found, lambda c: c.jit_compile) == {False}
    [held] = [one for one in found.rejected if one.stage == "held"]
    assert held.reason == f"jit_compile cannot be tuned here: {reason}"
    assert held.config == own.with_(jit_compile=True)
    unasked = space(own, facts={"held": {"jit_compile": reason}}, only=("precision",))
    assert not [one for one in unasked.rejected if one.stage == "held"]
