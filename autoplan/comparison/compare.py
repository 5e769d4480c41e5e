"""Compares kinds of hardware for one training by estimates: whether it fits, its best configuration, and its speed.

The source is run up to its fit once, and each structure of its training step is traced once; the rest is arithmetic for
each kind of hardware. A chip with several sizes is compared in the smallest size on which the training fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import isclose
from typing import Any

from autoplan import formatting
from autoplan.comparison.result import Comparison, FitVerdict, HardwareRow, ordered
from autoplan.errors import ConfigError, HardwareError, StudyError
from autoplan.jobs.messages import Observation
from autoplan.jobs.runner import JobRunner
from autoplan.jobs.split_probe import with_probe
from autoplan.plan.records import CompilerEvidence, Evidence
from autoplan.tuning import compiler_check
from autoplan.tuning.candidate_estimate import CandidateEstimate
from autoplan.tuning.compiler_check import NOTHING_LEFT, CheckedByCompiler
from autoplan.tuning.estimates.estimator import Tracer
from autoplan.tuning.estimates.findings import Findings, versions_of
from autoplan.tuning.objective import PlannedFit
from autoplan.tuning.request import CompareRequest, Event, Watch
from autoplan.tuning.space.legal_configs import Space, legal_configs
from autoplan.tuning.space.prune import KEEP_AT_MOST
from cost_models.config import Affects, Precision, Remat, RematMode, TrainConfig
from cost_models.estimate import Estimate
from cost_models.estimate import estimate as analytic_estimate
from cost_models.hardware.chip_sizes import canonical, chips, chips_of_group, larger, sizes
from cost_models.hardware.cluster import Cluster
from cost_models.hardware.pricing import offers
from cost_models.memory import MemoryCost, capacity_bytes, memory
from cost_models.workload.workload import Workload

UNASKED = ("gpu", "tpu")
"""Families that are compared by default."""
MOST_COMPILED = 5
"""Largest number of kinds of hardware to compile for, because a compilation takes seconds to minutes."""
_ROUNDING = 1e-6
"""Relative difference up to which two estimated times are equal: sums in another order differ in their last digits."""

Find = Callable[[str], Cluster]
"""A function that returns the cluster of a name."""


@dataclass(frozen=True)
class Sought:
    """The sizes for one row, in the order in which they are tried, and larger sizes that may help if none fits."""

    names: tuple[str, ...]
    larger: tuple[str, ...] = ()


def sought(request: CompareRequest) -> list[Sought]:
    """Return what is compared: each name as it is, or each chip of the families in its sizes, smallest first.

    Raises ConfigError for options that contradict each other, HardwareError for an unknown family or name.
    """
    if request.hardware and request.families:
        raise ConfigError("--hardware and --family are both given; use only one of them")
    if request.compile and not 0 < len(request.hardware) <= MOST_COMPILED:
        raise ConfigError(
            "--evidence compiled compiles for each kind of hardware, which takes seconds to minutes: name 1 to "
            f"{MOST_COMPILED} kinds with --hardware"
        )
    if request.hardware:
        return [Sought((name,), larger(name)) for name in dict.fromkeys(map(canonical, request.hardware))]
    rows = [row for family in request.families or UNASKED for row in chips_of_group(family)]
    return [Sought(sizes(row)) for row in {row.key: row for row in rows}.values()]


def compared(
    request: CompareRequest,
    jobs: JobRunner,
    wanted: Sequence[Sought],
    find: Find,
    watch: Watch,
) -> Comparison:
    """Return the comparison of `wanted`.

    Raises an AutoplanError for every fault that the user can correct. A fault of one kind of hardware is shown in its
    row, unless all kinds have it.
    """
    watch(Event("stage", f"inspecting the training up to its fit, on {jobs.backend}"))
    observation = jobs.observe(abstract=True)
    watch(Event("stage", "comparing an update with its halves"))
    observation = with_probe(jobs, observation, effective_batch_is_free=request.effective_batch is not None)
    baseline = observation.config
    jobs = jobs.with_(baseline=baseline)
    watch(Event("stage", f"estimating for {formatting.counted(len(wanted), 'kind')} of hardware"))
    with Tracer(jobs, local_batch=baseline.batch.local) as tracer:
        training = _Training(request, observation, baseline, tracer, find)
        training.start([one.names[0] for one in wanted])
        looks = [training.smallest(one) for one in wanted]
    if all(look.row.verdict is FitVerdict.NOT_KNOWN for look in looks):
        raise ConfigError(looks[0].row.reason or "no estimate of this training is possible")
    rows = [_refined(request, look, jobs, watch) if request.compile else look.row for look in looks]
    return Comparison(
        source=request.source,
        observation=observation,
        headroom=request.headroom,
        rows=tuple(ordered(rows, by_cost=request.by_cost)),
        by_cost=request.by_cost,
        notes=(*training.notes_on_the_baseline(), *_notes(baseline, rows, observation)),
    )


@dataclass(frozen=True)
class Look:
    """The result on one cluster. `findings` is None where no configuration may fit."""

    row: HardwareRow
    cluster: Cluster
    findings: Findings | None = None


@dataclass
class _Training:
    """The training that is compared, with its traces and configurations so far."""

    request: CompareRequest
    observation: Observation
    baseline: TrainConfig
    tracer: Tracer
    find: Find
    _clusters: list[Cluster] = field(default_factory=list)
    _spaces: dict[tuple[str, float | None, int, bool], Space] = field(default_factory=dict)
    _precisions: set[Precision] = field(default_factory=set)

    def start(self, names: Sequence[str]) -> None:
        """Begin to trace the configurations of these kinds. Where none is legal, the row says so later."""
        self._clusters = [self.find(name) for name in names]
        for cluster in self._clusters:
            with suppress(ConfigError):
                configs = self._space(cluster, shard_state=False).configs
                self._precisions.update(one.precision for one in configs if self._published(one, cluster))
        self._trace_ahead(remat=False)

    def _trace_ahead(self, *, remat: bool) -> None:
        precisions = self._precisions - {one.config.precision for one in self.tracer.rejected}
        ahead = (config for space in self._spaces.values() for config in space.configs)
        wanted: dict[tuple[Any, ...], TrainConfig] = {}
        for one in ahead:
            if one.precision in precisions and _rematerializes(one) == remat:
                wanted.setdefault((one.backend, *one.key(Affects.OPERATIONS)), one)
        for cluster in self._clusters:
            self.tracer.start((one for one in wanted.values() if self._published(one, cluster)), cluster)

    def smallest(self, one: Sought) -> Look:
        """Return the first size on which it fits; else the size on which it most likely fits; else the largest."""
        looks: list[Look] = []
        for name in one.names:
            looks.append(self.on(name))
            if looks[-1].row.verdict is FitVerdict.TRAINS:
                break
        hopeful = [look for look in looks if look.row.verdict is FitVerdict.UNCERTAIN]
        trains = looks[-1].row.verdict is FitVerdict.TRAINS
        chosen = looks[-1] if trains or not hopeful else max(hopeful, key=lambda look: look.row.margin or 0.0)
        looked_at = tuple(look.row.hardware for look in looks)
        return replace(chosen, row=replace(chosen.row, looked_at=looked_at, would_help=self._help(chosen.row, one)))

    def on(self, name: str) -> Look:
        """Return the best configuration on a kind; sharded state is considered only if nothing else is sure to fit."""
        cluster = self.find(name)
        seen = _Seen(cluster, self.request.headroom, PlannedFit.of(self.observation).samples)
        empty = HardwareRow.of(cluster, chips(name), tuple(offers(name)))
        space = None
        try:
            for shard_state in (False, True):
                space = self._space(cluster, shard_state=shard_state)
                self._look_at(space, seen)
                if seen.fitting():
                    break
        except (ConfigError, HardwareError) as error:
            return Look(replace(empty, reason=str(error)), cluster)
        if space is None or not seen.needs:
            return Look(replace(empty, reason=self._why_nothing(seen)), cluster)
        row = _row(empty, seen)
        findings = None if not seen.estimates else self._findings(cluster, space, seen)
        return Look(row, cluster, findings)

    def _look_at(self, space: Space, seen: _Seen) -> None:
        """Estimate without rematerialization, then with it the configurations that do not fit without it."""
        new = [config for config in space.configs if config not in seen.needs and self._published(config, seen.cluster)]
        seen.add(self.tracer.workloads((one for one in new if not _rematerializes(one)), seen.cluster))
        legal = frozenset(space.configs)
        needed = [one for one in new if _rematerializes(one) and _may_help(one, legal, seen)]
        if needed:
            self._trace_ahead(remat=True)
            seen.add(self.tracer.workloads(needed, seen.cluster))

    def _published(self, config: TrainConfig, cluster: Cluster) -> bool:
        """Return whether a rate is published for the precision; the script's own and a pinned precision always pass."""
        own = config.precision is self.baseline.precision or "precision" in self.request.fix
        return own or config.precision.compute_dtype in cluster.chip.peak_flops_per_second

    def _space(self, cluster: Cluster, *, shard_state: bool) -> Space:
        """Return the legal configurations, which clusters of the same kind, features and size share."""
        key = cluster.chip.kind, cluster.chip.compute_capability, cluster.devices, shard_state
        if key not in self._spaces:
            self._spaces[key] = legal_configs(
                self.observation,
                cluster,
                versions_of(self.observation, cluster),
                fix=self.request.fix,
                effective_batch=self.request.effective_batch,
                shard_state=shard_state,
            )
        return self._spaces[key]

    def notes_on_the_baseline(self) -> list[str]:
        """Return the known issues for which the script's own configuration is no candidate, by kind of device."""
        issues = {
            (kind, one.reason): None
            for (kind, *_), space in self._spaces.items()
            for one in space.rejected
            if space.excluded_by and one.stage == "known_issue" and one.config == self.baseline
        }
        return [f"not with the script's own settings on {kind.upper()}s: {reason}" for kind, reason in issues]

    def _findings(self, cluster: Cluster, space: Space, seen: _Seen) -> Findings:
        best = sorted(seen.estimates.values(), key=lambda one: one.seconds_per_sample)
        return Findings(
            observation=self.observation,
            cluster=cluster,
            versions=versions_of(self.observation, cluster),
            space=space,
            estimates=seen.estimates,
            shortlist=tuple(one.config for one in best[:KEEP_AT_MOST]),
            rejected=(),
        )

    def _why_nothing(self, seen: _Seen) -> str:
        reasons = [*seen.unpublished, *(one.reason for one in self.tracer.rejected)]
        return "; ".join(dict.fromkeys(reasons)) or "no estimate is possible"

    def _help(self, row: HardwareRow, one: Sought) -> str | None:
        """Return what would help a row that does not fit: a larger size of the chip, else the memory a device needs."""
        if row.verdict not in (FitVerdict.TOO_LARGE, FitVerdict.UNCERTAIN) or row.needed_bytes is None:
            return None
        for name in one.larger:
            row_of_larger = self.on(name).row
            if row_of_larger.verdict is FitVerdict.TRAINS and row_of_larger.config is not None:
                return f"{name} ({row_of_larger.config.describe()})"
        device = formatting.size(int(row.needed_bytes / (1 - self.request.headroom)))
        return f"devices with {device} usable{self._smaller_batch()}"

    def _smaller_batch(self) -> str:
        """Return advice to change the batch in the script, where autoplan cannot change it."""
        if not self.observation.rebatchable:
            return ", or a smaller batch in the script (autoplan cannot rebatch its data)"
        return ""


