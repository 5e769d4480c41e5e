"""Creates abstract Keras variables, with a shape and a dtype but no value, while a model is traced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def abstract_variables() -> Iterator[None]:
    """Create variables with an initializer without allocating memory in this context (JAX backend).

    Reading the value of an abstract variable, as some scripts do, runs its initializer each time and stores nothing.
    Variables that are created from a concrete value (the optimizer's `iterations`) or assigned to (`set_weights`,
    `load_weights`) have that value.
    """
    from keras.src.backend.jax.core import JaxVariable

    original: Callable[..., None] = JaxVariable._initialize_with_initializer
    deferred: Callable[..., None] = JaxVariable._deferred_initialize

    def leave_empty(variable: Any, initializer: Callable[..., Any]) -> None:
        variable._initialize_layout()
        variable._initializer = initializer
        variable._value = None

    def stay_empty(variable: Any) -> None:
        # Variables that a layer creates in its call during shape inference are initialized by Keras afterwards, which
        # also clears the initializer.
        leave_empty(variable, variable._initializer)

    JaxVariable._initialize_with_initializer, JaxVariable._deferred_initialize = leave_empty, stay_empty
    try:
        yield
    finally:
        JaxVariable._initialize_with_initializer, JaxVariable._deferred_initialize = original, deferred
