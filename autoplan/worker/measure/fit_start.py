"""Takes a fit back to its start: variables, seeds, generators of random numbers, attributes of callbacks and data.

A trial measures longer than some fits last. It then runs the fit again from here, because a fit that went on would meet
values that the script never reaches: another learning rate, a diverged loss, more memory kept by a callback.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import IO, Any

import keras
import numpy as np
from keras.src.backend.common import global_state

from autoplan.errors import AutoplanError
from autoplan.runtime.data.python_state import PythonState
from autoplan.runtime.data.random_state import RandomState
from autoplan.runtime.optimizers import innermost
from autoplan.worker.measure.trial_fit import TrialFit

_PLAIN = (bool, int, float, str, type(None))
_LEAST_MICRO_STEP_SECONDS = 1e-4
_MOST_BYTES_PER_SECOND = 8e12
"""No device reads the state of a model faster, and each micro-step reads it."""


class FitStart:
    """The state of a fit before its first micro-step. A context manager.

    Values of variables are in a temporary file, so that they take no memory.
    """

    def __init__(self, fit: TrialFit, *, longest_seconds: float) -> None:
        """Keep the state, unless the fit certainly takes more than `longest_seconds`."""
        self._model = fit.model
        self._python = PythonState([*fit.callbacks(), *_data(fit)])
        self._generators = RandomState.now()
        self._attributes = _plain_attributes(fit.model)
        _build_optimizer(fit.model)
        self._variables = variables_of(fit.model)
        self._others = _other_tensors(fit.model)
        self._dtypes: list[Any] = []
        self._file: IO[bytes] | None = None
        state_bytes = sum(int(np.prod(one.shape)) * 4 for one in self._variables)
        least = max(_LEAST_MICRO_STEP_SECONDS, state_bytes / _MOST_BYTES_PER_SECOND)
        micro_steps = _micro_steps(fit)
        if micro_steps is None or micro_steps * least <= longest_seconds:
            self._file = _written(self._variables, self._dtypes)

    def __enter__(self) -> FitStart:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def restore(self) -> bool:
        """Restore the state. Returns whether all of it could be restored, so that the fit can run again."""
        self._python.restore()
        self._generators.restore()
        for restore in self._others:
            restore()
        for name, value in self._attributes.items():
            setattr(self._model, name, value)
        if self._file is None:
            return False
        self._file.seek(0)
        for variable, dtype in zip(self._variables, self._dtypes, strict=True):
            variable.assign(np.load(self._file).view(dtype))
        known = {id(variable) for variable in self._variables}
        later = [variable for variable in variables_of(self._model) if id(variable) not in known]
        return not later or _reset_optimizers(self._model, {id(variable) for variable in later})

    def require(self) -> None:
        """Restore the state. AutoplanError if not all of it can be restored."""
        if not self.restore():
            raise AutoplanError("a callback writes, and the fit could not be taken back to its start to run without it")


def variables_of(model: Any) -> list[Any]:
    """Return the variables of a model and of all its optimizers, with the state of the shared seed generator."""
    found = list(model.variables)
    for optimizer in _optimizers(model):
        found += [*optimizer.variables, *innermost(optimizer).variables]
    shared = global_state.get_global_attribute("global_seed_generator")
    found += [] if shared is None else [shared.state]
    return list({id(variable): variable for variable in found}.values())


def _optimizers(model: Any) -> list[Any]:
    """Return the optimizer of `compile` and those that the model has as attributes."""
    own = getattr(model, "optimizer", None)
    attributes = [one for one in vars(model).values() if isinstance(one, keras.optimizers.Optimizer)]
    return list({id(one): one for one in ([] if own is None else [own]) + attributes}.values())


def _build_optimizer(model: Any) -> None:
    """Build the optimizer as `fit` does, so that the values with which it begins are known."""
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and not optimizer.built and model.built and model.trainable_variables:
        with keras.name_scope(optimizer.name, caller=optimizer):
            optimizer.build(model.trainable_variables)


def _reset_optimizers(model: Any, later: set[int]) -> bool:
    """Reset variables that optimizers have created during the fit; return whether these are all later variables."""
    for optimizer in map(innermost, _optimizers(model)):
        if not later & {id(variable) for variable in optimizer.variables}:
            continue
        fresh = type(optimizer).from_config(optimizer.get_config())
        fresh.build(optimizer._trainable_variables)
        for variable, value in zip(optimizer.variables, fresh.variables, strict=True):
            if id(variable) in later:
                variable.assign(value)
                later.discard(id(variable))
    return not later


def _micro_steps(fit: TrialFit) -> float | None:
    """Return about how many micro-steps the fit has under the trial's batch; None if its data do not say."""
    per_epoch, arguments = fit.facts.micro_steps, fit.call.arguments
    if per_epoch is None:
        return None
    return per_epoch * fit.facts.batch / fit.global_batch * (arguments.get("epochs", 1))


def _data(fit: TrialFit) -> list[Any]:
    """Return the data whose attributes a fit may change."""
    x = fit.call.arguments.get("x")
    return [x] if isinstance(x, keras.utils.PyDataset) else []


def _plain_attributes(model: Any) -> dict[str, Any]:
    """Return numbers and texts that the model's own class keeps, such as a count of micro-steps."""
    of_keras = vars(keras.Model()).keys() | vars(keras.Sequential()).keys()
    return {name: value for name, value in vars(model).items() if isinstance(value, _PLAIN) and name not in of_keras}


def _other_tensors(model: Any) -> list[Callable[[], None]]:
    """Return functions that restore tensors that are no variables of Keras: buffers and variables of the backend."""
    restore: list[Callable[[], None]] = []
    if keras.backend.backend() == "torch":
        restore += [partial(_copy_tensor, buffer, buffer.detach().clone()) for buffer in model.buffers()]
    tensorflow = sys.modules.get("tensorflow")
    if keras.backend.backend() == "tensorflow" and tensorflow is not None:
        for layer in model._flatten_layers():
            own = [value for value in vars(layer).values() if isinstance(value, tensorflow.Variable)]
            restore += [partial(variable.assign, variable.numpy()) for variable in own]
    return restore


def _copy_tensor(tensor: Any, value: Any) -> None:
    tensor.data.copy_(value)


def _value(variable: Any) -> np.ndarray[Any, Any]:
    return np.array(keras.ops.convert_to_numpy(variable.value))


def _written(variables: list[Any], dtypes: list[Any]) -> IO[bytes] | None:
    """Write the values of variables to a temporary file, and add their types to `dtypes`; None if it has no room."""
    file = tempfile.TemporaryFile(prefix="autoplan-")  # noqa: SIM115 -- it is read when the fit begins again
    try:
        for variable in variables:
            value = _value(variable)
            dtypes.append(value.dtype)
            np.save(file, value.view(f"V{value.dtype.itemsize}") if value.dtype.kind == "V" else value)
    except OSError:
        file.close()
        return None
    return file