@dataclass
class _Seen:
    """Estimates for one cluster: memory of all configurations, time of those that may fit."""

    cluster: Cluster
    headroom: float
    samples: int | None
    needs: dict[TrainConfig, MemoryCost] = field(default_factory=dict)
    estimates: dict[TrainConfig, CandidateEstimate] = field(default_factory=dict)
    unpublished: dict[str, int] = field(default_factory=dict)

    def add(self, traced: Iterable[tuple[Workload, Sequence[TrainConfig]]]) -> None:
        """Estimate memory first, then the time of the configurations that may fit."""
        for workload, configs in traced:
            for config in configs:
                need = self.needs[config] = memory(workload, config, self.cluster)
                if need.total_low <= capacity_bytes(self.cluster, config.mesh.devices):
                    self._estimate(workload, config)

    def fitting(self) -> list[CandidateEstimate]:
        """Return the configurations that are sure to fit."""
        return [one for one in self.estimates.values() if one.fits]

    def _estimate(self, workload: Workload, config: TrainConfig) -> None:
        try:
            found = analytic_estimate(workload, config, self.cluster, headroom=self.headroom)
        except HardwareError as error:
            self.unpublished[str(error)] = self.unpublished.get(str(error), 0) + 1
            return
        self.estimates[config] = CandidateEstimate.of(found, self.samples)


