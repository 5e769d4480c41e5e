from __future__ import annotations

import pytest

from autoplan.errors import ConfigError
from autoplan.plan import knobs
from autoplan.tuning.space.options import free_fields, parse_fix
from cost_models.config import Precision, RematMode


@pytest.mark.parametrize(
    ("fix", "expected"),
    [
        ({"precision": "float32"}, {"precision": Precision.FLOAT32}),
        ({"mesh": "data=8"}, {"data": 8}),
        ({"mesh.data": "8"}, {"data": 8}),
        ({"mesh": "data=4,model=1"}, {"data": 4, "model": 1}),
        ({"batch": "64"}, {"global": 64}),
        ({"batch": "global=64,accumulation=2"}, {"global": 64, "accumulation": 2}),
        ({"batch.accumulation": "2"}, {"accumulation": 2}),
        ({"accumulation": "2"}, {"accumulation": 2}),
        ({"remat": "activations"}, {"remat": RematMode.ACTIVATIONS}),
        ({"remat.mode": "none"}, {"remat": RematMode.NONE}),
        ({"remat": "mode=none"}, {"remat": RematMode.NONE}),
        ({"jit_compile": "false"}, {"jit_compile": False}),
        ({"layout.shard_state": "off"}, {"shard_state": False}),
        ({"steps_per_execution": "32"}, {"steps_per_execution": 32}),
    ],
)
def test_a_pin_is_read_in_every_spelling(fix, expected):
    assert parse_fix(fix) == expected


@pytest.mark.parametrize(
    ("fix", "told"),
    [
        (
            {"precison": "float32"},
            "--fix precison: unknown setting; did you mean precision?; choose from accumulation, ",
        ),
        ({"mesh": "8"}, "--fix mesh=8: expected parts with values, for example --fix mesh=data=8"),
        ({"mesh": "rows=8"}, "--fix mesh.rows: unknown setting"),
        ({"precision": "float8"}, "precision cannot be 'float8'; expected one of float32, mixed_bfloat16"),
        ({"precision": "other"}, "precision cannot be 'other'; expected one of float32"),
        ({"batch": "0"}, "batch.global cannot be '0'; expected a whole number of at least 1"),
        ({"accumulation": "2.5"}, "batch.accumulation cannot be '2.5'"),
        ({"jit_compile": "maybe"}, "jit_compile cannot be 'maybe'; expected true or false"),
        (
            {"accumulation": "2", "batch.accumulation": "4"},
            "--fix sets batch.accumulation to both 2 and 4; keep one",
        ),
    ],
)
def test_a_bad_pin_is_told_with_what_would_be_legal(fix, told):
    with pytest.raises(ConfigError) as caught:
        parse_fix(fix)
    assert told in str(caught.value)


def test_all_knobs_are_free_unless_some_are_named():
    assert free_fields(()) == frozenset(knobs.tunable_fields())
    assert free_fields(["batch", " precision"]) == {"batch", "precision"}
    assert free_fields(["remat.mode"]) == {"remat"}


def test_only_refuses_words_that_name_nothing():
    with pytest.raises(ConfigError, match="--only names no knob; choose from precision, batch"):
        free_fields(["", " "])


def test_only_refuses_what_cannot_be_tuned():
    with pytest.raises(
        ConfigError, match=r"--only backend: no setting of this name can be tuned.*; choose from precision, batch"
    ):
        free_fields(["backend"])
    with pytest.raises(ConfigError, match=r"did you mean batch\?"):
        free_fields(["bacth"])


@pytest.mark.parametrize("name", ["precision", "batch.global", "mesh.data", "remat.mode", "layout.shard_state"])
def test_a_flat_name_is_spelt_as_the_user_writes_it(name):
    flat = {"remat.mode": "remat"}.get(name, name.split(".")[-1])
    assert knobs.by_name()[flat].spelling == name
