"""A source in a worker: run up to its `fit`, and explained to its author where it does not get there."""

from __future__ import annotations

import traceback
from numbers import Real
from pathlib import Path
from typing import Any

import keras

from autoplan.errors import FAILED_BY_ITSELF, AutoplanError, NeverFits, ScriptFailed
from autoplan.jobs.client import SEE_OUTPUT
from autoplan.runtime.run_source import OnBuilder, run_source
from autoplan.sources.source import SourceSpec
from autoplan.worker.custom_loops import own_loops
from cost_models.config import Batch

SYNTHETIC_BATCH = 32
_SYNTHETIC_BYTES = 64 * 2**20
_SYNTHETIC_MICRO_STEPS = 256
"""What an epoch's end costs is then less than one in two hundred of what is measured, unless the arrays get too large.
"""


class InsideFit(Exception):
    """Carries what went wrong inside the awaited `fit` past the script's own frames, as not the script's fault."""


def run_to_fit(source: SourceSpec, on_builder: OnBuilder, *, directory: str | None) -> None:
    """Run a source; returns only if nothing left the process on the way.

    ScriptFailed when the source raised by itself before its fit was reached. A MemoryError passes as it is.
    """
    try:
        run_source(source, on_builder, directory=directory)
    except (AutoplanError, MemoryError, InsideFit):
        raise
    except SystemExit as error:
        if error.code not in (None, 0):
            raise left_early(source, error) from None
    except BaseException as error:
        raise failed(source, error) from error


def left_early(source: SourceSpec, error: SystemExit) -> ScriptFailed:
    """The error for a script that ended itself: what it said is in `sys.exit`'s own text, or in its output."""
    if not isinstance(error.code, int):  # what Python prints on the way out: a text, or an exception
        return ScriptFailed(f"{source.path} ended itself before its fit: {error.code}")
    return ScriptFailed(f"{source.path} left with exit code {error.code} before its fit{SEE_OUTPUT}")


def check_fit(source: SourceSpec | None, index: int, model: Any, arguments: dict[str, Any]) -> None:
    """ScriptFailed for a fit that Keras would refuse at once, and that could be taken for another one here."""
    where = f"fit {index}" + (f" of {source.path}" if source else "")
    if not getattr(model, "compiled", True):
        raise ScriptFailed(f"{where} is of a model that was never compiled; call model.compile(...) before it")
    batch = arguments.get("batch_size")
    if batch is not None and not (isinstance(batch, Real) and float(batch) >= 1 and float(batch).is_integer()):
        raise ScriptFailed(f"{where} has batch_size={batch!r}; expected a whole number of at least 1")


def no_samples(source: SourceSpec | None, index: int) -> ScriptFailed:
    """The error for a fit whose data are empty: Keras only says that an iteration stopped."""
    where = f"fit {index}" + (f" of {source.path}" if source else "")
    return ScriptFailed(f"{where} has no samples to train on; expected data with at least one")


def never_fits(source: SourceSpec, fits: int) -> NeverFits:
    """The error for a script that ended before the awaited `fit`."""
    if fits:
        choices = "--fit 1" if fits == 1 else f"--fit 1 to --fit {fits}"
        times = "once" if fits == 1 else f"{fits} times"
        return NeverFits(f"{source.path} calls fit {times}, and fit {source.fit_index} was asked for; use {choices}")
    loops = own_loops(source)
    if loops:
        return NeverFits(
            f"{source.path} trains with a loop of its own ({', '.join(loops)}) and never calls model.fit, which is "
            "what autoplan watches; move the loop's body into a model's train_step, or give a file with build_model(). "
            "autoplan.measure(step, batch), called in the script, measures such a loop as it is"
        )
    return NeverFits(
        f"{source.path} ended without calling model.fit; expected a script that trains, or a file with build_model(). "
        "If it needs arguments to train, give them after --"
    )


def failed(source: SourceSpec, error: BaseException) -> ScriptFailed:
    """The source's own failure, its traceback shortened to its own frames."""
    folder = Path(source.path).parent
    root = str(Path.cwd() if source.module or folder == Path() else folder)
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename.startswith(root) and "site-packages" not in frame.filename]
    shown = "".join(traceback.format_list(own or frames[-2:]))
    reason = "".join(traceback.format_exception_only(error)).strip() + _began_as(error)
    if isinstance(error, ImportError) and "attempted relative import" in str(error) and not source.module:
        reason += f"\n{_as_a_module(Path(source.path))}"
    if isinstance(error, EOFError):
        reason += "\nNobody types in a trial: let the script take its answers from arguments, and give them after --"
    return ScriptFailed(f"{source.path} {FAILED_BY_ITSELF}:\n{shown}{reason}")


def _as_a_module(path: Path) -> str:
    """How to name a file that imports its neighbours by their places in a package."""
    inside = [path.parent]
    while (inside[-1].parent / "__init__.py").exists():
        inside.append(inside[-1].parent)
    name = ".".join([*(folder.name for folder in reversed(inside)), path.stem])
    return (
        f"Relative imports work inside a package alone: name it {name} in place of its file, from {inside[-1].parent}"
    )


def _began_as(error: BaseException) -> str:
    """The first of several exceptions, where Keras tells only the last: JAX may fail while it words what went wrong."""
    first = error
    while (before := first.__cause__ or first.__context__) is not None:
        first = before
    told = str(first).strip().partition("\n")[0]
    if told in str(error) or not str(error).startswith("Exception encountered when calling"):
        return ""
    return f"\nIt began as {type(first).__name__}: {told}"


def synthetic_arguments(model: Any, batch_size: int, wanted: Batch | None = None) -> dict[str, Any]:
    """Arrays of the model's own input and target specs, for a builder without data.

    wanted  the batch that is measured instead of `batch_size`: the arrays are whole updates of it, since a batch that
            they do not fill would be a smaller one than it says
    """
    from autoplan.worker.synthetic_data import synthetic_batch

    wanted = wanted or Batch(batch_size)
    row_bytes = sum(
        int(leaf.nbytes) for leaf in keras.tree.flatten(synthetic_batch(model, 1, seed=0)) if leaf is not None
    )
    most = min(_SYNTHETIC_MICRO_STEPS // wanted.accumulation, _SYNTHETIC_BYTES // max(1, row_bytes * wanted.effective))
    least = 1 if wanted.accumulation > 1 else 2
    x, y = synthetic_batch(model, wanted.effective * max(least, most), seed=0)
    return {"x": x, "y": y, "batch_size": batch_size, "verbose": 0}
