"""Asks a worker whether the updates of an observed training may be split and padded, as a few micro-steps show."""

from __future__ import annotations

from autoplan import formatting
from autoplan.jobs.messages import Observation, SplitProbe
from autoplan.jobs.runner import FLOAT32_BYTES, JobRunner
from autoplan.machine import this_machine
from autoplan.plan.records import Failure
from cost_models.config import Precision

MOST_ROWS = 64
"""Rows of a compared update, if the script's batch has as many."""
FEWEST_ROWS = 4
"""Rows of a compared update where more rows do not fit in memory."""
PROBE_SECONDS = 60.0
"""Limit of the micro-steps of a probe; what the script does before fit comes on top."""
BUDGET_SHARE = 0.4
"""Share of the time that is left of a budget that a probe may take."""
_COPIES = 6
"""Arrays of the size of the weights that a probe holds at the same time: weights, gradients, and copies of both."""
_MIXED = (Precision.MIXED_BFLOAT16, Precision.MIXED_FLOAT16)


def with_probe(jobs: JobRunner, found: Observation, *, effective_batch_is_free: bool) -> Observation:
    """Return the observation of a fit with what a probe of its updates found.

    effective_batch_is_free  whether the effective batch may change, and with it the remainder of an epoch

    A probe that fails is no error: its record says why.
    """
    probe = _probed(jobs.with_(baseline=found.config), found, effective_batch_is_free=effective_batch_is_free)
    return found.model_copy(update={"probe": probe})


def _probed(jobs: JobRunner, found: Observation, *, effective_batch_is_free: bool) -> SplitProbe:
    why_not = _why_too_large(found)
    if why_not:
        return SplitProbe(ran=False, split_reason=why_not)
    # In float32 rounding is smaller than the differences that are looked for.
    own = found.config
    config = own.with_(precision=Precision.FLOAT32) if own.precision in _MIXED else own
    options = {"any_remainder": effective_batch_is_free}
    failure = None
    for rows in (MOST_ROWS, FEWEST_ROWS):
        answer = jobs.probe_split(
            config,
            options={**options, "rows": rows},
            limit_seconds=PROBE_SECONDS + 2 * found.setup_seconds,
            budget_share=BUDGET_SHARE,
        )
        if isinstance(answer, SplitProbe):
            return answer
        failure = answer
        if not failure.out_of_memory:
            break
    return SplitProbe(ran=False, split_reason=_reason(failure))


def _why_too_large(found: Observation) -> str:
    needed = found.parameters * FLOAT32_BYTES * _COPIES
    if needed <= this_machine.memory_bytes():
        return ""
    return f"micro-steps of a model of {found.parameters:,} parameters need more memory than this machine has"


def _reason(failure: Failure | None) -> str:
    if failure is None:
        return "it ended without a result"
    return f"its micro-steps did not run ({failure.kind.value}: {formatting.first_line(failure.message)})"
