"""Applies a TrainConfig to Keras: knobs set before a model is built (dtype policy, remat, mesh ...), then the others.

Only knobs that differ from the script's own configuration are changed, so a candidate that changes one knob leaves
everything else as the script has it.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import keras

from autoplan.plan import knobs
from autoplan.plan.fields import Compared
from autoplan.runtime import model_facts, model_settings
from autoplan.runtime.backends import Backend
from autoplan.runtime.optimizers import accumulation_of, adapt_optimizer
from cost_models.config import AttentionMode, Batch, Precision, RematMode, TrainConfig


@dataclass(frozen=True)
class Change:
    """The change from the script's own configuration to the wanted configuration.

    padding  what a probe found of rows of weight zero; None if the model was not probed
    """

    script: TrainConfig
    wanted: TrainConfig
    padding: Compared | None = None

    def differs(self, knob: str) -> bool:
        """Return whether this knob differs or may differ: the effect of `jit_compile="auto"` depends on the backend."""
        if knob == "jit_compile" and self.script.backend != self.wanted.backend:
            return True
        return bool(getattr(self.script, knob) != getattr(self.wanted, knob))

    def before_building(self) -> list[str]:
        """Return the differing knobs that must be set before the model is built."""
        return [name for name in knobs.build_fields() if self.differs(name)]


def set_attention(value: AttentionMode) -> None:
    """Set whether attention layers that are created from now on may use a fused kernel."""
    if value is AttentionMode.UNFUSED:
        keras.config.disable_flash_attention()
    else:
        keras.config.enable_flash_attention()


class ProcessSettings:
    """Dtype policy, remat scope, distribution ... of this process, which calls of the script do not change.

    own_policy  dtype policy of the process before
    policies    dtype policies that were set; layers that take their policy from the process have these objects
    """

    def __init__(self, change: Change, backend: Backend) -> None:
        self._change, self._backend = change, backend
        self._distribution: Any = None
        self.own_policy = keras.config.dtype_policy()
        self.policies: list[Any] = []

    def enter(self) -> None:
        """Apply the settings that differ. Called before the script's first line and after each `clear_session`.

        ConfigError if the mesh needs more devices than the machine has.
        """
        wanted = self._change.wanted
        if self._change.differs("precision"):
            keras.config.set_dtype_policy(wanted.precision.value)
            self.policies.append(keras.config.dtype_policy())
        if wanted.mesh.devices > 1:
            self._backend.replicate_uneven_batches()
        if self._change.differs("mesh") or self._change.differs("layout"):
            keras.distribution.set_distribution(self.distribution())
        if self._change.differs("remat") and wanted.remat.mode is not RematMode.NONE:
            keras.RematScope(mode=wanted.remat.mode.value).__enter__()
        if self._change.differs("attention"):
            set_attention(wanted.attention)

    def distribution(self) -> Any:
        """Return the wanted `keras.distribution`, which is created once; None on one device."""
        mesh, layout = self._change.wanted.mesh, self._change.wanted.layout
        if self._distribution is None and mesh.devices > 1:
            self._distribution = self._backend.data_parallel(mesh.data, shard_state=layout.shard_state)
        return self._distribution

    def overrides(self, knob: str) -> bool:
        """Return whether calls of the script that set this knob are ignored. A distribution sets mesh and layout."""
        return self._change.differs(knob) or (knob == "mesh" and self._change.differs("layout"))


class OtherModels:
    """Keeps a plan's settings away from the other models of a script, as far as Keras allows.

    A layer takes its precision from the process when it is created, before its model is known. Layers
    of other models are therefore set back before their fit, but not those of models that are never fitted.
    Rematerialization, attention, a distribution and settings of the process hold for every model.

    asked_policies  names of the dtype policies that the script asked for and that the plan overrides; it may grow
    """

    def __init__(self, change: Change, settings: ProcessSettings, asked_policies: set[str]) -> None:
        self._change, self._settings, self._asked = change, settings, asked_policies
        self._tuned: weakref.WeakSet[Any] = weakref.WeakSet()
        self._set_back: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    def add_tuned(self, model: Any) -> None:
        """Record that this model is trained under the plan. Its layers get the plan's settings back."""
        for layer in model._flatten_layers():
            self._tuned.add(layer)
            if layer in self._set_back:
                layer.dtype_policy = self._set_back.pop(layer)

    def is_tuned(self, model: Any) -> bool:
        """Return whether an earlier fit trained this object under the plan."""
        return model in self._tuned

    def set_back(self, model: Any) -> None:
        """Give a model the script's own settings, where they can be changed after it was built.

        Layers keep a precision if the tuned model has them too, or if the script asked for a dtype policy itself,
        because then its own policy of this layer is not known.
        """
        restore_script_settings(model, self._change)
        layers = list(model._flatten_layers())
        own = self._settings.own_policy
        known = not self._asked - {own.name} and own.name != Precision.MIXED_FLOAT16  # which scales the loss
        if not known or any(layer in self._tuned for layer in layers):
            return
        for layer in layers:
            policy = layer.dtype_policy
            if any(policy is one for one in self._settings.policies) and policy.variable_dtype == own.variable_dtype:
                self._set_back[layer] = policy
                layer.dtype_policy = own
        _remove_own_loss_scaling(model)

    def settings_of(self, model: Any) -> list[str]:
        """Return the settings of the plan that hold for this model, in words, as its layers and the process say."""
        script, wanted = self._change.script, self._change.wanted
        layers = list(model._flatten_layers())
        found = {
            "precision": any(layer.dtype_policy.name == wanted.precision.value for layer in layers if layer.weights),
            "remat": any(getattr(getattr(layer, "_remat_mode", None), "mode", None) for layer in layers),
            "attention": any(hasattr(layer, model_facts.FLASH_ATTENTION) for layer in layers),
            "mesh": True,
            "layout": True,
        } | dict.fromkeys((*knobs.process_fields(), "backend"), True)
        return [
            f"{knob.label} {knobs.formatted(knob.value(wanted))}"
            for knob in knobs.KNOBS
            if found.get(knob.field) and knob.value(script) != knob.value(wanted)
        ]


