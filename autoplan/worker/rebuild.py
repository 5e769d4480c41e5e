"""A SourceSpec -> a call of `fit`, in this process: the script run as `__main__`, or the builder called."""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
import runpy
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autoplan import shipping
from autoplan.errors import AutoplanError, NeverFits, ScriptFailed, SourceError
from autoplan.source import SourceSpec

SYNTHETIC_BATCH = 32
_SYNTHETIC_BYTES = 64 * 2**20
_LOOP_WORDS = ("train_on_batch", "GradientTape", "value_and_grad", "stateless_apply", "stateless_call", ".backward(")


def run_source(source: SourceSpec, on_builder: Callable[[Any, dict[str, Any]], Any]) -> None:
    """Run a source until it ends. A script reaches `fit` by itself; a builder's model and data go to `on_builder`.

    Returns only if nothing left the process on the way. ScriptFailed: the source raised; NeverFits: a script went
    through without calling fit often enough (the caller knows how often).
    """
    if source.directory:
        os.chdir(source.directory)
    if source.kind == "script":
        _run_script(source)
    else:
        model, arguments = _call_builder(source)
        on_builder(model, arguments)


def never_fits(source: SourceSpec, fits: int) -> NeverFits:
    """The error for a script that ended before the wanted `fit`."""
    if fits:
        return NeverFits(
            f"{source.path} called fit {fits} time{'s' if fits > 1 else ''}, and fit {source.fit_index} was asked for; "
            f"use --fit 1{f' to --fit {fits}' if fits > 1 else ''}"
        )
    text = Path(source.path).read_text(errors="replace") if source.path and os.path.isfile(source.path) else ""
    loops = [word for word in _LOOP_WORDS if word in text]
    if loops:
        return NeverFits(
            f"{source.path} trains with a loop of its own ({', '.join(loops).strip('.(')}), not with model.fit; autoplan watches "
            "model.fit. Move the training step into a model's train_step, or give a file with build_model()"
        )
    return NeverFits(
        f"{source.path} ended without calling model.fit; expected a script that trains, or a file with build_model(). "
        "If it needs arguments to train, give them after --"
    )


def _run_script(source: SourceSpec) -> None:
    sys.argv = [source.path or str(source.module), *source.args]
    try:
        if source.module is not None:
            sys.path.insert(0, os.getcwd())
            runpy.run_module(source.module, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(Path(source.path).resolve().parent))
            runpy.run_path(source.path, run_name="__main__")
    except AutoplanError:
        raise
    except SystemExit as error:
        if error.code not in (None, 0):
            raise ScriptFailed(f"{source.path} left with exit code {error.code} before fit; its last words are in the log") from None
    except MemoryError:
        raise
    except BaseException as error:
        raise failed(source, error) from error


def failed(source: SourceSpec, error: BaseException) -> ScriptFailed:
    """The source's own failure, its traceback shortened to its own frames."""
    root = str(Path(source.path).resolve().parent) if source.path else os.getcwd()
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if _is_own(frame.filename, root, source)]
    shown = "".join(traceback.format_list(own or frames[-2:]))
    reason = "".join(traceback.format_exception_only(error)).strip()
    return ScriptFailed(f"{source.path or 'the builder'} failed by itself:\n{shown}{reason}")


def _is_own(filename: str, root: str, source: SourceSpec) -> bool:
    resolved = os.path.abspath(filename)
    return resolved.startswith(root) and "site-packages" not in resolved or filename == source.path


def _call_builder(source: SourceSpec) -> tuple[Any, dict[str, Any]]:
    builder, data = _load_builder(source)
    try:
        model = builder()
        given = data() if callable(data) else data
    except MemoryError:
        raise
    except Exception as error:
        raise failed(source, error) from error
    name = source.function
    if not hasattr(model, "fit"):
        raise SourceError(f"{name}() returned {type(model).__name__}; expected a compiled keras.Model")
    if not getattr(model, "compiled", False):
        raise SourceError(f"{name}() returned a model that is not compiled; call model.compile(optimizer=..., loss=...) in it")
    return model, _fit_arguments(given)


def _load_builder(source: SourceSpec) -> tuple[Callable[[], Any], Any]:
    if source.kind == "callable":
        return shipping.unpack(source.payload or "")
    module = _import(source)
    builder = getattr(module, source.function, None)
    if not callable(builder):
        raise SourceError(f"{source.path or source.module} has no function {source.function}(); expected build_model()")
    return builder, getattr(module, "train_data", None)


def _import(source: SourceSpec) -> Any:
    try:
        if source.module is not None:
            sys.path.insert(0, os.getcwd())
            return importlib.import_module(source.module)
        path = Path(source.path).resolve()
        sys.path.insert(0, str(path.parent))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None:
            raise SourceError(f"{source.path} cannot be imported; expected a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
        return module
    except (AutoplanError, MemoryError):
        raise
    except BaseException as error:
        raise failed(source, error) from error


def _fit_arguments(given: Any) -> dict[str, Any]:
    """What `train_data` may return: fit's arguments as a dict, (x, y[, sample_weight]), or anything that `fit` takes as x."""
    if given is None:
        return {}
    if isinstance(given, dict) and "x" in given:
        return dict(given)
    if isinstance(given, tuple):
        return dict(zip(("x", "y", "sample_weight"), given, strict=False))
    return {"x": given}


def synthetic_arguments(model: Any, batch_size: int) -> dict[str, Any]:
    """Arrays of the model's own input and target specs, a few batches long, for a builder without data."""
    from autoplan.worker.trace.specs import synthetic_batch

    row_bytes = sum(int(leaf.nbytes) for leaf in _leaves(synthetic_batch(model, 1, seed=0)))
    batches = max(2, min(32, math.floor(_SYNTHETIC_BYTES / max(1, row_bytes * batch_size))))
    x, y = synthetic_batch(model, batch_size * batches, seed=0)
    return {"x": x, "y": y, "batch_size": batch_size, "verbose": 0}


def _leaves(nest: Any) -> list[Any]:
    import keras

    return list(keras.tree.flatten(nest))


