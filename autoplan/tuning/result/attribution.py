"""Why a plan is what it is: what each change brings alone, and how the training scales over devices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from autoplan import formatting
from autoplan.errors import ConfigError
from autoplan.plan.knobs import KNOBS, Tuning, changes, with_field_of
from autoplan.plan.records import Evidence, TrialRecord
from autoplan.tuning.estimates.findings import Findings
from cost_models.config import TrainConfig

_FIXED = {"communication": "communication", "overhead": "launch overhead"}
"""Parts of a micro-step that do not grow with its batch."""
_SPREADS = ", which a larger batch spreads over more samples (--effective-batch LO..HI)"
_NONE_LARGER = (
    "none of the configurations that may be tried uses more, for the global batch has to divide over the devices, and "
    "--fix and --only hold the mesh"
)
_ATTRIBUTED = (Tuning.CHOSEN_BEFORE, Tuning.FREE)
"""Knobs of which an explanation says what each brings alone."""
_AS_LONG = 1.01
"""Below this many times another's time, two are as long."""


@dataclass(frozen=True)
class Rates:
    """Seconds a sample of configurations, steady state, all of one tier."""

    evidence: Evidence
    seconds_per_sample: Mapping[TrainConfig, float]

    def ratio(self, slow: TrainConfig, fast: TrainConfig) -> float | None:
        """How many times as fast; None where one of them is not known."""
        known = self.seconds_per_sample
        return known[slow] / known[fast] if slow in known and fast in known else None


def measured_rates(records: Iterable[TrialRecord]) -> Rates:
    """What trials measured."""
    measured = ((r.config, r.measurement) for r in records)
    return Rates(Evidence.MEASURED, {c: 1 / m.samples_per_second for c, m in measured if m})


def predicted_rates(findings: Findings) -> Rates:
    """What arithmetic says."""
    return Rates(Evidence.ANALYTIC, {c: one.seconds_per_sample for c, one in findings.estimates.items()})


def contributions(baseline: TrainConfig, config: TrainConfig, tiers: Sequence[Rates]) -> list[str]:
    """What each change brings if it is made alone, from the best tier that knows it; [] for fewer than two changes."""
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
    """Samples a second and efficiency of the best configuration on each number of devices, all from one tier.

    Efficiency is the rate over what that many times one device would give. None with a single number of devices.
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
        return f"devices and efficiency ({rates.evidence}{simulated}): {'; '.join(parts)}"
    return None


def idle_devices(findings: Findings, config: TrainConfig, tiers: Sequence[Rates]) -> str | None:
    """Why a plan leaves devices idle, from the best tier that knows it; None where it leaves none."""
    used, there = config.mesh.devices, findings.cluster.devices
    if used >= there:
        return None
    used_devices = f"the plan uses {used} of {there} devices"
    larger = [one for one in findings.space.configs if one.mesh.devices > used]
    if not larger:
        return f"{used_devices}: {_NONE_LARGER}"
    for rates in tiers:
        known = [one for one in larger if one in rates.seconds_per_sample and _may_fit(findings, one)]
        if known and config in rates.seconds_per_sample:
            best = min(known, key=lambda one: rates.seconds_per_sample[one])
            return f"{used_devices}: {_against(findings, config, best, rates)}"
    return f"{used_devices}: no configuration on more devices is known to fit"


def _against(findings: Findings, config: TrainConfig, best: TrainConfig, rates: Rates) -> str:
    """What the best on more devices takes, and where its time goes."""
    ratio = rates.ratio(best, config) or 1.0
    samples = formatting.counted(best.batch.local, "sample")
    on = f"the best on {best.mesh.devices}, with {samples} each, takes {_times(ratio)} ({rates.evidence})"
    estimate = findings.estimates.get(best)
    if estimate is None or estimate.analytic.time.bound not in _FIXED:
        return on
    time = estimate.analytic.time
    share = formatting.percent(getattr(time.parts, time.bound) / time.micro_step_seconds)
    share = f"{share} of it {_FIXED[time.bound]} (analytic)"
    kept = len({one.batch.effective for one in findings.space.configs}) == 1
    return f"{on}, {share}{_SPREADS if kept else ''}"


def _times(ratio: float) -> str:
    if ratio < 1:
        return f"{ratio:.2f} times as long, which is too close to separate"
    return f"{ratio:.2f} times as long" if ratio >= _AS_LONG else "as long"


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
