"""Keras variables that know their shape and dtype and hold no value."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def abstract_variables() -> Iterator[None]:
    """Within it, variables made from an initializer allocate nothing (JAX backend).

    Such a variable keeps its initializer; reading its value, as some scripts do, runs the initializer anew and keeps
    nothing, so the value is right and the memory is free again. Variables made from a concrete value (the optimizer's
    `iterations`) keep it, and so do variables that are assigned to (`set_weights`, `load_weights`).
    """
    from keras.src.backend.jax.core import JaxVariable

    original: Callable[..., None] = JaxVariable._initialize_with_initializer
    deferred: Callable[..., None] = JaxVariable._deferred_initialize

    def leave_empty(variable: Any, initializer: Callable[..., Any]) -> None:
        variable._initialize_layout()
        variable._initializer = initializer
        variable._value = None

    def stay_empty(variable: Any) -> None:
        # What a layer makes in its call, while shapes are inferred, Keras initializes afterwards, and forgets how.
        leave_empty(variable, variable._initializer)

    JaxVariable._initialize_with_initializer, JaxVariable._deferred_initialize = leave_empty, stay_empty
    try:
        yield
    finally:
        JaxVariable._initialize_with_initializer, JaxVariable._deferred_initialize = original, deferred
