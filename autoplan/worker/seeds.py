"""A script's own seed, moved: five runs of a script that fixes its seed are to be five draws, not one five times."""

from __future__ import annotations

import functools
import random
import sys
from typing import Any

import keras
from keras.src.utils import rng_utils

BASE_SEED = 1


def move_random_seed(seed: int) -> None:
    """Give this process draw `seed`: `BASE_SEED` is the script's own, each other one differs from it and from the rest.

    From now on `keras.utils.set_random_seed(s)` moves what initial weights and dropout are drawn from by
    `seed - BASE_SEED`. NumPy keeps `s`, so that data that the script makes and shuffles are the same in every draw.
    For a process of its own: nothing puts the old function back.
    """
    original = rng_utils.set_random_seed
    by = seed - BASE_SEED

    @functools.wraps(original)
    def set_random_seed(seed: int) -> None:
        original(seed)
        if by:
            random.seed(f"{seed} moved by {by}")  # Keras takes the seeds that nobody gave from Python's generator
            if keras.backend.backend() == "torch":
                import torch

                torch.manual_seed(seed + by)

    _replace_everywhere(original, set_random_seed)
    set_random_seed(BASE_SEED)


def _replace_everywhere(original: Any, replacement: Any) -> None:
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").split(".")[0] == "keras":
            for name, value in list(vars(module).items()):
                if value is original:
                    setattr(module, name, replacement)
