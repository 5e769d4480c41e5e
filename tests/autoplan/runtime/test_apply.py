from __future__ import annotations

import pytest

from autoplan.runtime.apply import Change
from tests.autoplan.facts import config


def test_only_what_differs_is_changed():
    change = Change(config(64), config(32, 2, precision="mixed_bfloat16"))
    differing = [
        knob for knob in ("precision", "remat", "mesh", "jit_compile", "steps_per_execution") if change.of(knob)
    ]
    assert differing == ["precision"]
    assert change.of("batch")
    assert change.process_wide() == ["precision"]


@pytest.mark.parametrize("compiled", [True, False])
def test_jit_compile_is_set_on_another_backend_where_auto_means_another_thing(compiled):
    same, other = config(64, jit_compile=compiled), config(64, jit_compile=compiled, backend="tensorflow")
    assert not Change(same, same).of("jit_compile")
    assert Change(same, other).of("jit_compile")