def _may_help(config: TrainConfig, legal: frozenset[TrainConfig], seen: _Seen) -> bool:
    """Return whether rematerialization may make it fit: the same configuration without it does not fit."""
    without = config.with_(remat=Remat())
    if without not in seen.needs:
        return without not in legal
    estimate = seen.estimates.get(without)
    return estimate is None or not estimate.fits


def _rematerializes(config: TrainConfig) -> bool:
    return config.remat.mode is not RematMode.NONE


def fastest(candidates: Sequence[CandidateEstimate]) -> CandidateEstimate:
    """Return the fastest; of equally fast ones that with the fewest devices, then the least memory."""
    least = min(one.seconds_per_sample for one in candidates)
    tied = [one for one in candidates if isclose(one.seconds_per_sample, least, rel_tol=_ROUNDING)]
    return min(tied, key=lambda one: (one.config.mesh.devices, one.needed_bytes, one.config.describe()))


def _row(empty: HardwareRow, seen: _Seen) -> HardwareRow:
    """Return a row with the fastest configuration that fits; else the smallest that may fit; else the smallest."""
    candidates = seen.fitting() or list(seen.estimates.values())
    if not candidates:
        config, need = min(seen.needs.items(), key=lambda item: item[1].total_high)
        row = replace(empty, config=config, needed_bytes=need.total_high, least_bytes=need.total_low)
        if need.total_low <= (empty.capacity_bytes or 0):  # it may fit, but its time is not known
            return replace(row, verdict=FitVerdict.NOT_KNOWN, reason="; ".join(seen.unpublished))
        return replace(row, verdict=FitVerdict.TOO_LARGE)
    verdict = FitVerdict.TRAINS if seen.fitting() else FitVerdict.UNCERTAIN
    best = fastest(candidates)
    if verdict is FitVerdict.UNCERTAIN:
        best = min(candidates, key=lambda one: one.needed_bytes)
    notes = (*_on_validation(best.analytic), *(f"left out: {reason}" for reason in seen.unpublished))
    time = best.analytic.time
    return replace(
        empty,
        verdict=verdict,
        config=best.config,
        needed_bytes=best.needed_bytes,
        least_bytes=best.least_bytes,
        capacity_bytes=best.capacity_bytes,
        samples_per_second=time.samples_per_second,
        mfu=time.mfu,
        bound=time.bound,
        notes=notes,
    )


