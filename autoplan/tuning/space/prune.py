"""Pruning in two visible steps: configurations that fit (`feasible`), then those that may win (`rank`).

Both work on forecasts, a configuration with its estimated memory and time. Each rejection has a reason and figures.
Nothing is run here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autoplan import formatting
from autoplan.errors import NoFeasibleConfiguration
from autoplan.plan.knobs import changes
from autoplan.plan.records import Evidence, Rejection
from cost_models.config import Batch, TrainConfig

SLOWER_FACTOR = 2.0
"""Configurations estimated slower than this many times the best are not tried. Wider than the analytic tier's error."""
KEEP_AT_LEAST = 8
"""This many of the best estimates stay regardless of the factor, so that a wrong model cannot hide the winner."""
KEEP_AT_MOST = 64
AS_GOOD = 1.02
"""Estimates within this factor of the best count as equally fast."""


@dataclass(frozen=True)
class Forecast:
    """The estimate of one configuration.

    update_seconds      of one change of the weights
    needed_bytes        upper end of the interval of a device's memory; None when not known
    least_bytes         lower end of that interval
    capacity_bytes      what one device leaves usable; None when not known
    headroom            fraction of the capacity that stays free
    samples             samples an epoch; None when not known
    estimate            the whole estimate, as printed
    outside_bytes       what the process holds besides, in the same memory: on a CPU interpreter, libraries and data, as
                        they were measured before the first micro-step; it is part of needed_bytes and least_bytes
    """

    config: TrainConfig
    update_seconds: float
    needed_bytes: int | None
    capacity_bytes: int | None
    headroom: float
    samples: int | None
    estimate: Mapping[str, Any]
    least_bytes: int | None = None
    outside_bytes: int = 0

    @classmethod
    def from_estimate(
        cls, config: TrainConfig, estimate: Mapping[str, Any], samples: int | None, outside_bytes: int = 0
    ) -> Forecast:
        """Read the figures of `Estimate.to_dict()`."""
        memory = estimate["memory"]
        low, high = (memory["per_device_bytes"].get(name) for name in ("total_low", "total_high"))
        return cls(
            config=config,
            update_seconds=estimate["time"]["update_seconds"],
            needed_bytes=None if high is None else high + outside_bytes,
            capacity_bytes=memory.get("capacity_bytes"),
            headroom=memory.get("headroom", 0.0),
            samples=samples,
            estimate=estimate,
            least_bytes=None if low is None else low + outside_bytes,
            outside_bytes=outside_bytes,
        )

    @property
    def usable_bytes(self) -> int | None:
        """Capacity less headroom, the limit of `needed_bytes`."""
        return None if self.capacity_bytes is None else int(self.capacity_bytes * (1 - self.headroom))

    @property
    def fits(self) -> bool:
        """Whether it fits. It does where its memory or the capacity is not known."""
        return self.needed_bytes is None or self.usable_bytes is None or self.needed_bytes <= self.usable_bytes

    @property
    def may_fit(self) -> bool:
        """Whether it may fit: the lower end of its memory is within the capacity, so only a run decides."""
        return self.least_bytes is None or self.capacity_bytes is None or self.least_bytes <= self.capacity_bytes

    @property
    def seconds_per_sample(self) -> float:
        """Estimated seconds a sample over an epoch. A last partial batch costs a whole micro-step."""
        batch = self.config.batch
        micro_step_seconds = self.update_seconds / batch.accumulation
        if self.samples is None:
            return micro_step_seconds / batch.global_size
        return micro_step_seconds * -(-self.samples // batch.global_size) / self.samples


def feasible(forecasts: Sequence[Forecast], *, measurable: bool = False) -> tuple[list[Forecast], list[Rejection]]:
    """Return the forecasts that fit, and a Rejection for each that does not.

    measurable   trials follow, so where none is sure to fit, those that may fit stay

    NoFeasibleConfiguration when none is left, with the least memory needed and what would fit.
    """
    fitting = [forecast for forecast in forecasts if forecast.fits]
    if not fitting and measurable:
        fitting = [forecast for forecast in forecasts if forecast.may_fit]
    if not fitting:
        raise NoFeasibleConfiguration(nothing_fits(forecasts))
    kept = {forecast.config for forecast in fitting}
    return fitting, [_too_large(forecast, fitting) for forecast in forecasts if forecast.config not in kept]


def rank(
    fitting: Sequence[Forecast],
    *,
    factor: float = SLOWER_FACTOR,
    at_least: int = KEEP_AT_LEAST,
    at_most: int = KEEP_AT_MOST,
    keep: Iterable[TrainConfig] = (),
) -> tuple[list[Forecast], list[Rejection]]:
    """Return the shortlist, the best estimate first, and a Rejection for each that is left out.

    The shortlist has all within `factor` of the best, at least `at_least` and at most `at_most`, and always `keep`.
    """
    ordered = sorted(fitting, key=lambda forecast: forecast.seconds_per_sample)
    always = set(keep)
    best = ordered[0]
    kept: list[Forecast] = []
    rejected: list[Rejection] = []
    for place, forecast in enumerate(ordered):
        close = forecast.seconds_per_sample <= factor * best.seconds_per_sample
        if (place < at_most and (close or place < at_least)) or forecast.config in always:
            kept.append(forecast)
        else:
            rejected.append(_too_slow(forecast, best, place, factor))
    return kept, rejected


def without_idle_accumulation(
    baseline: TrainConfig, fitting: Sequence[Forecast]
) -> tuple[list[Forecast], list[Rejection]]:
    """Drop all but one of the configurations that differ in accumulation only.

    A freed effective batch gives many with the same micro-batch. The one that stays is as good as the best estimate and
    nearest to the script's effective batch. Configurations with the script's own effective batch stay too, because they
    train the same.
    """
    own = baseline.batch.effective
    groups: dict[TrainConfig, list[Forecast]] = {}
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


def _as_good(group: Sequence[Forecast]) -> list[Forecast]:
    """Return the forecasts as good as the best, the best first."""
    ordered = sorted(group, key=lambda one: one.seconds_per_sample)
    return [one for one in ordered if one.seconds_per_sample <= AS_GOOD * ordered[0].seconds_per_sample]


def _octaves(one: int, other: int) -> float:
    return abs(math.log2(one / other))


def distance(before: TrainConfig, after: TrainConfig) -> tuple[int, int]:
    """Return how far one configuration is from another: knobs changed, then octaves between global batches."""
    octaves = abs(before.batch.global_size.bit_length() - after.batch.global_size.bit_length())
    return len(changes(before, after)), octaves


def nearest(config: TrainConfig, among: Iterable[Forecast]) -> Forecast:
    """Return the forecast with the least change from `config`; of two equally near the faster."""
    return min(among, key=lambda other: (*distance(config, other.config), other.seconds_per_sample))


def would_fit(config: TrainConfig, fitting: Sequence[Forecast]) -> str | None:
    """Return the least change that fits, in words; None where nothing fits."""
    if not fitting:
        return None
    return f"{', '.join(changes(config, nearest(config, fitting).config))} would fit"


def _too_large(forecast: Forecast, fitting: Sequence[Forecast]) -> Rejection:
    needs = f"needs {formatting.size(forecast.needed_bytes)} of {formatting.size(forecast.usable_bytes)}"
    return Rejection(
        config=forecast.config,
        stage="infeasible",
        reason=needs,
        figures={
            "evidence": Evidence.ANALYTIC.value,
            "needed_bytes": forecast.needed_bytes,
            **({"outside_bytes": forecast.outside_bytes} if forecast.outside_bytes else {}),
            "usable_bytes": forecast.usable_bytes,
            "capacity_bytes": forecast.capacity_bytes,
            "headroom": forecast.headroom,
        },
        nearest=would_fit(forecast.config, fitting),
    )


def _too_slow(forecast: Forecast, best: Forecast, place: int, factor: float) -> Rejection:
    ratio = forecast.seconds_per_sample / best.seconds_per_sample
    reason = f"estimated to take {ratio:.2f} times as long as the best"
    if ratio <= factor:
        reason = f"number {place + 1} by estimate ({ratio:.2f} times the best); the shortlist is full"
    return Rejection(
        config=forecast.config,
        stage="slower",
        reason=reason,
        figures={
            "evidence": Evidence.ANALYTIC.value,
            "seconds_per_sample": forecast.seconds_per_sample,
            "best_seconds_per_sample": best.seconds_per_sample,
            "update_seconds": forecast.update_seconds,
            "needed_bytes": forecast.needed_bytes,
        },
        nearest=None,
    )


def nothing_fits(forecasts: Sequence[Forecast]) -> str:
    """Return the message where nothing fits: the least memory needed, and what would fit."""
    least = min(forecasts, key=lambda forecast: forecast.needed_bytes or 0)
    needed, headroom = least.needed_bytes or 0, least.headroom
    device = int(needed / (1 - headroom))
    held = f", {formatting.size(least.outside_bytes)} of it for the rest of the process" if least.outside_bytes else ""
    return (
        f"none of {len(forecasts)} configurations fits: the least memory needed is {formatting.size(needed)} a device "
        f"({least.config.describe()}{held}), and a device has {formatting.size(least.capacity_bytes)}, of which "
        f"{headroom:.0%} are kept free. What would fit: devices with at least {formatting.size(device)} usable, "
        "a smaller "
        "--effective-batch, or fewer restrictions (--fix, --only)"
    )
