"""Finds constraints of weights that give another result if they are applied twice, by applying them to random values.

Keras applies constraints in `Optimizer.apply`, at every micro-step, also where the micro-step only adds to the
accumulated gradients (Keras 3.15.1, `base_optimizer.py`). Under another split of an update such a constraint acts more
or less often on the same weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from keras import ops

_TOLERANCE = 1e-4
"""Largest relative difference that counts as rounding: Keras's constraints add 1e-7 to norms before they divide."""
_SCALES = (1e-2, 1.0, 1e2)
"""Sizes of the random values. A bound of norms acts on some of them."""
_LARGEST = 64
"""A constraint is applied to at most this length of each dimension."""


def not_idempotent(model: Any) -> str:
    """Return the first such constraint with its weight, `MinMaxNorm of dense/kernel`; "" if there is none.

    A constraint that cannot be applied to values of another size counts as one.
    """
    for variable in model.trainable_variables:
        constraint = getattr(variable, "constraint", None)
        if constraint is not None and not _is_idempotent(constraint, tuple(variable.shape)):
            name = getattr(constraint, "__name__", type(constraint).__name__)
            return f"{name} of {variable.path}"
    return ""


def _is_idempotent(constraint: Callable[[Any], Any], shape: tuple[int, ...]) -> bool:
    random = np.random.default_rng(0).standard_normal([min(size, _LARGEST) for size in shape])
    try:
        return all(_repeats(constraint, (random * scale).astype("float32")) for scale in _SCALES)
    except Exception:  # noqa: BLE001 -- the user's own code, which may refuse these values in any way
        return False


def _repeats(constraint: Callable[[Any], Any], values: Any) -> bool:
    once = constraint(ops.convert_to_tensor(values))
    first, second = (ops.convert_to_numpy(one) for one in (once, constraint(once)))
    return bool(np.linalg.norm(second - first) <= _TOLERANCE * np.linalg.norm(first))
