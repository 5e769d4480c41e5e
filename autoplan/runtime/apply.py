"""Applies a TrainConfig to Keras: knobs set before a model is built (dtype policy, remat, mesh), then those of a model.

Only knobs that differ from the script's own configuration are changed, so a candidate that changes one knob leaves
everything else as the script has it.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import keras

from autoplan.plan import knobs
from autoplan.runtime import model_settings
from autoplan.runtime.backends import Backend
from autoplan.runtime.optimizers import accumulation_of, adapt_optimizer
from cost_models.config import Batch, RematMode, TrainConfig


@dataclass(frozen=True)
class Change:
    """The change from the script's own configuration to the wanted configuration."""

    script: TrainConfig
    wanted: TrainConfig

    def differs(self, knob: str) -> bool:
        """Return whether this knob differs or may differ: the effect of `jit_compile="auto"` depends on the backend."""
        if knob == "jit_compile" and self.script.backend != self.wanted.backend:
            return True
        return bool(getattr(self.script, knob) != getattr(self.wanted, knob))

    def before_building(self) -> list[str]:
        """Return the differing knobs that must be set before the model is built."""
        return [name for name in knobs.build_fields() if self.differs(name)]


class ProcessSettings:
    """Dtype policy, remat scope and distribution of this process, which calls of the script do not change."""

    def __init__(self, change: Change, backend: Backend) -> None:
        self._change, self._backend = change, backend
        self._distribution: Any = None

    def enter(self) -> None:
        """Apply the settings that differ. Called before the script's first line and after each `clear_session`.

        ConfigError if the mesh needs more devices than the machine has.
        """
        wanted = self._change.wanted
        if self._change.differs("precision"):
            keras.config.set_dtype_policy(wanted.precision.value)
        if wanted.mesh.devices > 1:
            self._backend.replicate_uneven_batches()
        if self._change.differs("mesh") or self._change.differs("layout"):
            keras.distribution.set_distribution(self.distribution())
        if self._change.differs("remat") and wanted.remat.mode is not RematMode.NONE:
            keras.RematScope(mode=wanted.remat.mode.value).__enter__()

    def distribution(self) -> Any:
        """Return the wanted `keras.distribution`, which is created once; None on one device."""
        mesh, layout = self._change.wanted.mesh, self._change.wanted.layout
        if self._distribution is None and mesh.devices > 1:
            self._distribution = self._backend.data_parallel(mesh.data, shard_state=layout.shard_state)
        return self._distribution

    def overrides(self, knob: str) -> bool:
        """Return whether calls of the script that set this knob are ignored. A distribution sets mesh and layout."""
        return self._change.differs(knob) or (knob == "mesh" and self._change.differs("layout"))


_APPLIED_BATCHES: weakref.WeakKeyDictionary[Any, tuple[Batch, Batch]] = weakref.WeakKeyDictionary()
"""The script's own batch and the present batch of each optimizer, because a script may fit the same model again."""


def apply_to_model(model: Any, change: Change, *, with_batch: bool = True) -> None:
    """Set jit_compile, steps_per_execution and, with_batch, gradient accumulation of a compiled model.

    Must be called after the script's own `compile`, which sets the loss, metrics and optimizer.

    ConfigError if jit_compile is wanted and Keras cannot compile the model.
    """
    for name in model_settings.names():
        if change.differs(name):
            model_settings.set_value(model, name, getattr(change.wanted, name))
    if with_batch:
        _adapt(model, change.script.batch, change.wanted.batch)
    model.train_function = model.test_function = model.predict_function = None


def restore_script_batch(model: Any) -> None:
    """Restore the script's own accumulation of an optimizer that was adapted for an earlier fit."""
    if model.optimizer in _APPLIED_BATCHES:
        own = _APPLIED_BATCHES[model.optimizer][0]
        _adapt(model, own, own)


def script_accumulation(optimizer: Any) -> int:
    """Return the script's own number of micro-steps per update, even if a plan has adapted the optimizer since."""
    return _APPLIED_BATCHES[optimizer][0].accumulation if optimizer in _APPLIED_BATCHES else accumulation_of(optimizer)


def _adapt(model: Any, script: Batch, wanted: Batch) -> None:
    own, now = _APPLIED_BATCHES.get(model.optimizer, (script, script))
    if now != wanted:
        model.optimizer = adapt_optimizer(model.optimizer, now, wanted)
        _APPLIED_BATCHES[model.optimizer] = (own, wanted)
