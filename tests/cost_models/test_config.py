from __future__ import annotations

from dataclasses import dataclass

import pytest

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
WRITTEN = {
    "backend": "torch",
    "precision": "mixed_bfloat16",
    "batch": {"local": 8, "global": 32, "accumulation": 2, "effective": 64},
    "mesh": {"data": 4, "model": 2},
    "layout": {"shard_state": True},
    "remat": {"mode": "full"},
    "attention": "unfused",
    "steps_per_execution": 16,
    "jit_compile": False,
    "keep_freed_memory": True,
}


def test_a_configuration_is_written_under_the_keys_of_a_plan_in_their_order():
    written = FULL.to_dict()
    assert {key: FULL[key] for key in written} == written
    assert written == WRITTEN
    assert list(written) == list(WRITTEN)
    assert list(written["batch"]) == list(WRITTEN["batch"])


@pytest.mark.parametrize("config", [PLAIN, FULL])
def test_a_configuration_is_read_back_as_it_was_written(config):
    read = TrainConfig.from_dict(config.to_dict())
    assert read == config
    assert isinstance(read.precision, Precision)
    assert isinstance(read.remat.mode, RematMode)


def test_a_missing_key_stands_for_the_default():
    assert TrainConfig.from_dict({"batch": {"global": 8}}) == PLAIN


def test_a_later_key_is_written_only_with_another_value():
    assert "attention" not in PLAIN.to_dict()
    assert PLAIN["attention"] == "auto"
    with pytest.raises(KeyError, match="warp"):
        PLAIN["warp"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, r"cannot be read \('batch'\); expected the keys of a plan"),
        ({"batch": {"global": 8}, "precision": "float8"}, "'float8' is not a valid Precision"),
        ({"batch": {"global": 8}, "mesh": {"rows": 2}}, "rows"),
        ({"batch": {"global": 8}, "remat": "none"}, "expected the keys of a plan"),
        ({"batch": {"global": 8, "local": 4}}, "batch.local is 4, but the other batch sizes make it 8"),
        ({"batch": {"global": 9}, "mesh": {"data": 2}}, "a global batch of 9 does not divide over 2 devices"),
    ],
)
def test_a_configuration_that_cannot_be_read_is_a_config_error(data, message):
    with pytest.raises(ConfigError, match=message):
        TrainConfig.from_dict(data)


def test_a_description_names_sizes_and_what_differs_from_the_defaults():
    assert PLAIN.describe() == "float32, batch 8"
    assert FULL.describe() == (
        "torch, mixed_bfloat16, batch 32, accumulation 2, mesh data=4,model=2, sharded state, remat "
        "full, unfused attention, steps_per_execution 16, "
        "jit_compile off, keep_freed_memory on"
    )


def test_a_new_mesh_splits_the_same_global_batch():
    assert PLAIN.with_(mesh=Mesh(data=2)).batch == Batch(4, data=2)
    with pytest.raises(ConfigError, match="does not divide over 3 devices"):
        PLAIN.with_(mesh=Mesh(data=3))


def test_configurations_with_the_same_program_have_the_same_key():
    same = PLAIN.with_(steps_per_execution=8, keep_freed_memory=True)
    assert same.key(Affects.PROGRAM) == PLAIN.key(Affects.PROGRAM)
    others = (
        {"backend": "torch"},
        {"precision": Precision.BFLOAT16},
        {"layout": Layout(True)},
        {"remat": Remat(RematMode.FULL)},
        {"attention": AttentionMode.UNFUSED},
        {"jit_compile": False},
    )
    keys = {PLAIN.with_(**other).key(Affects.PROGRAM) for other in others} | {PLAIN.key(Affects.PROGRAM)}
    assert len(keys) == 1 + len(others)


def test_a_reduced_configuration_has_defaults_for_what_does_not_matter():
    reduced = FULL.reduced_to(Affects.PROGRAM | Affects.SIZES)
    assert reduced == FULL.with_(steps_per_execution=1, keep_freed_memory=False)
    assert FULL.reduced_to(Affects.OPERATIONS | Affects.SIZES) == TrainConfig(
        FULL.batch, precision=FULL.precision, mesh=FULL.mesh, remat=FULL.remat, attention=FULL.attention
    )


def test_one_more_field_is_written_read_and_described():
    @dataclass(frozen=True)
    class Larger(TrainConfig):
        prefetch: int = 2
        shuffled: bool = False

    own = Larger(Batch(8), prefetch=4, shuffled=True)
    assert own.to_dict() == PLAIN.to_dict() | {"prefetch": 4, "shuffled": True}
    assert Larger.from_dict(own.to_dict()) == own
    assert Larger.from_dict(PLAIN.to_dict()) == Larger(Batch(8))
    assert own.describe() == "float32, batch 8, prefetch 4, shuffled on"
    assert own.key(Affects.PROGRAM) != Larger(Batch(8)).key(Affects.PROGRAM)
