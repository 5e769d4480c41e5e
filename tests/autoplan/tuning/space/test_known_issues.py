from __future__ import annotations

import pytest

from autoplan.errors import ConfigError
from autoplan.tuning.space.known_issues import Effect, Versions, applying, known_issues, parse, still_applies
from autoplan.tuning.space.legal_configs import legal_configs
from cost_models.config import Precision
from cost_models.hardware.lookup import cluster as hardware_cluster
from tests.builders.observations import VERSIONS, config, observation

ONE = """
schema: 1
issues:
  - id: one
    when: {WHEN}
    effect: rejected
    reason: "a reason of some length"
    citation: "keras#1"
"""


def one(when: str) -> str:
    return ONE.replace("{WHEN}", when)


def ids(found) -> set[str]:
    return {issue.id for issue in found}


def test_every_issue_that_ships_has_a_reason_and_says_who_saw_it():
    issues = known_issues()
    assert len({issue.id for issue in issues}) == len(issues) >= 11
    for issue in issues:
        assert "#" in issue.citation or "observed with" in issue.citation, issue.id


def test_a_plain_configuration_on_jax_has_no_issue():
    assert applying(config(), observation(), VERSIONS) == []


@pytest.mark.parametrize(
    ("changes", "facts", "backend", "expected"),
    [
        ({"steps_per_execution": 8}, {}, "jax", "jax-steps-per-execution"),
        ({"steps_per_execution": 2}, {}, "torch", "torch-steps-per-execution"),
        ({"jit_compile": False}, {}, "jax", "jax-without-compilation"),
        ({"jit_compile": True}, {}, "torch", "torch-compile-on-cpu"),
        ({"remat": {"mode": "activations"}}, {"recurrent": True}, "jax", "remat-activations-recurrent"),
        ({"remat": {"mode": "full"}}, {"layer_kinds": ["Dense", "Dropout"]}, "jax", "remat-full-jax"),
        ({"remat": {"mode": "full"}}, {}, "tensorflow", "remat-full-tensorflow"),
        ({"remat": {"mode": "full"}}, {"batch_norm": True}, "torch", "remat-full-torch-batch-norm"),
        ({"mesh": {"data": 2}}, {}, "tensorflow", "mesh-off-jax"),
        ({"precision": "mixed_float16", "accumulation": 2}, {}, "jax", "float16-accumulation"),
        ({"precision": "mixed_float16"}, {"unscaled_train_step": True}, "jax", "float16-without-loss-scaling"),
        (
            {"precision": "mixed_float16"},
            {"attention_calls": [{"layer": "encoder"}], "random_layers": True},
            "jax",
            "jax-float16-attention-on-cpu",
        ),
    ],
)
def test_an_issue_applies_where_its_conditions_hold(changes, facts, backend, expected):
    assert expected in ids(applying(config(backend=backend, **changes), observation(**facts), VERSIONS))


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"remat": {"mode": "activations"}}, {"recurrent": False}),
        ({"remat": {"mode": "full"}}, {"layer_kinds": ["Dense", "LayerNormalization"]}),
        ({"mesh": {"data": 2}}, {}),
        ({"precision": "mixed_float16"}, {}),
        ({"precision": "mixed_float16"}, {"layer_kinds": ["MultiHeadAttention"]}),
        ({"precision": "mixed_bfloat16"}, {"attention_calls": [{"layer": "encoder"}]}),
    ],
)
def test_an_issue_does_not_apply_where_one_condition_fails(changes, facts):
    assert applying(config(**changes), observation(**facts), VERSIONS) == []


def test_a_later_keras_is_no_longer_gated():
    several = config(steps_per_execution=8)
    assert ids(applying(several, observation(), Versions("3.15.9", "", "cpu"))) == {"jax-steps-per-execution"}
    assert applying(several, observation(), Versions("3.16.0", "", "cpu")) == []


@pytest.mark.parametrize("version", ["", "a build of mine"])
def test_an_unknown_version_is_gated(version):
    found = applying(config(steps_per_execution=8), observation(), Versions(version, "", "cpu"))
    assert ids(found) == {"jax-steps-per-execution"}


def test_true_is_not_the_number_one():
    issues = parse(one("{config: {steps_per_execution: [true]}}"))
    assert applying(config(steps_per_execution=1), observation(), VERSIONS, issues) == []


def test_what_is_handled_or_noted_drops_nothing():
    effects = {issue.id: issue.drops for issue in known_issues() if issue.effect in (Effect.HANDLED, Effect.NOTED)}
    assert effects["float16-accumulation"] is effects["flash-attention-false-is-lost"] is False
    assert not any(effects.values())