def _on_validation(found: Estimate) -> Iterator[str]:
    """Yield a note where the script's validation needs more memory than a device has."""
    validation = found.validation
    if validation is not None and not validation.fits:
        fewer = "" if validation.fitting_rows is None else f"; {validation.fitting_rows:,} rows at once fit"
        yield (
            f"validation ({validation.rows:,} rows at once) {'may not fit' if validation.may_fit else 'does not fit'}: "
            f"it needs up to {formatting.size(validation.memory.total_high)}{fewer}"
        )


def _refined(request: CompareRequest, look: Look, jobs: JobRunner, watch: Watch) -> HardwareRow:
    """Return the row by the compiler of its hardware, the only compiled evidence in a comparison.

    If it cannot be compiled, the row keeps its estimate and says why.
    """
    row = look.row
    if look.findings is None:
        why = "no configuration can fit" if row.config is not None else "no estimate is possible"
        return replace(row, notes=(*row.notes, f"nothing was compiled: {why}"))
    watch(Event("stage", f"compiling for {row.hardware}"))
    try:
        checked = _checked(request, jobs.with_(cluster=look.cluster), look.findings, watch)
    except (HardwareError, StudyError) as error:
        return replace(row, notes=(*row.notes, f"nothing was compiled: {error}"))
    if checked.interrupted:
        raise KeyboardInterrupt
    row = replace(row, notes=(*row.notes, *checked.notes))
    if checked.winner is not None and checked.winner.compiled is not None:
        config = checked.winner.config
        return _compiled(row, look.findings.estimates[config], checked.winner.compiled)
    if not checked.rejected:
        return row
    least = min(checked.rejected, key=lambda one: one.figures["needed_bytes"] or float("inf"))
    return replace(
        row,
        verdict=FitVerdict.TOO_LARGE if checked.ended == NOTHING_LEFT else FitVerdict.UNCERTAIN,
        evidence=Evidence.COMPILED,
        config=least.config,
        needed_bytes=least.figures["needed_bytes"],
        least_bytes=least.figures["needed_bytes"],
        samples_per_second=None,
        mfu=None,
        bound=None,
        reason=least.reason,
    )


