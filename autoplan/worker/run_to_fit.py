"""Runs a source in a worker up to the awaited `fit`, or raises an error that says why the fit was not reached."""

from __future__ import annotations

import traceback
from numbers import Real
from pathlib import Path
from typing import Any

from autoplan.errors import FIRST_EXCEPTION, SCRIPT_RAISED, AutoplanError, ConfigError, NeverFits, ScriptFailed
from autoplan.jobs.client import SEE_OUTPUT
from autoplan.jobs.messages import Job
from autoplan.runtime import model_facts
from autoplan.runtime.data.fit_arguments import FitArguments
from autoplan.runtime.run_source import OnBuilder, run_source
from autoplan.runtime.user_code.failure_reason import is_wrapped_by_keras, reason
from autoplan.sources.keras_backend import backend_in_script
from autoplan.sources.source import SourceSpec
from autoplan.worker.custom_loops import custom_loop_functions


class InsideFit(Exception):
    """Wraps an exception from inside the awaited `fit`, to distinguish it from exceptions of the script."""


def run(source: SourceSpec, on_builder: OnBuilder, *, directory: str | None, under: str | None = None) -> None:
    """Run a source. Returns only if nothing has ended the process on the way.

    under   what differs from a run of the source by itself, as `circumstances` describes it; None: nothing

    ScriptFailed if the source raises an exception before its fit. MemoryError passes through.
    """
    try:
        run_source(source, on_builder, directory=directory)
    except (AutoplanError, MemoryError, InsideFit):
        raise
    except SystemExit as error:
        if error.code not in (None, 0):
            raise exited_early(source, error) from None
    except BaseException as error:
        raise script_failed(source, error, under) from error


def circumstances(job: Job) -> str | None:
    """Return in which way a job runs its source differently from the source by itself; None where it does not."""
    source, config, own = job.source, job.config, job.baseline
    written = None if source is None or source.kind != "script" else backend_in_script(source.path)
    backend = written.name if own is None and written is not None else None if own is None else own.backend
    if backend not in (None, job.backend):
        return f"on {job.backend} instead of {backend}"
    if own is None or config is None or config == own:
        return None
    return f"under {config.describe()}"


def exited_early(source: SourceSpec, error: SystemExit) -> ScriptFailed:
    """Return the error for a script that called `sys.exit`, with its message or its exit code."""
    if not isinstance(error.code, int):  # a text or an exception, which Python prints
        return ScriptFailed(f"{source.path} called sys.exit before its fit: {error.code}")
    return ScriptFailed(f"{source.path} exited with code {error.code} before its fit{SEE_OUTPUT}")


def check_fit(source: SourceSpec | None, index: int, model: Any, arguments: FitArguments) -> None:
    """Raise ScriptFailed for a fit that Keras would reject, but that would otherwise run differently here."""
    where = f"fit {index}" + (f" of {source.path}" if source else "")
    if not getattr(model, "compiled", True):
        raise ScriptFailed(f"{where} trains a model that is not compiled; call model.compile(...) first")
    wrong_step = model_facts.why_step_cannot_run(model)
    if wrong_step:
        raise ScriptFailed(f"{where} trains a model whose {wrong_step}")
    batch: object = arguments.get("batch_size")  # a script may pass anything
    if batch is not None and not (isinstance(batch, Real) and float(batch) >= 1 and float(batch).is_integer()):
        raise ScriptFailed(f"{where} has batch_size={batch!r}; expected a whole number of at least 1")


def refuse_shapes(source: SourceSpec | None) -> None:
    """Raise ConfigError where shapes of inputs were given for a training that has data."""
    if source is not None and source.input_shapes:
        raise ConfigError(
            f"--input-shape is for models without data, and {source.path} trains on data, whose shapes count; leave "
            "the option out"
        )


def no_samples(source: SourceSpec | None, index: int) -> ScriptFailed:
    """Return the error for a fit whose data are empty, for which Keras only raises StopIteration."""
    where = f"fit {index}" + (f" of {source.path}" if source else "")
    return ScriptFailed(f"{where} has no samples to train on; expected data with at least one")


def never_fits(source: SourceSpec, fits: int) -> NeverFits:
    """Return the error for a script that ended before the awaited `fit`."""
    if fits:
        choices = "--fit 1" if fits == 1 else f"--fit 1 to --fit {fits}"
        times = "once" if fits == 1 else f"{fits} times"
        return NeverFits(f"{source.path} calls fit {times}, but fit {source.fit_index} was requested; use {choices}")
    loops = custom_loop_functions(source)
    if loops:
        return NeverFits(
            f"{source.path} trains with a custom loop ({', '.join(loops)}) and never calls model.fit, which autoplan "
            "tunes; move the loop's body into a model's train_step, or give a file with build_model(). To measure the "
            "loop as it is, call autoplan.measure(step, batch) in the script"
        )
    return NeverFits(
        f"{source.path} ended without calling model.fit; expected a script that trains, or a file with build_model(). "
        "If it needs arguments, give them after --"
    )


def script_failed(source: SourceSpec, error: BaseException, under: str | None = None) -> ScriptFailed:
    """Return the error for an exception of the source: why in the first line, then its own frames and the whole text.

    under  what differs from a run of the source by itself; None: nothing, so the source itself is at fault
    """
    folder = Path(source.path).parent
    root = str(Path.cwd() if source.module or folder == Path() else folder)
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename.startswith(root) and "site-packages" not in frame.filename]
    shown = "".join(traceback.format_list(own or frames[-2:]))
    text = "".join(traceback.format_exception_only(error)).strip() + _original_error(error)
    if isinstance(error, ImportError) and "attempted relative import" in str(error) and not source.module:
        text += f"\n{_module_advice(Path(source.path))}"
    if isinstance(error, EOFError):
        text += (
            "\nThe script reads input, but trials have no input; let it read arguments instead, and give them after --"
        )
    failed = SCRIPT_RAISED if under is None else f"failed {under}"
    return ScriptFailed(f"{source.path} {failed}: {reason(error)}\n{shown}{text}")


def _module_advice(path: Path) -> str:
    """Return how to run a file with relative imports as a module of its package."""
    inside = [path.parent]
    while (inside[-1].parent / "__init__.py").exists():
        inside.append(inside[-1].parent)
    name = ".".join([*(folder.name for folder in reversed(inside)), path.stem])
    return f"Relative imports only work in a package: give {name} instead of the file, and run from {inside[-1].parent}"


def _original_error(error: BaseException) -> str:
    """Describe the first exception of a chain if Keras only reports the last one.

    JAX may raise another exception while it formats the message of the first.
    """
    first = error
    while (before := first.__cause__ or first.__context__) is not None:
        first = before
    message = str(first).strip().partition("\n")[0]
    if message in str(error) or not is_wrapped_by_keras(error):
        return ""
    return f"\n{FIRST_EXCEPTION} {type(first).__name__}: {message}"
