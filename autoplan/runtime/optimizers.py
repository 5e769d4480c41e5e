"""Sets gradient accumulation on an optimizer, and converts its learning-rate schedule and averages to the new steps.

In Keras, learning-rate schedules and the exponential moving average of weights count micro-steps, not updates. A plan
that changes accumulation changes the number of micro-steps per update. This module converts schedules exactly, and
moving averages approximately.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import keras
from keras.src.utils import tracking

from autoplan.errors import ConfigError
from autoplan.runtime.user_code.names import code_of, names_in, own_bases
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


def own_optimizers(model: Any) -> dict[str, Any]:
    """Return the optimizers that the model's own `train_step` applies besides the compiled one, by attribute.

    Gradient accumulation is a setting of the compiled optimizer, so it does not apply to these.
    """
    if type(model).train_step is keras.Model.train_step:
        return {}
    found: dict[str, Any] = {}
    known = [model.optimizer, innermost(model.optimizer)]
    for name, one in _attributes(model):
        if isinstance(one, keras.optimizers.Optimizer) and not _among(one, known):
            found[name] = one
            known.append(one)
    return found


def _attributes(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of a model, and then the elements of those that are lists or mappings, with their names."""
    own = {name: value for name, value in vars(model).items() if not name.startswith("_self_")}  # added by TensorFlow
    yield from own.items()
    for name, value in own.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}[{key!r}]", one) for key, one in value.items())
        elif isinstance(value, list | tuple):
            yield from ((f"{name}[{index}]", one) for index, one in enumerate(value))


def updates(model: Any) -> dict[str, int]:
    """Return the number of updates of each optimizer: of the compiled one under "", of others by attribute."""
    found = {"": model.optimizer, **own_optimizers(model)}
    return {name: int(innermost(one).iterations) for name, one in found.items()}


def has_schedule(optimizer: Any) -> bool:
    """Return whether the learning rate is a schedule over micro-steps."""
    return isinstance(innermost(optimizer)._learning_rate, keras.optimizers.schedules.LearningRateSchedule)


def why_not_accumulating(optimizer: Any) -> str:
    """Return why gradient accumulation does not apply to an optimizer, or applies in a way of its own; "" if it does.

    Keras accumulates in `Optimizer.apply`, with variables from `Optimizer.build`. A class with its own `apply` runs it
    at every micro-step, on gradients of a micro-batch.
    """
    inner = innermost(optimizer)
    name = type(inner).__name__
    if isinstance(inner, keras.optimizers.MultiOptimizer):
        return f"{name} has several optimizers, and Keras does not accumulate gradients over them together"
    own = [
        method
        for base in own_bases(type(inner))
        for method in ("apply", "apply_gradients", "stateless_apply", "_backend_apply_gradients")
        if method in vars(base)
    ]
    if own:
        return f"the optimizer {name} has its own method {own[0]}, which runs at every micro-step"
    builds = [vars(base)["build"] for base in own_bases(type(inner)) if "build" in vars(base)]
    if builds and not any("super" in names_in(code_of(build)) for build in builds):
        return f"the optimizer {name} has its own method build, which does not call that of Keras"
    return ""


def adapt_optimizer(optimizer: Any, script: Batch, wanted: Batch) -> Any:
    """Set the wanted accumulation, and convert schedule, average and counter to it. Returns the same optimizer.

    A built optimizer keeps its slots. Its gradient accumulators are replaced, so a partial sum of gradients is lost.

    ConfigError if the optimizer has no list of variables to accumulate gradients for.
    """
    inner = innermost(optimizer)
    _adapt(inner, script, wanted)
    if inner.built:
        with tracking.DotNotTrackScope():  # Keras would count a list of variables as further variables
            _replace_accumulators(inner)
        seen_samples = int(keras.ops.convert_to_numpy(inner._iterations)) * script.global_size
        inner._iterations.assign(seen_samples // wanted.global_size)
    return optimizer


def _replace_accumulators(inner: Any) -> None:
    """Remove the gradient accumulators of a built optimizer, and add zeros if it accumulates.

    They get the position that `Optimizer.build` gives them, because saved optimizers are loaded by position.
    """
    old = list(getattr(inner, "_accumulated_gradients", ()))
    kept = [variable for variable in inner._variables if not _among(variable, old)]
    added: list[Any] = []
    if inner.gradient_accumulation_steps:
        if not inner._trainable_variables:
            raise ConfigError(
                f"gradient accumulation cannot be set on the optimizer {type(inner).__name__}: it was built without a "
                "list of variables; call super().build(variables) in its build, or tune with --fix accumulation=1"
            )
        added = [
            inner.add_variable_from_reference(variable, name="gradient_accumulator")
            for variable in inner._trainable_variables
        ]
    inner._accumulated_gradients = added
    before = [inner._iterations, inner._learning_rate, *(getattr(inner, "_model_variables_moving_average", None) or ())]
    position = sum(_among(variable, before) for variable in kept)
    # A new list, because TensorFlow saves no list from which an element was removed.
    inner._variables = [*kept[:position], *added, *kept[position:]]
    is_variable, _ = inner._tracker.config["variables"]
    inner._tracker.config["variables"] = (is_variable, inner._variables)
    inner._tracker.stored_ids["variables"].difference_update(map(id, old))


def _among(variable: Any, others: Iterable[Any]) -> bool:
    return any(variable is one for one in others)


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

    if "apply" in vars(inner):  # adapted for an earlier fit
        return
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
