"""Prunes estimated configurations to a shortlist: first those that fit, then those that may win.

Both work on estimates of configurations. Each rejection has a reason and figures.
Nothing is run here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from autoplan import formatting
from autoplan.errors import NoFeasibleConfiguration
from autoplan.plan.knobs import changes
from autoplan.plan.records import Evidence, Rejection
from autoplan.tuning.candidate_estimate import CandidateEstimate
from cost_models.config import Batch, TrainConfig

SLOWER_FACTOR = 2.0
"""Configurations estimated slower than this many times the best are not tried. Wider than the analytic tier's error."""
KEEP_AT_LEAST = 8
"""This many of the best estimates stay regardless of the factor, so that a wrong model cannot hide the winner."""
KEEP_AT_MOST = 64
AS_GOOD = 1.02
"""Estimates within this factor of the best count as equally fast."""


def feasible(
    estimates: Sequence[CandidateEstimate], *, measurable: bool = False, held: str | None = None
) -> tuple[list[CandidateEstimate], list[Rejection]]:
    """Return the estimates that fit, and a Rejection for each that does not.

    measurable   trials follow, so where none is sure to fit, those that may fit stay
    held         why the batch is not split (`held_batch.why_batch_held`)

    NoFeasibleConfiguration when none is left, with the least memory needed and what would fit.
    """
    fitting = [estimate for estimate in estimates if estimate.fits]
    if not fitting and measurable:
        fitting = [estimate for estimate in estimates if estimate.may_fit]
    if not fitting:
        raise NoFeasibleConfiguration(nothing_fits(estimates, held))
    kept = {estimate.config for estimate in fitting}
    return fitting, [_too_large(estimate, fitting) for estimate in estimates if estimate.config not in kept]


def rank(
    fitting: Sequence[CandidateEstimate],
    *,
    factor: float = SLOWER_FACTOR,
    at_least: int = KEEP_AT_LEAST,
    at_most: int = KEEP_AT_MOST,
    keep: Iterable[TrainConfig] = (),
) -> tuple[list[CandidateEstimate], list[Rejection]]:
    """Return the shortlist, the best estimate first, and a Rejection for each that is left out.

    The shortlist has all within `factor` of the best, at least `at_least` and at most `at_most`, and always `keep`.
    """
    ordered = sorted(fitting, key=lambda estimate: estimate.seconds_per_sample)
    always = set(keep)
    best = ordered[0]
    kept: list[CandidateEstimate] = []
    rejected: list[Rejection] = []
    for place, estimate in enumerate(ordered):
        close = estimate.seconds_per_sample <= factor * best.seconds_per_sample
        if (place < at_most and (close or place < at_least)) or estimate.config in always:
            kept.append(estimate)
        else:
            rejected.append(_too_slow(estimate, best, place, factor))
    return kept, rejected


def without_idle_accumulation(
    baseline: TrainConfig, fitting: Sequence[CandidateEstimate]
) -> tuple[list[CandidateEstimate], list[Rejection]]:
    """Drop all but one of the configurations that differ in accumulation only.

    A freed effective batch gives many with the same micro-batch. The one that stays is as good as the best estimate and
    nearest to the script's effective batch. Configurations with the script's own effective batch stay too, because they
    train the same.
    """
    own = baseline.batch.effective
    groups: dict[TrainConfig, list[CandidateEstimate]] = {}
    for one in fitting:
        alone = Batch.from_global(one.config.batch.global_size, data=one.config.mesh.data)
        groups.setdefault(one.config.with_(batch=alone), []).append(one)
    best = {
        min(_as_good(group), key=lambda one: _octaves(one.config.batch.effective, own)).config
        for group in groups.values()
    }
    chosen = [
        one for one in fitting if one.config in best or one.config.batch.effective == own or one.config == baseline
    ]
    kept = {one.config for one in chosen}
    left = [one.config for one in fitting if one.config not in kept]
    if not left:
        return list(fitting), []
    return chosen, [
        Rejection(
            config=left[0],
            stage="slower",
            reason="more or fewer micro-steps an update are estimated to gain nothing over one that is tried",
            figures={"evidence": Evidence.ANALYTIC.value, "configurations": len(left)},
        )
    ]