def called(layer="encoder", length=256, **more):
    return {"layer": layer, "query": [1, length, 4, 64], "key": [1, length, 4, 64], **more}


@pytest.mark.parametrize(
    ("changes", "calls", "expected"),
    [
        ({}, [called()], {"tpu-attention-becomes-causal"}),
        (
            {"mesh": {"data": 2}},
            [called()],
            {"tpu-attention-becomes-causal", "tpu-attention-on-several-devices"},
        ),
        ({"attention": "unfused"}, [called()], set()),
        ({}, [called(causal=True)], {"tpu-masked-attention-is-not-fused"}),
        ({}, [called(masked=True, length=196)], {"tpu-masked-attention-is-not-fused"}),
        ({}, [called(length=196)], {"tpu-attention-of-uneven-length"}),
        ({}, [called(follows_setting=False)], {"tpu-own-attention-becomes-causal"}),
        (
            {"attention": "unfused"},
            [called(follows_setting=False), called(causal=True)],
            {"tpu-own-attention-becomes-causal", "own-attention-does-not-follow"},
        ),
        ({"backend": "torch"}, [called()], set()),
        (
            {"precision": "mixed_float16"},
            [called(causal=True)],
            {"tpu-float16-attention", "tpu-masked-attention-is-not-fused"},
        ),
    ],
)
def test_attention_on_tpus(changes, calls, expected):
    there = Versions("3.15.1", "0.10.2", "tpu")
    assert ids(applying(config(**changes), observation(attention_calls=calls), there)) == expected


def test_the_layers_of_an_issue_are_named_and_counted():
    facts = observation(attention_calls=[called(f"block_{one}/attention") for one in (0, 1, 1, 2, 3, 4)])
    (found,) = applying(config(), facts, Versions("3.15.1", "0.10.2", "tpu"))
    named = "block_0/attention, block_1/attention, block_2/attention and 2 more [keras/src/backend/jax/nn.py"
    assert f"divides by 128: {named}" in found.describe(facts)


@pytest.mark.parametrize(
    ("hardware", "attention", "shown"), [("gpu", "auto", 1), ("gpu", "unfused", 0), ("cpu", "auto", 0)]
)
def test_a_layers_lost_setting_is_shown_where_there_is_a_kernel(hardware, attention, shown):
    facts = observation(lost_flash_attention=["encoder"])
    found = applying(config(attention=attention), facts, Versions("3.15.1", "0.10.2", hardware))
    assert ids(found) == set(["flash-attention-false-is-lost"] * shown)


@pytest.mark.parametrize(
    ("hardware", "changes", "expected"),
    [
        ("gpu", {}, {"gpu-lstm-buffers"}),
        ("gpu", {"precision": "mixed_bfloat16"}, {"gpu-lstm-buffers", "gpu-lstm-in-16-bits"}),
        ("gpu", {"precision": "mixed_float16", "jit_compile": False}, {"jax-without-compilation"}),
        ("gpu", {"mesh": {"data": 2}}, {"gpu-lstm-buffers", "gpu-lstm-on-several-devices"}),
        ("tpu", {"precision": "mixed_bfloat16"}, set()),
    ],
)
def test_an_lstm_of_cudnn_is_known_on_gpus(hardware, changes, expected):
    facts = observation(cudnn_lstms={"memory": True})
    found = applying(config(**changes), facts, Versions("3.15.1", "0.10.2", hardware))
    assert ids(found) == expected
    assert all("memory" in issue.describe(facts) for issue in found if issue.id.startswith("gpu-lstm"))


def test_a_layer_with_dtypes_of_its_own_is_not_changed_by_the_policy():
    facts = observation(cudnn_lstms={"memory": False})
    found = applying(config(precision="mixed_float16"), facts, Versions("3.15.1", "0.10.2", "gpu"))
    assert ids(found) == {"gpu-lstm-buffers"}


