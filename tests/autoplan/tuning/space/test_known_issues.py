from __future__ import annotations

import pytest

from autoplan.errors import ConfigError
from autoplan.tuning.space.known_issues import Effect, Versions, applying, known_issues, parse
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
            {"layer_kinds": ["Dense", "MultiHeadAttention"]},
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
        ({"precision": "mixed_float16"}, {"layer_kinds": ["MultiHeadAttention"], "random_layers": True}),
        ({"precision": "mixed_bfloat16"}, {"layer_kinds": ["MultiHeadAttention"]}),
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


def test_what_is_handled_drops_nothing():
    effects = {issue.id: issue.drops for issue in known_issues() if issue.effect is Effect.HANDLED}
    assert effects == {"float16-accumulation": False}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("schema: 2\nissues: []", "schema"),
        ("issues: []", "schema"),
        (one("{config: {warp: [1]}}"), "unknown warp; expected any of accumulation, backend, data"),
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