def _remove_own_loss_scaling(model: Any) -> None:
    """Undo what `compile` does for a model in mixed_float16: put the optimizer into a LossScaleOptimizer."""
    given = model._compile_config.config["optimizer"] if getattr(model, "_compile_config", None) else None
    if isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer) and model.optimizer.inner_optimizer is given:
        model.optimizer = given


_APPLIED_BATCHES: weakref.WeakKeyDictionary[Any, tuple[Batch, Batch]] = weakref.WeakKeyDictionary()
"""The script's own batch and the present batch of each optimizer, because a script may fit the same model again."""


_APPLIED_SETTINGS: weakref.WeakKeyDictionary[Any, tuple[Any, dict[str, Any]]] = weakref.WeakKeyDictionary()
"""The script's own settings of each model that a plan has changed, with the `compile` that they belong to."""


def apply_to_model(model: Any, change: Change, *, with_batch: bool = True) -> None:
    """Set jit_compile, steps_per_execution and, with_batch, gradient accumulation of a compiled model.

    Must be called after the script's own `compile`, which sets the loss, metrics and optimizer.

    ConfigError if jit_compile is wanted and Keras cannot compile the model.
    """
    compiled = getattr(model, "_compile_config", None)
    if _APPLIED_SETTINGS.get(model, (None,))[0] is not compiled or model not in _APPLIED_SETTINGS:
        _APPLIED_SETTINGS[model] = (compiled, model_settings.own_values(model))
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


def restore_script_settings(model: Any, change: Change) -> None:
    """Restore the script's own batch and settings of a model that an earlier fit trained under the plan."""
    restore_script_batch(model)
    compiled, own = _APPLIED_SETTINGS.pop(model, (None, {}))
    if own and compiled is getattr(model, "_compile_config", None):  # else the script has compiled it again
        for name, value in own.items():
            if change.differs(name):
                model_settings.set_value(model, name, value)
    model.train_function = model.test_function = model.predict_function = None


def script_accumulation(optimizer: Any) -> int:
    """Return the script's own number of micro-steps per update, even if a plan has adapted the optimizer since."""
    return _APPLIED_BATCHES[optimizer][0].accumulation if optimizer in _APPLIED_BATCHES else accumulation_of(optimizer)


def _adapt(model: Any, script: Batch, wanted: Batch) -> None:
    own, now = _APPLIED_BATCHES.get(model.optimizer, (script, script))
    if now != wanted:
        model.optimizer = adapt_optimizer(model.optimizer, now, wanted)
        _APPLIED_BATCHES[model.optimizer] = (own, wanted)
