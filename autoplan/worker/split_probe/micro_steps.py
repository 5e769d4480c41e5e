"""Runs single micro-steps of a model through Keras's own `fit`, always from the same variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from autoplan.runtime.intercept import FitCall
from autoplan.runtime.optimizers import innermost
from autoplan.worker.split_probe.fixed_values import Recorded
from autoplan.worker.split_probe.gradient_sums import GradientSums
from autoplan.worker.split_probe.rows import SampleRows, one_batch_arguments
from autoplan.worker.split_probe.updates import Update, Values

FLOAT16_LOSS_SCALE = 1024.0
_SEED_STATE = "seed_generator_state"
_STEP = 1e-2
"""Length of an update between two comparisons, relative to the weights."""


class MicroSteps:
    """Runs updates of one model from the same variables; the model's compiled optimizer is replaced.

    variables  the variables that a micro-step may change, by path: weights, and state of layers, without metrics
    """

    def __init__(self, call: FitCall, recorded: Recorded) -> None:
        self._call, self._model, self._recorded = call, call.model, recorded
        self._optimizer = GradientSums(FLOAT16_LOSS_SCALE if _computes_in_float16(self._model) else 1.0)
        self._optimizer.build(self._model.trainable_variables)
        self._replace_optimizer()
        own = {id(variable): variable for variable in (*self._model.trainable_variables, *_state(self._model))}
        self.variables = {_unique_path(variable, at): variable for at, variable in enumerate(own.values())}
        self._paths = {id(variable): path for path, variable in self.variables.items()}
        self.start = self._values()

    def _replace_optimizer(self) -> None:
        model = self._model
        self._execution = {"jit_compile": model.jit_compile, "run_eagerly": model.run_eagerly}
        model.optimizer = self._optimizer
        model.steps_per_execution = 1
        # A few micro-steps are run: JAX is much slower without compilation, the others with it.
        self._run({"jit_compile": keras.backend.backend() == "jax", "run_eagerly": False})

    def run_as_the_script(self) -> bool:
        """Run as the script compiles its model from now on; return whether this changes anything."""
        return self._run(self._execution)

    def _run(self, execution: Mapping[str, Any]) -> bool:
        before = {name: getattr(self._model, name) for name in execution}
        for name, value in execution.items():
            setattr(self._model, name, value)
        self._model.train_function = None
        return before != execution

    def update(self, parts: Sequence[SampleRows]) -> Update:
        """Run one micro-step over each part, and return what they did together."""
        self._restore()
        sums, losses, gradients, logs = self._sums(), [], [], []
        for rows in parts:
            self._recorded.rows = rows.count
            history = self._call.proceed(**one_batch_arguments(self._call.arguments, rows))
            logs.append({name: float(np.asarray(values[-1])) for name, values in history.history.items()})
            losses.append(_loss(logs[-1]))
            now = self._sums()
            gradients.append({path: (value - sums[path]) / self._optimizer.scale for path, value in now.items()})
            sums = now
        self._recorded.rows = None
        return Update(losses, gradients, self.start, self._values(), logs)

    def advance(self, update: Update, step: float = _STEP) -> None:
        """Start the next updates from the variables after this one, with weights moved by this share of their norm."""
        weights = {path: self.start[path] for path in update.gradients[0]}
        length, size = _norm(weights), _norm({path: update.gradient(path) for path in weights})
        moved = dict(update.after)
        if size > 0 and np.isfinite(size):
            for path, weight in weights.items():
                moved[path] = (weight - step * (length or 1.0) / size * update.gradient(path)).astype(weight.dtype)
        self.start = moved

    def untrained_scalars(self) -> dict[str, Any]:
        """Return the values of state variables with one element, such as switches and weights of losses."""
        state = {id(variable) for variable in _state(self._model)}
        found = {path: self.start[path] for path, variable in self.variables.items() if id(variable) in state}
        return {path: value for path, value in found.items() if value.size == 1}

    def start_with(self, values: Values) -> None:
        """Start the next updates with other values of some variables."""
        self.start = {**self.start, **values}

    def _restore(self) -> None:
        for path, variable in self.variables.items():
            variable.assign(self.start[path])
        for variable in self._optimizer.sums:
            variable.assign(np.zeros(variable.shape, dtype="float32"))

    def _values(self) -> Values:
        return {path: _array(variable) for path, variable in self.variables.items()}

    def _sums(self) -> dict[str, Any]:
        trainable = self._model.trainable_variables
        pairs = zip(trainable, self._optimizer.sums, strict=True)
        return {self._paths[id(variable)]: _array(total).astype("float32") for variable, total in pairs}


def computes_in(model: Any) -> str:
    """Return the data type with the fewest digits in which a layer of the model computes."""
    kinds = {layer.compute_dtype for layer in model._flatten_layers()}
    for kind in ("bfloat16", "float16", "float32"):
        if kind in kinds:
            return kind
    return "float64" if "float64" in kinds else "float32"


def _computes_in_float16(model: Any) -> bool:
    return computes_in(model) == "float16" or innermost(model.optimizer) is not model.optimizer


def _state(model: Any) -> list[Any]:
    return [variable for variable in model.non_trainable_variables if _SEED_STATE not in variable.path]


def _unique_path(variable: Any, position: int) -> str:
    """Return the path of a variable, which is not unique in every model, with its position."""
    return f"{variable.path}#{position}"


def _array(variable: Any) -> Any:
    return np.array(keras.ops.convert_to_numpy(variable))


def _norm(values: Mapping[str, Any]) -> float:
    return float(np.sqrt(sum(np.sum(np.square(value.astype("float64"))) for value in values.values())))


def _loss(logs: Mapping[str, float]) -> float | None:
    """Return the reported loss; without a log of that name another loss, and without any loss the first log."""
    losses = [value for name, value in logs.items() if "loss" in name]
    return logs["loss"] if "loss" in logs else next(iter([*losses, *logs.values()]), None)
