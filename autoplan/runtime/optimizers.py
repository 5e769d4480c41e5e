"""Accumulation, and everything of an optimizer that counts micro-steps.

Keras shows learning-rate schedules and the exponential moving average of weights the micro-step, not the update. A plan
that changes accumulation changes how many micro-steps an update takes; what is here gives schedules their old course
back exactly, and averages nearly.
"""

from __future__ import annotations

import math
from typing import Any

import keras

from cost_models.config import Batch


@keras.saving.register_keras_serializable(package="autoplan")
class PerUpdateSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """The script's own schedule, read at the same update, or at the same sample when the effective batch differs.

    At micro-step m the optimizer is in update u = m // accumulation, which the script's configuration would reach in
    its update u0 = u * effective // script_effective, whose weights change in micro-step u0 * script_accumulation +
    script_accumulation - 1: there the wrapped schedule is read. Integer arithmetic, so equal updates see equal rates.

    Loading a saved optimizer that holds one needs `import autoplan.runtime.optimizers` first.
    """

    def __init__(
        self, schedule: Any, accumulation: int, effective: int, script_accumulation: int, script_effective: int
    ) -> None:
        if isinstance(schedule, dict):
            schedule = keras.saving.deserialize_keras_object(schedule)
        self.schedule = schedule
        divisor = math.gcd(effective, script_effective)
        self.accumulation, self.script_accumulation = accumulation, script_accumulation
        self.effective, self.script_effective = effective // divisor, script_effective // divisor

    def __call__(self, step: Any) -> Any:
        update = keras.ops.floor_divide(step, self.accumulation)
        script_update = keras.ops.floor_divide(update * self.effective, self.script_effective)
        return self.schedule(script_update * self.script_accumulation + self.script_accumulation - 1)

    def get_config(self) -> dict[str, Any]:
        return {
            "schedule": keras.saving.serialize_keras_object(self.schedule),
            "accumulation": self.accumulation,
            "effective": self.effective,
            "script_accumulation": self.script_accumulation,
            "script_effective": self.script_effective,
        }


def innermost(optimizer: Any) -> Any:
    """The optimizer that holds slots and schedule: inside a LossScaleOptimizer, if there is one."""
    while isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = optimizer.inner_optimizer
    return optimizer


def accumulation_of(optimizer: Any) -> int:
    """Micro-steps an update."""
    return innermost(optimizer).gradient_accumulation_steps or 1


def has_schedule(optimizer: Any) -> bool:
    """Whether the learning rate is a function of the micro-step."""
    return isinstance(innermost(optimizer)._learning_rate, keras.optimizers.schedules.LearningRateSchedule)


def retime_optimizer(optimizer: Any, script: Batch, wanted: Batch) -> Any:
    """The optimizer with the wanted accumulation, its schedule, average and counter re-expressed.

    Returns the same object where it has no state yet; else a rebuilt one that took over every slot and counter.
    """
    inner = innermost(optimizer)
    if not inner.built:
        _retime(inner, script, wanted)
        return optimizer
    values = {_relative_path(inner, variable): variable.numpy() for variable in inner.variables}
    trainable = list(inner._trainable_variables)
    fresh = type(inner).from_config(_config(inner) | {"gradient_accumulation_steps": None})
    _retime(fresh, script, wanted)
    with keras.src.backend.name_scope(fresh.name, caller=fresh):
        fresh.build(trainable)
    _take_over(fresh, values, script, wanted)
    return fresh if inner is optimizer else _rewrapped(optimizer, fresh, trainable)


def _config(inner: Any) -> dict[str, Any]:
    """The config, with a schedule as it is: one of the user's own class may have none, and is not found by name."""
    rate = inner._learning_rate
    if not callable(rate):
        return dict(inner.get_config())
    inner._learning_rate = None
    try:
        return dict(inner.get_config()) | {"learning_rate": rate}
    finally:
        inner._learning_rate = rate


def _retime(inner: Any, script: Batch, wanted: Batch) -> None:
    inner.gradient_accumulation_steps = wanted.accumulation if wanted.accumulation > 1 else None
    if wanted.accumulation > 1 and keras.backend.backend() == "tensorflow":
        _count_batches_only(inner)
    micro_steps_ratio = script.global_size / wanted.global_size  # wanted micro-steps for one of the script's
    if micro_steps_ratio == 1 and script.accumulation == wanted.accumulation:
        return
    if has_schedule(inner):
        inner._learning_rate = PerUpdateSchedule(
            inner._learning_rate, wanted.accumulation, wanted.effective, script.accumulation, script.effective
        )
    if inner.use_ema:
        # m ** k after k micro-steps equals the script's m after one, but most of those micro-steps average weights from
        # before the update: the average lags by a part of one. Tuning therefore keeps the batch under an average.
        inner.ema_momentum = inner.ema_momentum ** (1 / micro_steps_ratio)
        if inner.ema_overwrite_frequency:
            updates_ratio = script.effective / wanted.effective
            inner.ema_overwrite_frequency = max(1, round(inner.ema_overwrite_frequency * updates_ratio))


def _count_batches_only(inner: Any) -> None:
    """Let a micro-step be counted when its gradients are there, and not without.

    On TensorFlow an epoch of data that do not tell their length ends with a micro-step that gets no batch. Nothing of
    it takes place but the counting, which waits for nothing: from then on updates would come a micro-step early.

    The optimizer's variables are made before anything waits for gradients: XLA takes no program that makes them from
    what it works out.
    """
    import tensorflow as tf

    apply = inner.apply

    def apply_then_count(grads: Any, trainable_variables: Any = None) -> None:
        if not inner.built and trainable_variables is not None:
            trainable_variables = list(trainable_variables)
            with keras.src.backend.name_scope(inner.name, caller=inner):
                inner.build(trainable_variables)
        known = [gradient for gradient in grads if gradient is not None]
        with tf.control_dependencies(known[-1:]):
            apply(grads, trainable_variables)

    inner.apply = apply_then_count


def _relative_path(inner: Any, variable: Any) -> str:
    """Below the optimizer's own name, whether it was built by itself or inside a LossScaleOptimizer's scope."""
    parts = str(variable.path).split("/")
    return "/".join(parts[parts.index(inner.name) + 1 :] if inner.name in parts else parts)


def _take_over(fresh: Any, values: dict[str, Any], script: Batch, wanted: Batch) -> None:
    """Copy slots, learning rate and counters; the accumulators of the old accumulation end here."""
    for variable in fresh.variables:
        path = _relative_path(fresh, variable)
        if "gradient_accumulator" not in path:
            variable.assign(values[path])
    seen_samples = int(values["iteration"]) * script.global_size
    fresh._iterations.assign(seen_samples // wanted.global_size)


def _rewrapped(optimizer: Any, fresh: Any, trainable: list[Any]) -> Any:
    values = [(variable.path, variable.numpy()) for variable in optimizer._variables]
    wrapper = keras.optimizers.LossScaleOptimizer(
        fresh, optimizer.initial_scale, optimizer.dynamic_growth_steps, name=optimizer.name
    )
    # `build` of the wrapper would build the inner optimizer a second time and double its slots.
    build, fresh.build = fresh.build, lambda _: None
    try:
        wrapper.build(trainable)
    finally:
        fresh.build = build
    for variable, (_, value) in zip(wrapper._variables, values, strict=True):
        variable.assign(value)
    return wrapper
