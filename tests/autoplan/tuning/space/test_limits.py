from __future__ import annotations

import pytest

from autoplan.errors import ConfigError
from autoplan.plan import knobs
from autoplan.tuning.space.legal_values import Situation
from autoplan.tuning.space.limits import Limits, check_range_is_searched, checked_range, excluding_options
from cost_models.config import Precision
from tests.builders.observations import cluster, config, observation

ALL = frozenset(knobs.tunable_fields())


def test_a_range_has_a_lower_and_an_upper_end():
    assert checked_range(None) is None
    assert checked_range((32, 64)) == (32, 64)
    with pytest.raises(ConfigError, match=r"--effective-batch 2\.\.1: expected 1 <= LO <= HI"):
        checked_range((2, 1))


def test_pins_are_broken_by_other_values_only():
    limits = Limits({"precision": Precision.MIXED_BFLOAT16, "remat": "none", "local": 32}, ALL, None)
    assert limits.broken_pins(config(64)) == ["--fix precision=mixed_bfloat16", "--fix batch.local=32"]
    assert limits.broken_pins(config(32, precision="mixed_bfloat16")) == []


def test_the_excluding_options_are_named_as_the_user_writes_them():
    own = config(64)
    where = Situation(observation(own), own, cluster())
    assert excluding_options(where, Limits({"precision": Precision.FLOAT32}, ALL, (32, 64))) is None
    assert excluding_options(where, Limits({}, ALL, (128, 128))) == "--effective-batch 128"
    both = Limits({"jit_compile": False}, ALL, (128, 256))
    assert excluding_options(where, both) == "--fix jit_compile=false with --effective-batch 128..256"


def test_a_range_that_is_not_searched_is_refused():
    own = config(64)
    where = Situation(observation(own, held={"batch": "a reason"}), own, cluster())
    check_range_is_searched(where, Limits({}, frozenset(), (32, 64)))
    check_range_is_searched(where, Limits({}, ALL, (128, 256)))
    with pytest.raises(
        ConfigError, match=r"--effective-batch 128: the effective batch stays 64 here, because a reason"
    ):
        check_range_is_searched(where, Limits({}, frozenset(), (128, 128)))
