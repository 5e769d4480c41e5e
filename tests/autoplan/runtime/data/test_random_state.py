"""The states of the global generators of random numbers are kept and restored."""

import random

import numpy as np
import pytest

from autoplan.runtime.data.random_state import RandomState, preserved_random_state


def draw_with_torch():
    return pytest.importorskip("torch").rand(1).item()


DRAWS = {"Python": random.random, "NumPy": np.random.random, "PyTorch": draw_with_torch}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_each_generator_is_restored(draw):
    draw()
    state = RandomState.now()
    assert state.is_present()
    drawn = draw()
    assert not state.is_present()
    state.restore()
    assert state.is_present()
    with preserved_random_state():
        assert draw() == drawn
    assert draw() == drawn
