"""Converts the results of jobs to values, or raises them as errors that the user can act on."""

from __future__ import annotations

from pathlib import Path

from autoplan import formatting
from autoplan.errors import SCRIPT_RAISED, AutoplanError, ScriptFailed, SourceError, WorkerError
from autoplan.jobs.client import log_tail
from autoplan.jobs.messages import Answer, JobResult
from autoplan.plan.records import CompilerEvidence, Failure, FailureKind

LINES_SHOWN = 10


def before_compiling(result: JobResult) -> bool:
    """Return whether a job failed, other than by its time limit, before its compiler was asked."""
    failure = result.failure
    return failure is not None and failure.kind is not FailureKind.TIMEOUT and "compile" not in result.phases


def compiler_answer(result: JobResult) -> CompilerEvidence | Failure:
    """Return the compiler's figures, or a Failure: the program is too large, it was refused, or the job failed."""
    if result.value is None:
        failure = result.failure or Failure(kind=FailureKind.CRASH, message="it ended without a result")
        return _of_this_machine(failure) if failure.out_of_memory else failure
    refused, too_large = result.value.get("refused"), result.value.get("too_large")
    if refused is not None:
        return Failure(kind=FailureKind.UNSUPPORTED, message=refused, wall_seconds=result.wall_seconds)
    if too_large is None:
        return CompilerEvidence.model_validate(result.value["evidence"])
    return Failure(
        kind=FailureKind.COMPILE_OOM,
        message=f"the compiler reports that the program does not fit: {too_large['message']}",
        wall_seconds=result.wall_seconds,
        needed_bytes=too_large["needed_bytes"],
        available_bytes=too_large["available_bytes"],
    )


def _of_this_machine(failure: Failure) -> Failure:
    """Return a Failure of this machine: the compiler ran out of memory here, not on the device that it compiles for."""
    message = f"compiling takes more memory than this machine has ({failure.message})"
    return failure.model_copy(update={"kind": FailureKind.CRASH, "message": message, "outside": True})


def value_of(result: JobResult) -> Answer:
    """Return the answer of a job. SourceError where its process ended without an answer, with the end of its output."""
    if result.value is not None:
        return result.value
    failure = result.failure or Failure(kind=FailureKind.CRASH, message="it ended without a result")
    log = Path(failure.log) if failure.log else None
    said = [line for line in log_tail(log).splitlines() if line.strip()][-LINES_SHOWN:]
    output = "\n  ".join(["; the end of its output:", *said]) if said else ""
    raise SourceError(f"the source did not reach its fit ({failure.kind.value}: {failure.message}){output}")


def too_large_to_start(failure: Failure, cause: str) -> str:
    """Return the message where memory runs out before the first micro-step: no setting changes that."""
    held = "" if failure.held_bytes is None else f"more than {formatting.size(failure.held_bytes)} of memory, "
    return (
        f"the training runs out of memory before its first micro-step, while it creates its data and its model "
        f"({failure.message}){cause}. Accumulation, precision and rematerialization only change the memory of a "
        f"micro-step, and a mesh copies the weights to every device, so these do not help here. What "
        f"would fit: {held}a "
        "smaller model, or data that are read when they are needed (np.load with mmap_mode, tf.data, PyDataset)"
    )


def explain_failure(failure: Failure) -> AutoplanError:
    """Return a failure that no tuning can avoid as an error for the user.

    A source that fails before its fit reached it when it was observed, so what that run left behind may be the cause.
    """
    if SCRIPT_RAISED in failure.message:
        return ScriptFailed(
            f"{failure.message}\nIt reached its fit in the first run, so files that this run left behind may be the "
            "cause: every trial runs the source again, and --scratch gives each an empty working directory"
        )
    where = f"; its output is in {failure.log}" if failure.log else ""
    if failure.log:
        failure = failure.model_copy(update={"message": formatting.first_line(failure.message)})
    if failure.outside:
        return WorkerError(f"the training was ended from outside ({failure.message}){where}. Run again to go on")
    return SourceError(
        f"the training fails as it is ({failure.kind.value}: {failure.message}){where}. Make it run by itself, "
        "then tune it"
    )
