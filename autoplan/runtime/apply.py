"""TrainConfig -> Keras: what holds for the process (policy, remat, distribution) and what holds for one model.

Only what differs from the script's own configuration is touched, so that a candidate that changes one thing runs the
script as it is in everything else.
"""

from __future__ import annotations

import warnings
import weakref
from dataclasses import dataclass
from typing import Any

import keras

from autoplan.errors import ConfigError
from autoplan.runtime.backends import Backend
from autoplan.runtime.optimizers import accumulation_of, retime_optimizer
from cost_models.config import Batch, RematMode, TrainConfig

PROCESS_WIDE = ("precision", "remat", "mesh", "layout")
"""Knobs that must be set before the model is built."""


@dataclass(frozen=True)
class Change:
    """From the script's own configuration to the wanted one."""

    script: TrainConfig
    wanted: TrainConfig

    def of(self, knob: str) -> bool:
        """Whether this knob differs, or may: what `jit_compile="auto"` means is each backend's own affair."""
        if knob == "jit_compile" and self.script.backend != self.wanted.backend:
            return True
        return bool(getattr(self.script, knob) != getattr(self.wanted, knob))

    def process_wide(self) -> list[str]:
        """The differing knobs that only a fresh build can honour."""
        return [knob for knob in PROCESS_WIDE if self.of(knob)]


class ProcessSettings:
    """Policy, remat scope and distribution of this process, kept through whatever the script does to them."""

    def __init__(self, change: Change, backend: Backend) -> None:
        self._change, self._backend = change, backend
        self._distribution: Any = None

    def enter(self) -> None:
        """Set what differs. Called before the script's first line, and again after each `clear_session`.

        ConfigError when the mesh needs more devices than there are.
        """
        wanted = self._change.wanted
        if self._change.of("precision"):
            keras.config.set_dtype_policy(wanted.precision.value)
        if wanted.mesh.devices > 1:
            self._backend.accept_remainders()
        if self._change.of("mesh") or self._change.of("layout"):
            keras.distribution.set_distribution(self.distribution())
        if self._change.of("remat") and wanted.remat.mode is not RematMode.NONE:
            keras.RematScope(mode=wanted.remat.mode.value).__enter__()

    def distribution(self) -> Any:
        """The wanted `keras.distribution`, made once; None on one device."""
        mesh, layout = self._change.wanted.mesh, self._change.wanted.layout
        if self._distribution is None and mesh.devices > 1:
            self._distribution = self._backend.data_parallel(mesh.data, shard_state=layout.shard_state)
        return self._distribution

    def overrides(self, knob: str) -> bool:
        """Whether a call of the script that sets this knob must be ignored. A distribution sets mesh and layout."""
        return self._change.of(knob) or (knob == "mesh" and self._change.of("layout"))


_SETTLED: weakref.WeakKeyDictionary[Any, tuple[Batch, Batch]] = weakref.WeakKeyDictionary()
"""Optimizers with the script's own batch and the one that they have now: a script may fit the same model again."""


def settle_model(model: Any, change: Change, *, with_batch: bool = True) -> None:
    """Give a compiled model the wanted jit_compile, steps_per_execution and, with_batch, accumulation.

    The script's own `compile` has run by then: with its loss, metrics and optimizer, and under the wanted policy.
    ConfigError for a model that cannot be compiled where that is wanted.
    """
    if change.of("jit_compile"):
        _set_compilation(model, wanted=change.wanted.jit_compile)
    if change.of("steps_per_execution"):
        model.steps_per_execution = change.wanted.steps_per_execution
    if with_batch:
        _retime(model, change.script.batch, change.wanted.batch)
    model.train_function = model.test_function = model.predict_function = None


def _set_compilation(model: Any, *, wanted: bool) -> None:
    """Keras warns of a layer that it cannot compile, and goes on without: then this would be another configuration."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.jit_compile = wanted
    if wanted and not model.jit_compile:
        kinds = sorted({type(layer).__name__ for layer in model._flatten_layers() if not layer.supports_jit})
        what = f"its layers of kind {', '.join(kinds)}" if kinds else "it on this device"
        raise ConfigError(f"jit_compile=True is asked of the model {model.name!r}, and Keras cannot compile {what}")
    if wanted:
        model.run_eagerly = False


def restore_batch(model: Any) -> None:
    """Give an optimizer that was retimed for an earlier fit the script's own accumulation back."""
    if model.optimizer in _SETTLED:
        own = _SETTLED[model.optimizer][0]
        _retime(model, own, own)


def script_accumulation(optimizer: Any) -> int:
    """Micro-steps an update as the script has it, whatever a plan has made of the optimizer since."""
    return _SETTLED[optimizer][0].accumulation if optimizer in _SETTLED else accumulation_of(optimizer)


def _retime(model: Any, script: Batch, wanted: Batch) -> None:
    own, now = _SETTLED.get(model.optimizer, (script, script))
    if now != wanted:
        model.optimizer = retime_optimizer(model.optimizer, now, wanted)
        _SETTLED[model.optimizer] = (own, wanted)
