"""A script's own seed, moved: five runs of a script that fixes its seed are to be five draws, not one five times."""

from __future__ import annotations

import functools
import random
import sys
from typing import Any

import keras
import numpy as np
from keras.src.utils import rng_utils

from autoplan.runtime.data import data_facts
from autoplan.runtime.data.data_facts import DataFacts

BASE_SEED = 1


def move_random_seed(seed: int) -> None:
    """Give this process draw `seed`: `BASE_SEED` is the script's own, each other one differs from it and from the rest.

    From now on `keras.utils.set_random_seed(s)` moves what initial weights and dropout are drawn from by
    `seed - BASE_SEED`. NumPy and PyTorch keep `s`, so that data that the script makes and shuffles are the same in
    every draw. For a process of its own: nothing puts the old function back.
    """
    original = rng_utils.set_random_seed
    by = seed - BASE_SEED

    @functools.wraps(original)
    def set_random_seed(seed: int) -> None:
        original(seed)
        _seed_torch(seed)
        if by:
            random.seed(f"{seed} moved by {by}")  # Keras takes the seeds that nobody gave from Python's generator

    _replace_everywhere(original, set_random_seed)
    set_random_seed(BASE_SEED)


def seed_fit(seed: int) -> None:
    """Set every generator anew right before the fit of draw `seed`, in a process whose seed was moved.

    On the PyTorch backend dropout without a seed of its own draws from PyTorch's generator, which a draw therefore
    moves from here on; elsewhere that one serves data alone.
    """
    keras.utils.set_random_seed(BASE_SEED)
    if keras.backend.backend() == "torch":
        _seed_torch(seed)


def _seed_torch(seed: int) -> None:
    """Keras does so on the PyTorch backend alone, and a `DataLoader` shuffles on any; unseeded it never repeats."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)


def in_another_order(arguments: dict[str, Any], facts: DataFacts, seed: int) -> dict[str, Any]:
    """The arguments of a fit with the rows of its arrays in the order of this draw; `BASE_SEED` is their own.

    For a live model, whose weights are given: there a draw of the training is an order of its data.
    """
    if seed == BASE_SEED or facts.kind != "arrays":
        return arguments
    order = np.random.default_rng(seed).permutation(data_facts.training_samples(arguments))
    moved = {
        name: data_facts.map_leaves(lambda leaf: data_facts.rows_of(leaf, order), arguments.get(name))
        for name in ("x", "y", "sample_weight")
    }
    return {**arguments, **moved, "validation_split": 0.0}  # what is split off was left out above


def _replace_everywhere(original: Any, replacement: Any) -> None:
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").split(".")[0] == "keras":
            for name, value in list(vars(module).items()):
                if value is original:
                    setattr(module, name, replacement)
