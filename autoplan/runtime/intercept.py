"""Intercepts the calls of a script to Keras: `fit`, `set_dtype_policy`, `set_distribution`, `RematScope` ...

Scripts import these functions under many names (`from keras.config import set_dtype_policy`,
`keras.mixed_precision...`), so the replacement is set in every module of Keras before the script's first line.
"""

from __future__ import annotations

import functools
import inspect
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import keras
from keras.src.backend import config as keras_config
from keras.src.backend.common import global_state
from keras.src.distribution import distribution_lib
from keras.src.dtype_policies import dtype_policy
from keras.src.saving import saving_api

from autoplan.runtime.apply import ProcessSettings
from autoplan.runtime.checkpoints import SkippedCheckpoints
from autoplan.runtime.data import data_facts
from autoplan.runtime.data.fit_arguments import FitArguments, without


@dataclass
class FitCall:
    """One call of `fit`. `arguments` are bound to names, without defaults; `proceed` runs Keras's own fit."""

    index: int
    model: Any
    arguments: FitArguments
    original: Callable[..., Any]

    def proceed(self, **arguments: Any) -> Any:
        """Run Keras's own `fit` with these arguments instead of the script's."""
        return self.original(self.model, **arguments)


@dataclass
class SeenCalls:
    """Calls of the script that were seen, in the order in which they happened.

    overridden           calls that a plan's settings have overridden
    overridden_policies  dtype policies of such calls
    fits                 number of calls of `fit`
    """

    policies: set[str] = field(default_factory=set)
    overridden_policies: set[str] = field(default_factory=set)
    remat_modes: list[str] = field(default_factory=list)
    overridden: list[str] = field(default_factory=list)
    fits: int = 0
    started_at: float = field(default_factory=time.monotonic)


class Interception:
    """Intercepts calls of a script. `on_fit` is called in place of every `fit`, and the script gets its result.

    settings  settings that calls of the script must not change; None lets the script run as it is
    """

    def __init__(self, on_fit: Callable[[FitCall], Any], settings: ProcessSettings | None = None) -> None:
        self._on_fit = on_fit
        self._settings = settings
        self.seen = SeenCalls(policies={keras.config.dtype_policy().name})
        self.checkpoints = SkippedCheckpoints()
        self._undo: list[Callable[[], None]] = []
        self._inside_fit = False

    def install(self) -> None:
        """Install the replacements, and apply the process-wide settings."""
        self._replace(dtype_policy.set_dtype_policy, self._set_dtype_policy)
        self._replace(distribution_lib.set_distribution, self._set_distribution)
        self._replace(keras_config.enable_flash_attention, self._set_attention)
        self._replace(keras_config.disable_flash_attention, self._set_attention)
        self._replace(global_state.clear_session, self._clear_session)
        self._patch(keras.RematScope, "__enter__", self._enter_remat)
        self._patch(keras.Model, "fit", self._fit)
        self._patch(keras.Model, "load_weights", self.checkpoints.load_weights)
        self._replace(saving_api.load_model, self.checkpoints.load_model)
        if self._settings is not None:
            self._apply(self._settings)

    def uninstall(self) -> None:
        """Restore the original functions."""
        while self._undo:
            self._undo.pop()()

    def _apply(self, settings: ProcessSettings) -> None:
        """Apply our own settings without intercepting them."""
        self._settings = None
        try:
            settings.enter()
        finally:
            self._settings = settings

    def _replace(self, original: Any, instead: Callable[..., Any]) -> None:
        @functools.wraps(original)
        def replacement(*args: Any, **kwargs: Any) -> Any:
            return instead(original, *args, **kwargs)

        for module in list(sys.modules.values()):
            if getattr(module, "__name__", "").split(".")[0] != "keras":
                continue
            for name, value in list(vars(module).items()):
                if value is original:
                    setattr(module, name, replacement)
                    self._undo.append(functools.partial(setattr, module, name, original))

    def _patch(self, owner: type, name: str, instead: Callable[..., Any]) -> None:
        original = getattr(owner, name)
        inherited = name not in vars(owner)

        @functools.wraps(original)
        def replacement(instance: Any, *args: Any, **kwargs: Any) -> Any:
            return instead(original, instance, *args, **kwargs)

        setattr(owner, name, replacement)
        undo = (
            functools.partial(delattr, owner, name) if inherited else functools.partial(setattr, owner, name, original)
        )
        self._undo.append(undo)

    def _overridden(self, knob: str, call: str) -> bool:
        if self._settings is None or not self._settings.overrides(knob):
            return False
        if call not in self.seen.overridden:
            self.seen.overridden.append(call)
        return True

    def _set_dtype_policy(self, original: Callable[..., Any], policy: Any) -> None:
        name = policy if isinstance(policy, str) else policy.name
        if self._settings is None:
            self.seen.policies.add(name)
        if not self._overridden("precision", f"set_dtype_policy({name!r})"):
            original(policy)
        elif self._settings is not None:
            self.seen.overridden_policies.add(name)

    def _set_distribution(self, original: Callable[..., Any], value: Any) -> None:
        shown = type(value).__name__ if value is not None else None
        if not self._overridden("mesh", f"set_distribution({shown})"):
            original(value)

    def _set_attention(self, original: Callable[..., Any]) -> None:
        if not self._overridden("attention", f"{original.__name__}()"):
            original()

    def _clear_session(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if self._settings is not None:
            self._apply(self._settings)
            if "clear_session()" not in self.seen.overridden:
                self.seen.overridden.append("clear_session()")
        return result

    def _enter_remat(self, original: Callable[..., Any], scope: Any) -> Any:
        if self._settings is None:
            self.seen.remat_modes.append(str(scope.mode))
        elif self._overridden("remat", f"RematScope({scope.mode!r})"):
            return scope
        return original(scope)

    def _fit(self, original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
        if self._inside_fit:  # a subclass's `fit` that calls super().fit, or a fit within a callback
            return original(model, *args, **kwargs)
        bound = inspect.signature(original).bind(model, *args, **kwargs).arguments
        arguments = cast("FitArguments", {name: value for name, value in bound.items() if name != "self"})
        self.seen.fits += 1
        self._inside_fit = True
        try:
            return self._on_fit(FitCall(self.seen.fits, model, arguments, original))
        finally:
            self._inside_fit = False


def run_one_micro_step(call: FitCall) -> Any:
    """Run one micro-step of an earlier `fit`, without validation and callbacks, so that the script can continue.

    Scripts read the history afterwards. The logs of the training stand in for those of the validation.
    """
    arguments = without(
        call.arguments,
        *("validation_data", "validation_split", "callbacks", "epochs", "steps_per_epoch", "initial_epoch", "verbose"),
    )
    if data_facts.is_arrays(arguments.get("x")):
        # Without a batch size, a single micro-step would take all rows.
        arguments["batch_size"] = data_facts.describe(call.arguments).batch
    executions, call.model.steps_per_execution = call.model.steps_per_execution, 1
    try:
        history = call.proceed(**arguments, epochs=1, steps_per_epoch=1, verbose=0)
    finally:
        call.model.steps_per_execution, call.model.train_function = executions, None
    if call.arguments.get("validation_data") is not None or call.arguments.get("validation_split"):
        logs = history.history
        logs |= {f"val_{name}": list(values) for name, values in logs.items()}
    return history
