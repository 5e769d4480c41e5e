from __future__ import annotations

import pytest

from autoplan.plan import knobs
from autoplan.plan.knobs import KNOBS, Tradeoff, Tuning
from cost_models.config import Affects, AttentionMode, Batch, Layout, Mesh, Precision, Remat, RematMode, TrainConfig
from cost_models.errors import ConfigError

PLAIN = TrainConfig(Batch(8))
FULL = TrainConfig(
    batch=Batch(local=8, data=4, accumulation=2),
    backend="torch",
    precision=Precision.MIXED_BFLOAT16,
    mesh=Mesh(data=4, model=2),
    layout=Layout(shard_state=True),
    remat=Remat(RematMode.FULL),
    attention=AttentionMode.UNFUSED,
    steps_per_execution=16,
    jit_compile=False,
    keep_freed_memory=True,
)


def leaves(plain, path=()):
    """The paths of all values in nested mappings."""
    for key, value in plain.items():
        yield from leaves(value, (*path, key)) if isinstance(value, dict) else [(*path, key)]


def at(plain, path):
    for key in path:
        plain = plain[key]
    return plain


def test_every_value_of_a_plan_has_one_row_in_the_order_of_a_plan():
    assert [knob.path for knob in KNOBS] == list(leaves(FULL.to_dict()))
    assert len(knobs.by_name()) == len(KNOBS)


@pytest.mark.parametrize("knob", KNOBS, ids=lambda knob: knob.name)
def test_a_row_reads_the_value_that_a_plan_has_at_its_path(knob):
    for config in (PLAIN, FULL):
        assert knob.value(config) == at({name: config[name] for name in config.settings()}, knob.path)


@pytest.mark.parametrize("knob", KNOBS, ids=lambda knob: knob.name)
def test_a_formatted_value_is_read_back_as_it_was(knob):
    value = knob.value(FULL)
    assert knob.kind.parse(knobs.formatted(value)) == value
    assert knob.can_be_set(FULL)
    assert knob.kind.parse(knob.kind.example) is not None


@pytest.mark.parametrize("knob", [one for one in KNOBS if one.name != "backend"], ids=lambda one: one.name)
def test_a_row_refuses_text_that_is_no_value(knob):
    with pytest.raises(ValueError, match="-1"):
        knob.kind.parse("-1")


@pytest.mark.parametrize("knob", [one for one in KNOBS if one.field not in ("batch", "mesh")], ids=lambda one: one.name)
def test_a_row_sets_its_value_and_no_other(knob):
    changed = knob.set(PLAIN, knob.value(FULL))
    assert knob.value(changed) == knob.value(FULL)
    assert {one.name for one in KNOBS if one.value(changed) != one.value(PLAIN)} == {knob.name}
    assert changed.describe()


def test_a_value_that_no_policy_names_cannot_be_set():
    assert not knobs.by_name()["precision"].can_be_set(PLAIN.with_(precision=Precision.OTHER))


def test_fields_by_what_they_affect():
    assert knobs.process_fields() == ("keep_freed_memory",)
    assert knobs.build_fields() == ("precision", "mesh", "layout", "remat", "attention")
    assert knobs.tunable_fields() == (
        "precision",
        "batch",
        "mesh",
        "remat",
        "attention",
        "steps_per_execution",
        "jit_compile",
        "keep_freed_memory",
    )
    assert knobs.by_name()["remat"].affects & Affects.OPERATIONS


def test_a_study_tells_configurations_apart_by_what_changes():
    searched = knobs.searched_values(FULL)
    assert list(searched) == [
        "backend",
        "precision",
        "global",
        "accumulation",
        "data",
        "shard_state",
        "remat",
        "attention",
        "steps_per_execution",
        "jit_compile",
        "keep_freed_memory",
    ]
    assert set(knobs.values(FULL)) == {*searched, "model"}


def test_every_change_is_given_up_for_something():
    """The global batch and the local one follow from accumulation, mesh and effective batch."""
    assert {knob.name for knob in KNOBS if knob.tradeoff is None} == {"local", "global"}
    assert {knob.tradeoff for knob in KNOBS} == {None, *Tradeoff}
    assert all(knob.description or knob.kind is not knobs.whole_number() for knob in KNOBS)


def test_changes_are_named_as_people_call_them():
    assert knobs.changes(PLAIN, PLAIN) == []
    assert knobs.changes(PLAIN, FULL) == [
        "backend torch",
        "precision mixed_bfloat16",
        "global batch 32",
        "accumulation 2",
        "mesh data 4",
        "mesh.model 2",
        "layout.shard_state true",
        "remat full",
        "attention unfused",
        "steps_per_execution 16",
        "jit_compile false",
        "keep_freed_memory true",
    ]
    split = TrainConfig(Batch(4, accumulation=2))
    assert knobs.changes(PLAIN, split) == ["accumulation 2"], "the global batch follows"


def test_one_field_of_another_configuration_on_the_same_mesh():
    assert knobs.with_field_of(PLAIN, "precision", FULL) == PLAIN.with_(precision=Precision.MIXED_BFLOAT16)
    assert knobs.with_field_of(PLAIN, "batch", FULL).batch == Batch(32, accumulation=2)
    assert knobs.with_field_of(PLAIN, "mesh", FULL).batch == Batch(2, data=4)
    with pytest.raises(ConfigError, match="does not divide"):
        knobs.with_field_of(TrainConfig(Batch(3)), "mesh", FULL)


def test_a_knob_that_estimates_decide_has_a_reason_for_each_value():
    (knob,) = [one for one in KNOBS if one.slower_because]
    assert set(knob.slower_because) == {False, True}
    assert knob.tuning is Tuning.FREE
