"""Attributes a plan's speed-up to its changes, and computes how the training scales over devices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from autoplan import formatting
from autoplan.errors import ConfigError
from autoplan.plan.knobs import KNOBS, Tuning, changes, with_field_of
from autoplan.plan.records import Evidence, TrialRecord
from autoplan.tuning.estimates.findings import Findings
from cost_models.config import TrainConfig

_FIXED = ("communication", "overhead")
"""Parts of a micro-step that do not grow with its batch."""
_SPREADS = ". A larger batch would reduce this share: --effective-batch LO..HI allows it"
_NONE_LARGER = (
    "no configuration that may be tried uses more, because the global batch must divide by the devices or because "
    "--fix or --only keep the mesh"
)
_ATTRIBUTED = (Tuning.CHOSEN_BEFORE, Tuning.FREE)
"""Kinds of knobs whose separate effect is explained."""
_AS_LONG = 1.01
"""Ratio of two times below which they count as equal."""


@dataclass(frozen=True)
class Rates:
    """Steady-state seconds a sample of configurations, all from one evidence tier."""

    evidence: Evidence
    seconds_per_sample: Mapping[TrainConfig, float]

    def ratio(self, slow: TrainConfig, fast: TrainConfig) -> float | None:
        """Return how many times as fast `fast` is as `slow`; None where one of them is not known."""
        known = self.seconds_per_sample
        return known[slow] / known[fast] if slow in known and fast in known else None


def measured_rates(records: Iterable[TrialRecord]) -> Rates:
    """Return the rates that trials measured."""
    measured = ((r.config, r.measurement) for r in records)
    return Rates(Evidence.MEASURED, {c: 1 / m.samples_per_second for c, m in measured if m})


def predicted_rates(findings: Findings) -> Rates:
    """Return the rates of the analytic estimates."""
    return Rates(Evidence.ANALYTIC, {c: one.seconds_per_sample for c, one in findings.estimates.items()})


def contributions(baseline: TrainConfig, config: TrainConfig, tiers: Sequence[Rates]) -> list[str]:
    """Return what each change brings alone, from the best tier that has it; [] for fewer than two changes."""
    singles = _single_changes(baseline, config)
    if len(singles) < 2:
        return []
    lines = []
    for single in singles:
        known = [(rates.evidence, ratio) for rates in tiers if (ratio := rates.ratio(baseline, single)) is not None]
        if known:
            evidence, ratio = known[0]
            lines.append(f"{', '.join(changes(baseline, single))} alone: {ratio:.2f} times as fast ({evidence})")
    return lines


def scaling(findings: Findings, tiers: Sequence[Rates]) -> str | None:
    """Return samples a second and efficiency of the best configuration on each number of devices, all from one tier.

    Efficiency is the rate divided by that of perfect scaling. None with a single number of devices.
    """
    sizes = sorted({config.mesh.devices for config in findings.space.configs})
    if len(sizes) < 2:
        return None
    for rates in tiers:
        best = {size: _best_rate(rates, findings.space.configs, size) for size in sizes}
        known = {size: rate for size, rate in best.items() if rate is not None}
        if len(known) < len(sizes):
            continue
        first = sizes[0]
        parts = [
            f"{size}: {rate:,.0f} samples/s ({rate / (size / first * known[first]):.0%})"
            for size, rate in known.items()
        ]
        simulated = ", simulated devices" if findings.cluster.simulated else ""
        return f"throughput and efficiency by number of devices ({rates.evidence}{simulated}): {'; '.join(parts)}"
    return None


def idle_devices(findings: Findings, config: TrainConfig, tiers: Sequence[Rates]) -> str | None:
    """Return why a plan leaves devices idle, from the best tier that has figures; None where it leaves none."""
    used, devices = config.mesh.devices, findings.cluster.devices
    if used >= devices:
        return None
    uses = f"the plan uses {used} of {devices} devices"
    larger = [one for one in findings.space.configs if one.mesh.devices > used]
    if not larger:
        return f"{uses}: {_NONE_LARGER}"
    for rates in tiers:
        known = [one for one in larger if one in rates.seconds_per_sample and _may_fit(findings, one)]
        if known and config in rates.seconds_per_sample:
            best = min(known, key=lambda one: rates.seconds_per_sample[one])
            return f"{uses}: {_against(findings, config, best, rates)}"
    return f"{uses}: no configuration on more devices is known to fit"


def _against(findings: Findings, config: TrainConfig, best: TrainConfig, rates: Rates) -> str:
    """Return the time of the best configuration on more devices, and its largest part."""
    ratio = rates.ratio(best, config) or 1.0
    samples = formatting.counted(best.batch.local, "sample")
    named = f"the best configuration on {best.mesh.devices} devices ({samples} per device)"
    on = f"{named} takes {_times(ratio)} ({rates.evidence})"
    estimate = findings.estimates.get(best)
    if estimate is None or estimate.analytic.time.bound not in _FIXED:
        return on
    time = estimate.analytic.time
    share = formatting.percent(getattr(time.parts, time.bound) / time.micro_step_seconds)
    share = f"{share} of its time is {formatting.TIME_PARTS[time.bound]} (analytic)"
    one_batch = len({one.batch.effective for one in findings.space.configs}) == 1
    return f"{on}. {share}{_SPREADS if one_batch else ''}"


def _times(ratio: float) -> str:
    if ratio < 1:
        return f"{ratio:.2f} times as long per sample, too small a difference to prefer it"
    return f"{ratio:.2f} times as long per sample" if ratio >= _AS_LONG else "as long per sample"


def _may_fit(findings: Findings, config: TrainConfig) -> bool:
    estimate = findings.estimates.get(config)
    return estimate is None or estimate.may_fit


def _best_rate(rates: Rates, configs: Iterable[TrainConfig], devices: int) -> float | None:
    known = rates.seconds_per_sample
    seconds = [known[config] for config in configs if config.mesh.devices == devices and config in known]
    return 1 / min(seconds) if seconds else None


def _single_changes(baseline: TrainConfig, config: TrainConfig) -> list[TrainConfig]:
    """Return the baseline with one field of the configuration at a time, where that changes it and can be."""
    singles = []
    for name in dict.fromkeys(knob.field for knob in KNOBS if knob.tuning in _ATTRIBUTED):
        try:
            single = with_field_of(baseline, name, config)
        except ConfigError:  # a batch that does not divide over the other mesh
            continue
        if single != baseline:
            singles.append(single)
    return singles