def _as_good(group: Sequence[CandidateEstimate]) -> list[CandidateEstimate]:
    """Return the estimates as good as the best, the best first."""
    ordered = sorted(group, key=lambda one: one.seconds_per_sample)
    return [one for one in ordered if one.seconds_per_sample <= AS_GOOD * ordered[0].seconds_per_sample]


def _octaves(one: int, other: int) -> float:
    return abs(math.log2(one / other))


def distance(before: TrainConfig, after: TrainConfig) -> tuple[int, int]:
    """Return how far one configuration is from another: knobs changed, then octaves between global batches."""
    octaves = abs(before.batch.global_size.bit_length() - after.batch.global_size.bit_length())
    return len(changes(before, after)), octaves


def nearest(config: TrainConfig, among: Iterable[CandidateEstimate]) -> CandidateEstimate:
    """Return the estimate with the least change from `config`; of two equally near the faster."""
    return min(among, key=lambda other: (*distance(config, other.config), other.seconds_per_sample))


def would_fit(config: TrainConfig, fitting: Sequence[CandidateEstimate]) -> str | None:
    """Return the least change that fits, in words; None where nothing fits."""
    if not fitting:
        return None
    return f"{', '.join(changes(config, nearest(config, fitting).config))} would fit"


def _too_large(estimate: CandidateEstimate, fitting: Sequence[CandidateEstimate]) -> Rejection:
    needs = f"needs {formatting.size(estimate.needed_bytes)} of {formatting.size(estimate.usable_bytes)}"
    return Rejection(
        config=estimate.config,
        stage="infeasible",
        reason=needs,
        figures={
            "evidence": Evidence.ANALYTIC.value,
            "needed_bytes": estimate.needed_bytes,
            **({"outside_bytes": estimate.outside_bytes} if estimate.outside_bytes else {}),
            "usable_bytes": estimate.usable_bytes,
            "capacity_bytes": estimate.capacity_bytes,
            "headroom": estimate.headroom,
        },
        nearest=would_fit(estimate.config, fitting),
    )


def _too_slow(estimate: CandidateEstimate, best: CandidateEstimate, place: int, factor: float) -> Rejection:
    ratio = estimate.seconds_per_sample / best.seconds_per_sample
    reason = f"estimated to take {ratio:.2f} times as long as the best"
    if ratio <= factor:
        reason = f"number {place + 1} by estimate ({ratio:.2f} times the best); the shortlist is full"
    return Rejection(
        config=estimate.config,
        stage="slower",
        reason=reason,
        figures={
            "evidence": Evidence.ANALYTIC.value,
            "seconds_per_sample": estimate.seconds_per_sample,
            "best_seconds_per_sample": best.seconds_per_sample,
            "update_seconds": estimate.update_seconds,
            "needed_bytes": estimate.needed_bytes,
        },
        nearest=None,
    )


def nothing_fits(estimates: Sequence[CandidateEstimate], held: str | None = None) -> str:
    """Return the message where nothing fits: the least memory needed, what would fit, and why the batch is held."""
    least = min(estimates, key=lambda estimate: estimate.needed_bytes)
    needed, headroom = least.needed_bytes, least.headroom
    device = int(needed / (1 - headroom))
    rest = f", {formatting.size(least.outside_bytes)} of it for the rest of the process" if least.outside_bytes else ""
    return (
        f"none of {len(estimates)} configurations fits: the least memory needed is {formatting.size(needed)} a device "
        f"({least.config.describe()}{rest}), and a device has {formatting.size(least.capacity_bytes)}, of which "
        f"{headroom:.0%} stay free. What would fit: devices with at least {formatting.size(device)} usable, "
        f"a smaller --effective-batch, or fewer restrictions (--fix, --only){not_split(held)}"
    )


def not_split(held: str | None) -> str:
    """Return a sentence on why no smaller micro-batches are legal, to end a message without a full stop; or ""."""
    return f". The batch is not split, because {held}" if held else ""
