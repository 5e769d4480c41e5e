"""Record the variables of a training while it runs, with or without autoplan, and without any code of autoplan.

Python imports this module at the start of every process that has this folder on its PYTHONPATH. It wraps
`keras.Model.fit` as soon as Keras is imported, so that a fit has one more callback. Variables of the environment:

SAME_TRAINING_RECORD   path of the record, without its ending: variables go to `.npz`, everything else to `.json`
SAME_TRAINING_FIT      number of the fit that is recorded
SAME_TRAINING_AT       numbers of updates after which the variables are recorded, separated by commas
SAME_TRAINING_SEED     is added to the seed of the script
SAME_TRAINING_ROUNDING a seed: each initial weight is moved by one unit in its last place, up or down at random
SAME_TRAINING_SPLIT    splits each batch of arrays into so many micro-steps with Keras's own gradient accumulation
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import json
import os
import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

MOST_UPDATES = 160
"""The fit is stopped here if it is longer."""


class AfterImport:
    """A finder that calls a function with the module `keras` once that is imported."""

    def __init__(self, call: Callable[[ModuleType], None]) -> None:
        self._call = call

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        if name != "keras":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def run_and_call(module: ModuleType) -> None:
            run(module)
            self._call(module)

        spec.loader.exec_module = run_and_call  # type: ignore[method-assign]
        return spec


def install(keras: Any) -> None:
    """Seed Keras, so that scripts without a seed can be compared too, and wrap `keras.Model.fit`."""
    _offset_seed(keras, int(os.environ.get("SAME_TRAINING_SEED", "0")))
    keras.utils.set_random_seed(0)
    original, inside, seen = keras.Model.fit, [False], [0]

    @functools.wraps(original)
    def fit(model: Any, *given: Any, **named: Any) -> Any:
        if inside[0]:  # a fit that a subclass or a callback calls
            return original(model, *given, **named)
        seen[0] += 1
        if seen[0] != int(os.environ.get("SAME_TRAINING_FIT", "1")):
            return original(model, *given, **named)
        bound = inspect.signature(original).bind(model, *given, **named)
        full = None
        if "SAME_TRAINING_SPLIT" in os.environ:
            full = _split(model, bound.arguments, int(os.environ["SAME_TRAINING_SPLIT"]))
        callbacks = bound.arguments.get("callbacks")
        recorder = Recorder(keras, model, full).callback()
        if isinstance(callbacks, keras.callbacks.CallbackList):
            callbacks.append(recorder)
        else:
            own = callbacks if isinstance(callbacks, list | tuple) else [callbacks]
            bound.arguments["callbacks"] = [*filter(None, own), recorder]
        inside[0] = True
        try:
            return original(*bound.args, **bound.kwargs)
        finally:
            inside[0] = False

    keras.Model.fit = fit


def _split(model: Any, arguments: dict[str, Any], parts: int) -> int:
    """Split the updates of a fit of arrays. Returns the number of full updates in its first epoch."""
    batch, optimizer = int(arguments.get("batch_size") or 32), model.optimizer
    if arguments.get("steps_per_epoch") or not all(hasattr(one, "shape") for one in _leaves(arguments["x"])):
        raise RuntimeError("only a fit of arrays is split here")
    if optimizer.built or optimizer.gradient_accumulation_steps or batch % parts:
        raise RuntimeError("an optimizer that is built, or accumulates already, or an odd batch is not split here")
    arguments["batch_size"] = batch // parts
    optimizer.gradient_accumulation_steps = parts
    samples = int(len(_leaves(arguments["x"])[0]) * (1 - float(arguments.get("validation_split") or 0)))
    return samples // batch


def _leaves(x: Any) -> list[Any]:
    return list(x.values() if isinstance(x, dict) else x if isinstance(x, list | tuple) else [x])


def _offset_seed(keras: Any, by: int) -> None:
    if not by:
        return
    original = keras.utils.set_random_seed

    def set_random_seed(seed: int) -> None:
        original(seed + by)

    keras.utils.set_random_seed = set_random_seed
    sys.modules["keras.src.utils.rng_utils"].set_random_seed = set_random_seed  # type: ignore[attr-defined]


class Recorder:
    """Records all variables at the start, after some numbers of updates, and at the end.

    An update is a change of a trainable variable between two micro-steps. If the program runs several micro-steps at
    once, the optimizer's counter is read instead.
    """

    def __init__(self, keras: Any, model: Any, full_updates: int | None) -> None:
        self._keras, self._model, self._full_updates = keras, model, full_updates
        self._arrays: dict[str, Any] = {}
        self._losses: dict[int, float] = {}
        self._updates = self._calls = self._counted_before = 0
        self._wanted = [int(one) for one in os.environ.get("SAME_TRAINING_AT", "20").split(",")]
        self._last: list[Any] = []
        self._loss = float("nan")

    def callback(self) -> Any:
        return self._keras.callbacks.LambdaCallback(
            on_train_begin=self._begin, on_train_batch_end=self._after_micro_steps, on_train_end=self._end
        )

    def _begin(self, logs: Any) -> None:
        self._record("start")
        if "SAME_TRAINING_ROUNDING" in os.environ:
            self._move_by_rounding()
        self._counted_before = self._counted()
        self._last = [self._value(one) for one in self._model.trainable_variables]

    def _after_micro_steps(self, batch: int, logs: Any) -> None:
        if hasattr(self._model, "jax_state_sync"):
            self._model.jax_state_sync()
        self._calls += 1
        now = [self._value(one) for one in self._model.trainable_variables]
        changed = any((one != other).any() for one, other in zip(now, self._last, strict=True))
        self._last = now
        counted = self._counted() - self._counted_before
        several = getattr(self._model, "steps_per_execution", 1) > 1
        before, self._updates = self._updates, counted if several and counted else self._updates + changed
        self._loss = float((logs or {}).get("loss", float("nan")))
        # Several updates may be over at once: the number that is reached stands for those before it.
        if any(before < one <= self._updates for one in self._wanted):
            self._record(str(self._updates))
        if self._updates >= MOST_UPDATES:
            self._model.stop_training = True

    def _end(self, logs: Any) -> None:
        import numpy as np

        self._record("end")
        path = os.environ["SAME_TRAINING_RECORD"]
        np.savez(f"{path}.npz", **self._arrays)
        facts = {
            "paths": [one.path for one in self._model.variables],
            "trainable": [bool(one.trainable) for one in self._model.variables],
            "updates": self._updates,
            "counted": self._counted() - self._counted_before,
            "calls": self._calls,
            "accumulation": getattr(self._model.optimizer, "gradient_accumulation_steps", None),
            "steps_per_execution": getattr(self._model, "steps_per_execution", 1),
            "losses": self._losses,
            "full_updates": self._full_updates,
        }
        Path(f"{path}.json").write_text(json.dumps(facts), encoding="utf-8")

    def _record(self, name: str) -> None:
        for index, variable in enumerate(self._model.variables):
            self._arrays[f"{name}:{index}"] = self._value(variable)
        self._losses[self._updates] = self._loss

    def _value(self, variable: Any) -> Any:
        value = self._keras.ops.convert_to_numpy(variable.value)
        return value.astype("int64" if value.dtype.kind in "iub" else "float64")

    def _counted(self) -> int:
        optimizer = self._model.optimizer
        while hasattr(optimizer, "inner_optimizer"):
            optimizer = optimizer.inner_optimizer
        return int(getattr(optimizer, "iterations", 0))

    def _move_by_rounding(self) -> None:
        import numpy as np

        draws = np.random.default_rng(int(os.environ["SAME_TRAINING_ROUNDING"]))
        for variable in self._model.trainable_variables:
            value = np.array(self._keras.ops.convert_to_numpy(variable.value))
            if value.dtype == np.float32:
                towards = np.where(draws.random(value.shape) < 0.5, np.float32(-np.inf), np.float32(np.inf))
                variable.assign(np.where(value == 0, value, np.nextafter(value, towards)))


def run_the_next() -> None:
    """Run the next `sitecustomize` on the path, of which Python imports only the first."""
    own = Path(__file__).resolve()
    others = (Path(folder) / own.name for folder in sys.path)
    for path in others:
        if path.is_file() and path.resolve() != own:
            runpy.run_path(str(path))
            return


run_the_next()  # which may have a finder for Keras as well, that has to come after this one
if "SAME_TRAINING_RECORD" in os.environ:
    sys.meta_path.insert(0, AfterImport(install))
