"""Estimates every legal configuration from traces of the training step, and prunes the space to a shortlist.

One trace for each structure of the training step, then arithmetic for the whole space, then pruning.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Self

from autoplan.errors import FIRST_EXCEPTION, HardwareError, SourceError, WorkloadError
from autoplan.formatting import first_line
from autoplan.jobs.messages import Observation
from autoplan.jobs.runner import JobRunner
from autoplan.plan.knobs import KNOBS, Knob
from autoplan.plan.records import Failure, FailureKind, Rejection
from autoplan.tuning.candidate_estimate import CandidateEstimate
from autoplan.tuning.estimates.findings import Findings
from autoplan.tuning.objective import PlannedFit
from autoplan.tuning.space.held_batch import why_batch_held
from autoplan.tuning.space.known_issues import Versions
from autoplan.tuning.space.legal_configs import Space
from autoplan.tuning.space.prune import (
    KEEP_AT_MOST,
    distance,
    feasible,
    rank,
    without_idle_accumulation,
)
from cost_models.config import Affects, Batch, Layout, Mesh, Remat, RematMode, TrainConfig
from cost_models.estimate import estimate as analytic_estimate
from cost_models.estimate import validation_of
from cost_models.execution import platform_of
from cost_models.hardware.cluster import Cluster
from cost_models.hardware.platform import TargetPlatform
from cost_models.memory import MemoryCost
from cost_models.workload.counted_positions import merged_positions
from cost_models.workload.workload import Workload

TRACES_AT_ONCE = 2
LOCAL_BATCHES_TRACED = 6
"""A step whose structure changes with the batch is traced at so many local batches; the others have no estimate."""
LONGEST_REASON = 400
"""Characters of an error that stand in a note."""
_FRAMES = re.compile(r'File "[^"]*", line \d+, in \S+ |\^{2,} ')
_LISTED_ARGUMENTS = re.compile(rf"Arguments received by [\w.]+\(\):.*?(?={FIRST_EXCEPTION}|$)", re.DOTALL)


@dataclass(frozen=True)
class Structure:
    """Everything that changes the operations of a training step.

    operations    values of the settings that affect them
    platform      the platform that Keras sees
    local_batch   0 unless they change with the batch
    """

    operations: tuple[Any, ...]
    platform: TargetPlatform
    local_batch: int = 0

    @classmethod
    def of(cls, config: TrainConfig, cluster: Cluster, local_batch: int = 0) -> Structure:
        return cls(config.key(Affects.OPERATIONS), platform_of(config, cluster), local_batch)


def estimate_space(
    jobs: JobRunner,
    observation: Observation,
    space: Space,
    versions: Versions,
    *,
    headroom: float,
    remat_asked: bool,
    measurable: bool = False,
) -> Findings:
    """Estimate the space and prune it in two visible steps: what fits, then what may win.

    `remat_asked`: rematerialization was asked for, so it is tried where nothing needs it, too. `measurable`: trials
    follow, so where nothing is sure to fit, what may fit is tried.
    NoFeasibleConfiguration when nothing fits; WorkloadError when the training step cannot be traced.
    """
    with Tracer(jobs, local_batch=space.baseline.batch.local) as tracer:
        pinned = len({config.precision for config in space.configs}) == 1
        estimator = _Estimator(tracer, observation, headroom, precision_is_pinned=pinned)
        estimator.add([space.baseline, *(c for c in space.configs if c.remat.mode is RematMode.NONE)])
        wanted, spared = _where_it_is_needed(space, estimator.estimates, remat_asked=remat_asked)
        estimator.add(wanted)
    rejected = (*estimator.tracer.rejected, *estimator.rejected)
    legal = [estimator.estimates[config] for config in space.configs if config in estimator.estimates]
    if not legal:
        asked = f" {space.kept}" if space.kept else ""
        reasons = "; ".join(dict.fromkeys(one.reason for one in rejected))
        raise WorkloadError(f"no configuration{asked} can be traced: {reasons}")
    legal, no_better = _decided_by_estimates(space.baseline, legal)
    fitting, too_large = feasible(legal, measurable=measurable, held=why_batch_held(observation))
    fitting, idle = without_idle_accumulation(space.baseline, fitting)
    kept, too_slow = rank(fitting, keep=[space.baseline, *(one.config for one in _best_of_each_mesh(fitting))])
    return Findings(
        observation=observation,
        cluster=jobs.cluster,
        versions=versions,
        space=space,
        estimates=estimator.estimates,
        shortlist=tuple(_in_order_of_trial(kept)),
        rejected=(*space.rejected, *rejected, *spared, *no_better, *too_large, *idle, *too_slow),
        notes=tuple(estimator.notes),
    )


def without_estimates(
    jobs: JobRunner, observation: Observation, space: Space, versions: Versions, reason: str
) -> Findings:
    """Return findings without estimates: candidates are tried by least change from the script's own configuration.

    Smaller micro-batches come last: they launch more for as many samples, and are there for want of memory.
    """
    own = space.baseline.batch.local
    nearest_first = sorted(
        space.configs, key=lambda config: (config.batch.local < own, *distance(space.baseline, config))
    )
    return Findings(
        observation=observation,
        cluster=jobs.cluster,
        versions=versions,
        space=space,
        estimates={},
        shortlist=tuple(nearest_first[:KEEP_AT_MOST]),
        rejected=space.rejected,
        notes=(f"nothing could be estimated, so trials went by least change from the script: {_in_short(reason)}",),
    )


def _in_short(reason: str) -> str:
    """Return an error in one line, without frames and listed arguments, at most `LONGEST_REASON` long."""
    line = _FRAMES.sub("", " ".join(_LISTED_ARGUMENTS.sub("", reason).split()))
    return line if len(line) <= LONGEST_REASON else f"{line[:LONGEST_REASON]} ..."


@dataclass
class Tracer:
    """Traces structures of the training step as they are needed, each once. A context manager.

    Structures that differ in the platform alone share a trace where Keras asked for nothing in which they differ.

    local_batch   at which every structure is traced; None: that of its first configuration
    rejected      a Rejection for each structure that could not be traced
    """

    jobs: JobRunner
    local_batch: int | None = None
    rejected: list[Rejection] = field(default_factory=list)
    _traces: dict[Structure, Future[Workload | Failure]] = field(default_factory=dict)
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(TRACES_AT_ONCE))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        # Not waited for: after Ctrl-C the client ends the jobs, and with them the threads.
        self._pool.shutdown(wait=False, cancel_futures=True)

    def start(self, configs: Iterable[TrainConfig], cluster: Cluster) -> None:
        """Begin to trace what will be asked for on a cluster, and go on."""
        for structure, group in _by_structure(configs, cluster).items():
            self._begin(structure, group[0])

    def workloads(
        self, configs: Iterable[TrainConfig], cluster: Cluster
    ) -> Iterator[tuple[Workload, Sequence[TrainConfig]]]:
        """Yield workloads for a cluster, each with its configurations; reject those that cannot be traced."""
        groups = _by_structure(configs, cluster)
        for structure, workload in self._traced(groups).items():
            if isinstance(workload, Failure):
                self._reject(groups[structure], workload)
            elif workload.batch_exact:
                yield from self._batch_by_batch(structure, workload, groups[structure])
            else:
                yield workload, groups[structure]

    def _traced(self, groups: Mapping[Structure, Sequence[TrainConfig]]) -> dict[Structure, Workload | Failure]:
        """Return one trace for each origin, at the batch of its first configuration unless the batch is given."""
        for structure, group in groups.items():
            self._begin(structure, group[0])
        return {structure: self._traces[structure].result() for structure in groups}

    def _begin(self, structure: Structure, config: TrainConfig) -> None:
        if structure not in self._traces:
            alike = [one for one in self._traces if replace(one, platform=structure.platform) == structure]
            before = tuple(self._traces[one] for one in alike)
            self._traces[structure] = self._pool.submit(self._trace, structure, config, before)

    def _trace(
        self, structure: Structure, config: TrainConfig, before: Sequence[Future[Workload | Failure]]
    ) -> Workload | Failure:
        """Trace on one device without accumulation: the rest is arithmetic.

        before  traces for other platforms, which began before. A runner reuses them where it can, so they are awaited.
                A structure that cannot be built on one platform is taken to be so on all.
        """
        failed = next((one for one in [earlier.result() for earlier in before] if isinstance(one, Failure)), None)
        if failed is not None:
            return failed
        local = structure.local_batch or self.local_batch or config.batch.local
        alone = config.with_(batch=Batch(local), mesh=Mesh(), layout=Layout())
        own = self.jobs.baseline
        as_it_is = own is not None and structure.operations == own.key(Affects.OPERATIONS)
        try:
            answer = self.jobs.trace(alone, structure.platform)
        except (SourceError, WorkloadError) as error:
            answer = Failure(kind=FailureKind.UNSUPPORTED, message=str(error))
        if not isinstance(answer, Failure):
            return answer[1]
        if as_it_is:
            raise WorkloadError(
                f"the training step cannot be traced as it is ({answer.kind.value}: {first_line(answer.message)})"
            )
        return answer

    def _batch_by_batch(
        self, structure: Structure, first: Workload, group: Sequence[TrainConfig]
    ) -> Iterator[tuple[Workload, Sequence[TrainConfig]]]:
        by_batch: dict[Structure, list[TrainConfig]] = {}
        for config in group:
            by_batch.setdefault(replace(structure, local_batch=config.batch.local), []).append(config)
        if own := by_batch.pop(replace(structure, local_batch=first.local_batch), []):
            yield first, own
        affordable = dict(list(by_batch.items())[: LOCAL_BATCHES_TRACED - 1])
        for key, workload in self._traced(affordable).items():
            if isinstance(workload, Failure):
                self._reject(by_batch[key], workload)
            else:
                yield workload, by_batch[key]
        for key in by_batch.keys() - affordable.keys():
            reason = "the training step changes its structure with the batch; not traced at this one"
            self.rejected.append(_unforeseen(by_batch[key], reason))

    def _reject(self, group: Sequence[TrainConfig], failure: Failure) -> None:
        self.rejected.append(_unforeseen(group, f"the training step cannot be built so: {first_line(failure.message)}"))


@dataclass
class _Estimator:
    """Keeps what arithmetic says of each configuration."""

    tracer: Tracer
    observation: Observation
    headroom: float
    precision_is_pinned: bool = False
    notes: dict[str, None] = field(default_factory=dict)
    estimates: dict[TrainConfig, CandidateEstimate] = field(default_factory=dict)
    rejected: list[Rejection] = field(default_factory=list)

    def add(self, configs: Iterable[TrainConfig]) -> None:
        """Estimate these configurations."""
        for workload, group in self.tracer.workloads(configs, self.tracer.jobs.cluster):
            self._estimate(workload, group)

    def _estimate(self, workload: Workload, group: Sequence[TrainConfig]) -> None:
        merged = merged_positions(workload) if group[0].precision is not self.observation.config.precision else ""
        if merged and not self.precision_is_pinned:
            self.rejected.append(_unforeseen(group, f"under {group[0].precision.value}, {merged}"))
            return
        if merged:
            self.notes[f"under {group[0].precision.value}, {merged}: the training may end elsewhere"] = None
        samples, cluster = PlannedFit.of(self.observation).samples, self.tracer.jobs.cluster
        unpublished: dict[str, list[TrainConfig]] = {}
        for config in group:
            try:
                one = analytic_estimate(workload, config, cluster, headroom=self.headroom)
            except HardwareError as error:
                unpublished.setdefault(str(error), []).append(config)
                continue
            outside_bytes = self._outside_bytes(config, one.memory)
            if one.validation is not None and outside_bytes:
                validation = validation_of(workload, config, cluster, one.capacity, outside_bytes)
                one = replace(one, validation=validation)
            self.estimates[config] = CandidateEstimate.of(one, samples, outside_bytes)
        for reason, configs in unpublished.items():
            self.rejected.append(_unforeseen(configs, reason))

    def _outside_bytes(self, config: TrainConfig, memory: MemoryCost) -> int:
        """Return the bytes that the process holds besides the training step, known where the device is this CPU.

        Measured before the first micro-step, when the weights are there already; simulated devices share it.
        """
        held, cluster = self.observation.process_bytes, self.tracer.jobs.cluster
        if held is None or not cluster.local or cluster.chip.kind != "cpu":
            return 0
        return max(0, held - memory.parameters - memory.non_trainable) // config.mesh.devices


def _by_structure(configs: Iterable[TrainConfig], cluster: Cluster) -> dict[Structure, list[TrainConfig]]:
    groups: dict[Structure, list[TrainConfig]] = {}
    for config in dict.fromkeys(configs):
        groups.setdefault(Structure.of(config, cluster), []).append(config)
    return groups


def _unforeseen(group: Sequence[TrainConfig], reason: str) -> Rejection:
    """Return one Rejection for configurations that cannot be estimated."""
    figures = {"configurations": len(group)}
    return Rejection(config=group[0], stage="known_issue", reason=reason, figures=figures)


def _where_it_is_needed(
    space: Space, estimates: Mapping[TrainConfig, CandidateEstimate], *, remat_asked: bool
) -> tuple[list[TrainConfig], list[Rejection]]:
    """Return the rematerialized configurations to estimate: those that do not fit without rematerialization."""
    wanted: list[TrainConfig] = []
    spared: list[TrainConfig] = []
    for config in space.configs:
        if config.remat.mode is RematMode.NONE or config in estimates:
            continue
        without = estimates.get(config.with_(remat=Remat()))
        fits_without = without is not None and without.fits and not remat_asked
        (spared if fits_without else wanted).append(config)
    if not spared:
        return wanted, []
    reason = "rematerialization adds work, and the configuration fits without it, so it was not estimated"
    figures = {"configurations": len(spared)}
    return wanted, [Rejection(config=spared[0], stage="slower", reason=reason, figures=figures)]


def _decided_by_estimates(
    baseline: TrainConfig, legal: Sequence[CandidateEstimate]
) -> tuple[list[CandidateEstimate], list[Rejection]]:
    """Drop, for each knob that estimates decide, all values but the fastest where all else is equal."""
    left, rejected = list(legal), []
    for knob in KNOBS:
        if knob.slower_because:
            left, slower = _fastest_values(knob, baseline, left)
            rejected += slower
    return left, rejected


def _fastest_values(
    knob: Knob, baseline: TrainConfig, legal: Sequence[CandidateEstimate]
) -> tuple[list[CandidateEstimate], list[Rejection]]:
    """Drop what is slower than its equal with another value of this knob; the baseline stays, and of ties the least."""
    groups: dict[TrainConfig, list[CandidateEstimate]] = {}
    for one in legal:
        groups.setdefault(knob.set(one.config, knob.value(baseline)), []).append(one)
    fastest = {
        min(group, key=lambda one: (one.update_seconds, knob.value(one.config))).config for group in groups.values()
    }
    chosen = [one for one in legal if one.config in fastest or one.config == baseline]
    dropped = [one.config for one in legal if one.config not in fastest and one.config != baseline]
    by_value = {value: [one for one in dropped if knob.value(one) == value] for value in knob.slower_because}
    return chosen, [
        Rejection(
            config=configs[0],
            stage="slower",
            reason=knob.slower_because[value],
            figures={"configurations": len(configs)},
        )
        for value, configs in by_value.items()
        if configs
    ]


def _best_of_each_mesh(fitting: Sequence[CandidateEstimate]) -> list[CandidateEstimate]:
    """Return the best estimate for each mesh, so that trials show how the training scales."""
    best: dict[Mesh, CandidateEstimate] = {}
    for one in fitting:
        known = best.get(one.config.mesh)
        if known is None or one.seconds_per_sample < known.seconds_per_sample:
            best[one.config.mesh] = one
    return list(best.values())


def _in_order_of_trial(kept: Sequence[CandidateEstimate]) -> list[TrainConfig]:
    """Return the configurations in order of trial: the best estimate, the best of each mesh, then the rest."""
    first = sorted(_best_of_each_mesh(kept), key=lambda one: one.seconds_per_sample)
    return list(dict.fromkeys(one.config for one in (*first, *kept)))
