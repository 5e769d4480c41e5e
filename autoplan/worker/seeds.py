"""Offsets a script's fixed seed, so that runs draw other weights and dropout; for live models shuffles the rows."""

from __future__ import annotations

import functools
import random
import sys
from typing import Any

import keras
import numpy as np
from keras.src.utils import rng_utils

from autoplan.runtime.data import data_facts, fit_arguments, nested_arrays
from autoplan.runtime.data.data_facts import DataFacts
from autoplan.runtime.data.fit_arguments import FitArguments

BASE_SEED = 1


def offset_random_seed(seed: int) -> None:
    """Offset the seed of this process by `seed - BASE_SEED`; `BASE_SEED` gives the script's own draw.

    After this call `keras.utils.set_random_seed(s)` applies the offset to the generator of initial weights and dropout.
    NumPy and PyTorch keep `s`, so the data that the script creates and shuffles are the same in every draw. The patch
    is not undone, so the process must run nothing else.
    """
    original = rng_utils.set_random_seed
    by = seed - BASE_SEED

    @functools.wraps(original)
    def set_random_seed(seed: int) -> None:
        original(seed)
        _seed_torch(seed)
        if by:
            random.seed(f"{seed} moved by {by}")  # Keras draws unspecified seeds from Python's generator

    _replace_everywhere(original, set_random_seed)
    set_random_seed(BASE_SEED)


def seed_fit(seed: int) -> None:
    """Seed every generator again immediately before the fit, in a process with an offset seed.

    On the PyTorch backend, dropout without its own seed draws from PyTorch's generator, so that generator gets the
    seed of the draw from here on. On other backends it only serves the data.
    """
    keras.utils.set_random_seed(BASE_SEED)
    if keras.backend.backend() == "torch":
        _seed_torch(seed)


def _seed_torch(seed: int) -> None:
    """Seed PyTorch on every backend, because a `DataLoader` shuffles on every backend; Keras only seeds its own."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)


def shuffled(arguments: FitArguments, facts: DataFacts, seed: int) -> FitArguments:
    """Return the arguments of a fit with the rows of its arrays shuffled by `seed`; `BASE_SEED` keeps their order.

    This is for live models: their weights are given, so draws of the training differ in the order of the data.
    """
    if seed == BASE_SEED or facts.kind != "arrays":
        return arguments
    order = np.random.default_rng(seed).permutation(data_facts.training_samples(arguments))

    def shuffle(leaf: Any) -> Any:
        return nested_arrays.take_rows(leaf, order)

    rows = fit_arguments.map_data(lambda data: nested_arrays.map_leaves(shuffle, data), arguments)
    return {**arguments, **rows, "validation_split": 0.0}  # the validation rows were removed above


def _replace_everywhere(original: Any, replacement: Any) -> None:
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").split(".")[0] == "keras":
            for name, value in list(vars(module).items()):
                if value is original:
                    setattr(module, name, replacement)
