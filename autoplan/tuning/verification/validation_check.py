"""Decides whether the validation of a fit fits, apart from its training, and how many rows at once would fit.

Validation is a forward pass on as many rows as the script says, whatever the configuration, so it is judged once for
all of them: by its estimate where that is sure to fit and the user sets no limit, else by a run.
"""

from __future__ import annotations

from autoplan import formatting
from autoplan.jobs.messages import Observation
from autoplan.jobs.runner import JobRunner
from autoplan.plan.records import Evidence, ValidationMemory
from autoplan.tuning.candidate_estimate import CandidateEstimate
from autoplan.tuning.request import Event, Watch
from cost_models.config import TrainConfig
from cost_models.estimate import Validation

MOST_TRIES = 4
"""Numbers of rows that are run at most, the script's own included."""


def by_estimate(
    observation: Observation, estimate: CandidateEstimate | None, *, sure: bool = False
) -> ValidationMemory | None:
    """Return what the estimate says of the validation; None where there is no estimate of it.

    sure  None, too, where the estimate leaves it open or finds it too large: then a run decides
    """
    found = None if estimate is None else estimate.analytic.validation
    if found is None or observation.validation is None or (sure and not found.fits):
        return None
    return ValidationMemory(
        rows=found.rows,
        fits=found.fits,
        evidence=Evidence.ANALYTIC,
        needed_bytes=found.memory.total_high,
        fitting_rows=_settable(observation, found),
    )


def check(
    jobs: JobRunner,
    observation: Observation,
    estimate: CandidateEstimate | None,
    config: TrainConfig,
    watch: Watch,
    *,
    limited: bool,
) -> ValidationMemory | None:
    """Return whether validation fits beside a training that runs under `config`; None where nothing is known.

    limited  whether the user limits the memory: then the validation is run, whatever the estimate says
    """
    seen = observation.validation
    if seen is None or not seen.fixed:  # as many rows as the training takes, and a forward pass takes less
        return None
    if not limited:
        sure = by_estimate(observation, estimate, sure=True)
        if sure is not None or by_estimate(observation, estimate) is None:
            return sure
    watch(Event("stage", f"running a batch of the validation, {seen.rows:,} rows at once"))
    began = jobs.clock.elapsed()
    failure = jobs.validate(config)
    if failure is None or not failure.out_of_memory:
        return None if failure is not None else _ran(seen.rows)
    found = ValidationMemory(rows=seen.rows, fits=False, evidence=Evidence.MEASURED, needed_bytes=failure.held_bytes)
    if not seen.settable:
        return found
    rows = _rows_that_ran(jobs, seen.rows, estimate, config, seconds=jobs.clock.elapsed() - began)
    # A forward pass on the rows of a micro-step takes less than that micro-step, which ran.
    fitting = rows or min(config.batch.global_size, seen.rows - 1) or None
    return found.model_copy(update={"fitting_rows": fitting, "fitting_ran": rows is not None})


def _ran(rows: int) -> ValidationMemory:
    return ValidationMemory(rows=rows, fits=True, evidence=Evidence.MEASURED)


def _rows_that_ran(
    jobs: JobRunner, own: int, estimate: CandidateEstimate | None, config: TrainConfig, *, seconds: float
) -> int | None:
    """Run fewer rows at once until they fit, beginning with those that the estimate says fit; None if none did.

    own      rows of the script
    seconds  time that a run takes
    """
    estimated = None if estimate is None else estimate.analytic.validation
    rows = (estimated and estimated.fitting_rows) or own // 2
    for _ in range(MOST_TRIES - 1):
        if rows < 1 or not jobs.clock.allows(seconds):
            return None
        failure = jobs.validate(config, rows=rows)
        if failure is None:
            return rows
        if not failure.out_of_memory:
            return None
        rows //= 4
    return None


def verdict(found: ValidationMemory, usable_bytes: int) -> str | None:
    """Return a sentence on a validation that does not fit in the memory of a device; None for one that fits."""
    if found.fits:
        return None
    needs = ""
    if found.needed_bytes is not None:
        least = "held" if found.evidence is Evidence.MEASURED else "needs up to"
        needs = f" (it {least} {formatting.size(found.needed_bytes)}, {found.evidence.value})"
    words = f"Training fits, validation ({found.rows:,} rows at once) does not fit in {formatting.size(usable_bytes)}"
    if found.fitting_rows is None:
        return f"{words}{needs}: use smaller batches of validation data"
    unproved = ", which no run has tried" if found.evidence is Evidence.MEASURED else ""
    ran = ", which was run and fits" if found.fitting_ran else unproved
    return f"{words}{needs}: set validation_batch_size={found.fitting_rows}{ran}"


def _settable(observation: Observation, found: Validation) -> int | None:
    seen = observation.validation
    return found.fitting_rows if seen is not None and seen.settable else None
