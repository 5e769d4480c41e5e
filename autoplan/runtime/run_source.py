"""Runs a source in this process: a script as `__main__`, or a builder or packed model given to a callback."""

from __future__ import annotations

import importlib
import importlib.util
import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from autoplan.errors import SourceError
from autoplan.runtime.data.fit_arguments import FitArguments
from autoplan.runtime.live_models import package
from autoplan.sources import pickling
from autoplan.sources.source import SourceSpec

OnBuilder = Callable[[Any, FitArguments], Any]


def run_source(source: SourceSpec, on_builder: OnBuilder, *, directory: str | None = None) -> None:
    """Run a source to its end. A script calls `fit` itself.

    on_builder  called with the model of a builder and its arguments of `fit`
    directory   working directory, instead of the one that the source expects; created if necessary

    SourceError if the builder is missing or does not return a compiled model.
    """
    if directory is not None:
        Path(directory).mkdir(parents=True, exist_ok=True)
    if directory or source.directory:
        os.chdir(directory or source.directory)
    if source.kind == "script":
        _run_script(source)
    else:
        on_builder(*_call_builder(source))


def _run_script(source: SourceSpec) -> None:
    sys.argv = [source.path, *source.args]
    if source.module is not None:
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(source.module, run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(source.path).parent))
        runpy.run_path(source.path, run_name="__main__")


def _call_builder(source: SourceSpec) -> tuple[Any, FitArguments]:
    if source.kind == "instance":
        model, data = package.unpack(source.payload or "")
        return model, _fit_arguments(data() if callable(data) else data)
    builder, data = _load_builder(source)
    model = builder()
    name = f"{source.function}()" if source.kind == "builder" else source.path
    if not hasattr(model, "fit"):
        raise SourceError(f"{name} returned {type(model).__name__}; expected a compiled keras.Model")
    if not getattr(model, "compiled", False):
        raise SourceError(
            f"{name} returned a model that is not compiled; "
            "call model.compile(optimizer=..., loss=...) before returning it"
        )
    return model, _fit_arguments(data() if callable(data) else data)


def _load_builder(source: SourceSpec) -> tuple[Callable[[], Any], Any]:
    if source.kind == "callable":
        return pickling.unpack(source.payload or "")
    module = _import(source)
    builder = getattr(module, source.function, None)
    if not callable(builder):
        raise SourceError(
            f"{source.path} has no function {source.function}(); expected one that returns a compiled model"
        )
    return builder, getattr(module, "train_data", None)


def _import(source: SourceSpec) -> Any:
    if source.module is not None:
        sys.path.insert(0, str(Path.cwd()))
        return importlib.import_module(source.module)
    path = Path(source.path)
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise SourceError(f"{source.path} cannot be imported; expected a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _fit_arguments(given: Any) -> FitArguments:
    """Return arguments of `fit` from data: a dict of them, (x, y[, sample_weight]), or a value of x."""
    if given is None:
        return {}
    if isinstance(given, dict) and "x" in given:
        return cast("FitArguments", given.copy())
    if isinstance(given, tuple):
        return cast("FitArguments", dict(zip(("x", "y", "sample_weight"), given, strict=False)))
    return {"x": given}
