"""Corrects estimated times of configurations by trials that were measured, and reorders the shortlist by them.

A training step is traced on JAX and priced as XLA would fuse it. Another backend dispatches at another cost and fuses
less, and without a compiler nothing is fused at all; arithmetic knows that roughly, and the first trials know better.
From three trials of a kind on, factors of arithmetic, traffic and the host's work are separated
(`cost_models.calibration`): a host that is slower than predicted speaks for large batches, slow memory does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median

from autoplan.plan.records import TrialRecord
from autoplan.tuning.candidate_estimate import CandidateEstimate
from cost_models.calibration import Calibration, TimePair, calibrate
from cost_models.config import TrainConfig
from cost_models.execution import Executor

WORTH_NOTING = 1.5
"""A correction of less than this, either way, is within what the analytic tier claims."""
TELL_PARTS_APART = 3
"""Number of trials of one kind of execution that separate three parts of a micro-step."""
CLEARLY = 1.25
"""Times the best prediction from which another is clearly beaten: two that are 12% off each, as predictions of
`studies/time_vs_this_cpu` are on average, seldom differ so much the wrong way."""


_AS_PRICED = Executor("jax", jit_compile=True)
"""The one whose program is what is priced: its predictions are the nearest."""


def factors(records: Iterable[TrialRecord]) -> dict[Executor, float]:
    """Return measured over estimated seconds of an update, the median over the trials of each executor."""
    ratios: dict[Executor, list[float]] = {}
    for record in records:
        if record.measurement is not None and record.predicted_update_seconds:
            ratio = record.measurement.update_seconds / record.predicted_update_seconds
            ratios.setdefault(Executor.of(record.config), []).append(ratio)
    return {execution: median(found) for execution, found in ratios.items()}


def calibrations(
    estimates: Mapping[TrainConfig, CandidateEstimate], records: Iterable[TrialRecord]
) -> dict[Executor, Calibration]:
    """Return factors for the parts of a micro-step, for each executor with enough measured and estimated trials."""
    pairs: dict[Executor, list[TimePair]] = {}
    for record in records:
        config = record.config
        estimate = estimates.get(config)
        if record.measurement is not None and estimate is not None:
            observed = record.measurement.micro_step_seconds
            pairs.setdefault(Executor.of(config), []).append(TimePair(estimate.analytic.time, observed))
    return {
        execution: calibrate(found, probed=execution == _AS_PRICED)
        for execution, found in pairs.items()
        if len(found) >= TELL_PARTS_APART
    }


def corrected(
    estimates: Mapping[TrainConfig, CandidateEstimate], records: Sequence[TrialRecord]
) -> Callable[[TrainConfig], float]:
    """Return estimated seconds a sample, corrected by the trials; infinite without an estimate.

    An execution that no trial has shown is taken to be as near its prediction as the best known: it gets its chance.
    """
    known, by_parts = factors(records), calibrations(estimates, records)
    hope = min(known.values(), default=1.0)

    def seconds(config: TrainConfig) -> float:
        estimate, execution = estimates.get(config), Executor.of(config)
        if estimate is None:
            return float("inf")
        predicted = estimate.analytic.time
        if execution in by_parts:
            factor = by_parts[execution].time(predicted).micro_step_seconds / predicted.micro_step_seconds
        else:
            factor = known.get(execution, hope)
        return estimate.seconds_per_sample * factor

    return seconds


def reordered(
    shortlist: Sequence[TrainConfig], estimates: Mapping[TrainConfig, CandidateEstimate], records: Sequence[TrialRecord]
) -> list[TrainConfig]:
    """Return the shortlist by corrected estimate. The first of each mesh and backend stay in front.

    The order stays where nothing was estimated or measured, and where one kind of execution has too few trials for
    more than one factor.
    """
    kinds = {Executor.of(config) for config in shortlist}
    if not factors(records) or not estimates:
        return list(shortlist)
    if len(kinds) < 2 and kinds.isdisjoint(calibrations(estimates, records)):
        return list(shortlist)
    firsts = {(config.mesh, config.backend): config for config in reversed(shortlist)}
    heads = [config for config in shortlist if firsts[config.mesh, config.backend] == config]
    seconds = corrected(estimates, records)
    return [*heads, *sorted((config for config in shortlist if config not in heads), key=seconds)]


def contenders(
    untried: Sequence[TrainConfig],
    estimates: Mapping[TrainConfig, CandidateEstimate],
    records: Sequence[TrialRecord],
    *,
    local_batch: int,
) -> list[TrainConfig]:
    """Return the configurations that may be tried now: those that no better corrected estimate clearly beats.

    Where nothing was estimated, micro-batches below the script's own come last: they launch more for as many samples.
    """
    of = corrected(estimates, records)
    seconds = {one: of(one) for one in untried if one in estimates}
    if seconds:
        return [one for one in untried if one in seconds and seconds[one] <= CLEARLY * min(seconds.values())]
    return [one for one in untried if one.batch.local >= local_batch] or list(untried)


def correction_notes(records: Sequence[TrialRecord]) -> list[str]:
    """Return a line for each kind of execution whose trials were far from their estimates."""
    return [
        f"on {execution}, updates took {factor:.2g} times the estimated time (median of measured over analytic)"
        for execution, factor in sorted(factors(records).items())
        if not 1 / WORTH_NOTING <= factor <= WORTH_NOTING
    ]