def _checked(request: CompareRequest, jobs: JobRunner, findings: Findings, watch: Watch) -> CheckedByCompiler:
    """Compile for the runner's cluster until the winner is compiled. Raises HardwareError where that is impossible."""
    why_not = compiler_check.why_not_here(jobs, findings.space)
    if why_not is not None:
        raise HardwareError(why_not)
    _, checked = compiler_check.check(jobs, findings, watch, request.most_compiled, study=None)
    return checked


def _compiled(row: HardwareRow, estimate: CandidateEstimate, evidence: CompilerEvidence) -> HardwareRow:
    """Return the row with the compiled program's memory and its time by the roofline model, or the estimate's time."""
    time = evidence.time or estimate.analytic.time
    no_time = "memory is compiled but the rate is analytic, because the compiled program has no time estimate"
    total, others = evidence.memory.must_fit_bytes, evidence.memory.other_batches_bytes
    beside = f"{formatting.size(others)} of the memory is the next batch, which fit holds beside the compiled program"
    notes = (*([] if evidence.time else [no_time]), *([beside] if others else []))
    return replace(
        row,
        verdict=FitVerdict.TRAINS,
        evidence=Evidence.COMPILED,
        config=estimate.config,
        needed_bytes=total,
        least_bytes=total,
        samples_per_second=time.samples_per_second,
        mfu=time.mfu,
        bound=time.bound,
        compiler=evidence.target,
        would_help=None,
        reason=None,
        notes=(*row.notes, *notes),
    )


def _notes(baseline: TrainConfig, rows: Sequence[HardwareRow], observation: Observation) -> list[str]:
    """Return the notes on the configurations of all rows."""
    best = [row.config for row in rows if row.verdict is FitVerdict.TRAINS and row.config is not None]
    notes = [*observation.assumed, *observation.notes]
    others = sorted({config.precision.value for config in best if config.precision is not baseline.precision})
    if others:
        own = baseline.precision.value
        notes.append(
            f"training results of {formatting.listed(others)} and of {own} were not compared; --fix precision={own} "
            "keeps the precision"
        )
    if any(config.layout.shard_state for config in best) and not baseline.layout.shard_state:
        notes.append(
            "sharded state: weights, gradients and optimizer state are split over the devices (ZeRO-3), only where "
            "nothing else fits"
        )
    if any(row.hardware == "local" for row in rows):
        notes.append(
            "local: memory is that of the training alone, without the rest of the process; MFU is relative to the "
            "measured peak, not a data sheet's"
        )
    return notes
