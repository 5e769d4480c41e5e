"""Finds the batch hooks of callbacks, and what these hooks change in a training, as far as their code shows it."""

from __future__ import annotations

import dis
import functools
from collections.abc import Iterator
from types import CodeType, FunctionType, MethodType
from typing import Any

import keras

from autoplan.runtime.user_code.names import code_of, names_in, own_bases

BATCH_HOOKS = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")
_SETTINGS_OF_A_TRAINING = frozenset(
    (
        *("stop_training", "learning_rate", "lr", "trainable", "weight_decay", "momentum", "beta_1", "beta_2", "rho"),
        *("rate", "clipnorm", "clipvalue", "global_clipnorm"),
    )
)
"""Attributes of models, optimizers and layers that callbacks set."""
_CHANGING_METHODS = frozenset(("assign", "assign_add", "assign_sub", "set_weights", "set_value", "load_weights"))
_LIBRARIES = frozenset(("keras", "tensorflow", "jax", "torch", "numpy", "builtins"))
_COUNTING_METHODS = ("train_step", "compute_loss", "compute_metrics", "call", "update_state")


def has_batch_hooks(callback: Any) -> bool:
    """Return whether a callback does something at every micro-step, or execution."""
    return any(
        hook in vars(callback) or getattr(type(callback), hook) is not getattr(keras.callbacks.Callback, hook)
        for hook in BATCH_HOOKS
    )


def has_own_batch_hooks(callback: Any) -> bool:
    """Return whether a batch hook is the user's code: of its own class, or a function given to a LambdaCallback."""
    return bool(_hooks(callback))


def changed_by(callback: Any) -> list[str]:
    """Return what the user's batch hooks change in a training: attributes that they set, and methods that they call.

    Functions and methods that a hook calls are read too, if they can be found by name. Code that cannot be read, such
    as a C extension, counts as changing nothing.
    """
    found: set[str] = set()
    for code in _reachable(callback):
        found |= {one for one in _stored(code) if one in _SETTINGS_OF_A_TRAINING}
        names = set(names_in(code))
        found |= names & _CHANGING_METHODS
        if "setattr" in names:
            found |= _SETTINGS_OF_A_TRAINING & {one for one in code.co_consts if isinstance(one, str)}
    return sorted(found)


def counts_micro_steps(thing: Any) -> bool:
    """Return whether the user's class of a model, layer or metric adds a fixed number at every micro-step."""
    return any(
        _adds_a_number(code)
        for base in own_bases(type(thing))
        for method in _COUNTING_METHODS
        if (code := code_of(vars(base).get(method))) is not None
    )


def _own_hooks(callback: Any) -> list[Any]:
    return [vars(base)[hook] for base in own_bases(type(callback)) for hook in BATCH_HOOKS if hook in vars(base)]


def _hooks(callback: Any) -> list[Any]:
    return [*_own_hooks(callback), *(vars(callback)[hook] for hook in BATCH_HOOKS if hook in vars(callback))]


def _reachable(callback: Any) -> Iterator[CodeType]:
    """Yield the code of hooks, and of the functions and methods that they call by a name that can be looked up."""
    seen: set[CodeType] = set()
    waiting = [_plain(hook) for hook in _hooks(callback)]
    while waiting:
        function = waiting.pop()
        code = code_of(function)
        if code is None or code in seen:
            continue
        seen.add(code)
        yield code
        waiting += [_plain(one) for one in _called(callback, code, function)]


def _plain(function: Any) -> Any:
    """Return the function of a method or a partial call."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__func__", function)


def _called(callback: Any, code: CodeType, function: Any) -> Iterator[Any]:
    """Yield the functions that a function names: of its callback, of its module, and of the function around it."""
    known = getattr(function, "__globals__", {})
    members = {name: value for base in reversed(own_bases(type(callback))) for name, value in vars(base).items()}
    members |= vars(callback)
    for name in names_in(code):
        for one in (members.get(name), known.get(name)):
            one = one.fget if isinstance(one, property) else one
            if isinstance(one, FunctionType | MethodType) and one.__module__.partition(".")[0] not in _LIBRARIES:
                yield one
    for cell in getattr(function, "__closure__", None) or ():
        if isinstance(one := cell.cell_contents, FunctionType):
            yield one


def _stored(code: CodeType) -> Iterator[str]:
    """Yield the names of attributes that a function sets, on any object."""
    for instruction in dis.get_instructions(code):
        if instruction.opname == "STORE_ATTR":
            yield str(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _stored(constant)


def _adds_a_number(code: CodeType) -> bool:
    """Return whether a function calls `assign_add` with a number, or adds a number to an attribute in place."""
    steps = [one for one in dis.get_instructions(code) if one.opname not in ("CACHE", "PRECALL", "PUSH_NULL", "NOP")]
    for before, after, later in zip(steps, steps[1:], steps[2:], strict=False):
        number = before.opname.startswith("LOAD") and type(before.argval) in (int, float)
        if number and after.opname.startswith("CALL"):
            at = steps.index(before)
            if at and steps[at - 1].argval == "assign_add":
                return True
        if number and after.argrepr == "+=" and later.opname in ("SWAP", "STORE_ATTR", "ROT_TWO"):
            return True
    return False