def test_an_issue_of_a_plan_is_looked_up_again_without_its_model():
    name, there = "tpu-attention-becomes-causal", Versions("3.15.1", "0.10.2", "tpu")
    assert still_applies(name, config(), there).id == name
    assert still_applies(name, config(attention="unfused"), there) is None
    assert still_applies(name, config(), Versions("3.99.0", "", "tpu")) is None
    assert still_applies("an issue of a later version", config(), there) is None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("schema: 2\nissues: []", "schema"),
        ("issues: []", "schema"),
        (one("{config: {warp: [1]}}"), "unknown warp; expected any of accumulation, attention, backend"),
        (
            one("{layers_with: wings, config: {remat: [full]}}"),
            "unknown wings; expected any of attention, cudnn_lstm, cudnn_lstm_of_policy, lost_flash_attention",
        ),
        (one("{model: {tall: true}, config: {remat: [full]}}"), "unknown tall; expected any of batch_norm"),
        (one("{backend: [jax]}"), "when.config"),
        (one("{config: {}}"), "when.config"),
        (one("{keras: 'newer', config: {remat: [full]}}"), "'newer' is not a version range"),
        (one("{config: {remat: [full]}, moon: full}"), "moon"),
        (one("{config: {remat: [full]}}").replace("rejected", "maybe"), "effect"),
        ("schema: 1\nissues: [", "cannot be read"),
    ],
)
def test_a_file_that_breaks_the_schema_is_refused_with_the_place(text, told):
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert told in str(caught.value)


def test_an_id_stands_once():
    text = one("{config: {remat: [full]}}")
    with pytest.raises(ConfigError, match="known issue 'one' is written twice"):
        parse(text + text.split("issues:\n")[1])


ENCODER = {"layer": "encoder", "query": [1, 256, 4, 64], "key": [1, 256, 4, 64]}


def values(found, read):
    return {read(c) for c in found.configs}


def on_a_tpu(call=ENCODER, facts=None, name="tpu-v5e-4", **wishes):
    there = hardware_cluster(name)
    facts = observation(config(64), attention_calls=[call], **(facts or {}))
    return legal_configs(facts, there, Versions("3.15.1", "0.10.2", there.chip.kind), **wishes)


@pytest.mark.parametrize("wishes", [{}, {"only": ["precision"]}, {"fix": {"attention": "unfused"}}])
def test_a_plan_for_a_tpu_never_uses_the_kernel_that_makes_attention_causal(wishes):
    found = on_a_tpu(**wishes)
    assert values(found, lambda c: c.attention) == {"unfused"}
    assert found.baseline.attention == "auto"
    assert found.baseline not in found.configs
    pinned = "fix" in wishes
    assert found.excluded_by == (
        "--fix attention=unfused" if pinned else "the known issue tpu-attention-becomes-causal"
    )
    reasons = [one.reason for one in found.rejected if one.config == found.baseline]
    assert len(reasons) == (0 if pinned else 1)
    assert all("makes attention without a mask causal" in reason and "encoder" in reason for reason in reasons)


def test_that_kernel_cannot_be_pinned():
    with pytest.raises(ConfigError, match=r"attention=auto: Keras's attention kernel .*encoder.*Fix other") as caught:
        on_a_tpu(fix={"attention": "auto"})
    assert "jit_compile" not in str(caught.value), "other issues are not the reason"


@pytest.mark.parametrize(
    ("call", "facts", "told"),
    [
        (ENCODER | {"follows_setting": False}, {}, "leave out their flash_attention=True"),
        (ENCODER, {"held": {"attention": "it is pickled"}}, "makes attention without a mask causal"),
    ],
)
def test_nothing_is_planned_where_the_kernel_cannot_be_switched_off(call, facts, told):
    with pytest.raises(
        ConfigError, match=f"no configuration of this training works on tpu-v5e-4: attention=auto.*{told}"
    ):
        on_a_tpu(call, facts)


@pytest.mark.parametrize(
    "call", [ENCODER | {"causal": True}, ENCODER | {"query": [1, 196, 4, 64], "key": [1, 196, 4, 64]}]
)
def test_other_attention_stays_as_it_is_on_a_tpu(call):
    found = on_a_tpu(call)
    assert values(found, lambda c: c.attention) == {"auto"}
    assert found.configs[0] == found.baseline
    asked = on_a_tpu(call, only=["attention"])
    (told,) = asked.rejected
    assert told.reason.startswith("attention is not tuned here: Keras's attention kernel for TPUs takes none of this")


def test_both_kinds_of_attention_are_listed_on_a_gpu_in_16_bits():
    found = on_a_tpu(name="gpu-a100-80gb", only=["attention", "precision"])
    listed = {(c.precision.value, c.attention.value) for c in found.configs}
    own = {(one.value, "auto") for one in (Precision.FLOAT32, Precision.MIXED_BFLOAT16, Precision.MIXED_FLOAT16)}
    assert listed == own | {("mixed_bfloat16", "unfused"), ("mixed_float16", "unfused")}
