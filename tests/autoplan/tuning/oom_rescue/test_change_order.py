from __future__ import annotations

import pytest

from autoplan.plan.knobs import Tradeoff
from autoplan.tuning.oom_rescue.change_order import MEANING, NAMES, kinds_of_change, least_first
from tests.builders.observations import config

OWN = config(64)
BF16 = {"precision": "mixed_bfloat16"}
REMAT = {"remat": {"mode": "activations"}}
MESH = {"mesh": {"data": 2, "model": 1}}


@pytest.mark.parametrize(
    ("other", "kinds"),
    [
        (OWN, ()),
        (config(32, 2), (Tradeoff.ACCUMULATION,)),
        (config(64, **BF16), (Tradeoff.PRECISION,)),
        (config(64, **REMAT), (Tradeoff.REMAT,)),
        (config(64, **MESH), (Tradeoff.MESH,)),
        (config(64, steps_per_execution=8), (Tradeoff.PROGRAM,)),
        (config(64, jit_compile=False), (Tradeoff.PROGRAM,)),
        (config(64, backend="torch"), (Tradeoff.PROGRAM,)),
        (config(32), (Tradeoff.TRAINING,)),
        (config(16, 4, **BF16, **REMAT), (Tradeoff.ACCUMULATION, Tradeoff.PRECISION, Tradeoff.REMAT)),
        (config(8, 4), (Tradeoff.ACCUMULATION, Tradeoff.TRAINING)),
    ],
)
def test_kinds_of_change(other, kinds):
    assert kinds_of_change(OWN, other) == kinds


def test_one_change_comes_before_two_and_the_training_last_of_all():
    ordered = [
        config(32, 2),
        config(16, 4),
        config(64, **BF16),
        config(64, precision="mixed_float16"),
        config(64, **REMAT),
        config(64, **MESH),
        config(64, jit_compile=False),
        config(32, 2, **BF16),
        config(32, 2, precision="mixed_float16"),
        config(16, 4, **BF16),
        config(32, 2, **REMAT),
        config(64, **BF16, **REMAT),
        config(32, 2, **BF16, **REMAT),
        config(32),
        config(16),
        config(16, 2),
    ]
    assert least_first(OWN, [OWN, *reversed(ordered)]) == ordered


def test_every_kind_of_change_has_a_name_and_a_meaning():
    assert list(MEANING) == list(NAMES) == list(Tradeoff)
