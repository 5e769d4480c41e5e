"""Sets gradient accumulation on an optimizer, and converts its learning-rate schedule and averages to the new steps.

In Keras, learning-rate schedules and the exponential moving average of weights count micro-steps, not updates. A plan
that changes accumulation changes the number of micro-steps per update. This module converts schedules exactly, and
moving averages approximately.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from cost_models.config import Batch


@keras.saving.register_keras_serializable(package="autoplan")
class PerUpdateSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """The script's own schedule, evaluated at the same update, or at the same sample if the effective batch differs.

    At micro-step m the optimizer is in update u = m // accumulation. The script's configuration reaches these samples
    in its update u0 = u * effective // script_effective, which changes the weights in micro-step
    u0 * script_accumulation + script_accumulation - 1. The wrapped schedule is evaluated there. The arithmetic is
    integer, so equal updates have equal learning rates.

    Loading a saved optimizer with this schedule needs `import autoplan.runtime.optimizers` first.
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

    def get_config(self) -> dict[str, object]:
        return {
            "schedule": keras.saving.serialize_keras_object(self.schedule),
            "accumulation": self.accumulation,
            "effective": self.effective,
            "script_accumulation": self.script_accumulation,
            "script_effective": self.script_effective,
        }


def innermost(optimizer: Any) -> Any:
    """Return the optimizer that has the slots and the schedule, without a LossScaleOptimizer around it."""
    while isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = optimizer.inner_optimizer
    return optimizer


def accumulation_of(optimizer: Any) -> int:
    """Return the number of micro-steps per update."""
    return innermost(optimizer).gradient_accumulation_steps or 1


def has_schedule(optimizer: Any) -> bool:
    """Return whether the learning rate is a schedule over micro-steps."""
    return isinstance(innermost(optimizer)._learning_rate, keras.optimizers.schedules.LearningRateSchedule)


def adapt_optimizer(optimizer: Any, script: Batch, wanted: Batch) -> Any:
    """Return the optimizer with the wanted accumulation, and with schedule, average and counter converted to it.

    Returns the same object if it is not built yet, else a new optimizer with the values of all slots and counters.
    """
    inner = innermost(optimizer)
    if not inner.built:
        _adapt(inner, script, wanted)
        return optimizer
    values = {_relative_path(inner, variable): variable.numpy() for variable in inner.variables}
    trainable = list(inner._trainable_variables)
    fresh = type(inner).from_config(_config(inner) | {"gradient_accumulation_steps": None})
    _adapt(fresh, script, wanted)
    with keras.src.backend.name_scope(fresh.name, caller=fresh):
        fresh.build(trainable)
    _copy_values(fresh, values, script, wanted)
    return fresh if inner is optimizer else _rewrapped(optimizer, fresh, trainable)


def _config(inner: Any) -> dict[str, object]:
    """Return the config with the schedule object itself, because a user's own schedule class may have no config."""
    rate = inner._learning_rate
    if not callable(rate):
        return dict(inner.get_config())
    inner._learning_rate = None
    try:
        return dict(inner.get_config()) | {"learning_rate": rate}
    finally:
        inner._learning_rate = rate


def _adapt(inner: Any, script: Batch, wanted: Batch) -> None:
    inner.gradient_accumulation_steps = wanted.accumulation if wanted.accumulation > 1 else None
    if wanted.accumulation > 1 and keras.backend.backend() == "tensorflow":
        _count_only_with_gradients(inner)
    micro_steps_ratio = script.global_size / wanted.global_size  # wanted micro-steps per micro-step of the script
    if micro_steps_ratio == 1 and script.accumulation == wanted.accumulation:
        return
    if has_schedule(inner):
        inner._learning_rate = PerUpdateSchedule(
            inner._learning_rate, wanted.accumulation, wanted.effective, script.accumulation, script.effective
        )
    if inner.use_ema:
        # Momentum m ** (1 / k) over k micro-steps decays as much as the script's m over one. Most of these micro-steps
        # average the weights before the update, so the average lags by a part of an update. Tuning therefore does not
        # change the batch of a model with a moving average.
        inner.ema_momentum = inner.ema_momentum ** (1 / micro_steps_ratio)
        if inner.ema_overwrite_frequency:
            updates_ratio = script.effective / wanted.effective
            inner.ema_overwrite_frequency = max(1, round(inner.ema_overwrite_frequency * updates_ratio))


def _count_only_with_gradients(inner: Any) -> None:
    """Make the counter of micro-steps depend on the gradients.

    On TensorFlow, an epoch over data of unknown length ends with a micro-step that gets no batch. Only its counting
    runs, because that depends on nothing, and from then on every update would come one micro-step early.

    The optimizer's variables are created before the dependency, because XLA does not compile a program that creates
    variables from computed values.
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
    """Return a variable's path below the optimizer's own name, with or without a LossScaleOptimizer's scope."""
    parts = str(variable.path).split("/")
    return "/".join(parts[parts.index(inner.name) + 1 :] if inner.name in parts else parts)


def _copy_values(fresh: Any, values: Mapping[str, np.ndarray[Any, Any]], script: Batch, wanted: Batch) -> None:
    """Copy slots, learning rate and counters, but not the gradient accumulators of the old accumulation."""
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
