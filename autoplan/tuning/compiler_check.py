"""Compiles the best candidates for absent hardware in turn, and ranks the rest again by the compiler's figures.

The compiler's figures of one configuration correct the estimates of similar ones, and the corrected ranking decides
which is compiled next. Each compilation is a trial of the study, kept there and never done twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from autoplan import formatting
from autoplan.errors import HardwareError, StudyError
from autoplan.jobs.runner import TRACED_ON, JobRunner, compilers_at_once
from autoplan.machine import compiler_packages
from autoplan.plan.records import CompilerEvidence, Evidence, Failure, FailureKind, Rejection, TrialRecord
from autoplan.tuning.candidate_estimate import CandidateEstimate
from autoplan.tuning.estimates.findings import Findings
from autoplan.tuning.request import COMPILED_AT_MOST, Event, Watch
from autoplan.tuning.space.legal_configs import Space
from autoplan.tuning.space.prune import distance, would_fit
from autoplan.tuning.trials.storage import StudyPlace, study_name
from autoplan.tuning.trials.study import Study, knob_choices
from autoplan.tuning.trials.study_identity import identity, stem
from cost_models.config import Affects, TrainConfig
from cost_models.execution import program_key
from cost_models.hardware.compile_targets import compiler_target
from cost_models.memory import MemoryCost

NOTHING_LEFT = "nothing that may fit is left to compile"
"""Why compiling ends where the compiler finds everything too large."""
TIE = 1.05
"""Estimates this near to the best count as equally good."""
CARRIED = 0.05
"""Relative error allowed for a corrected estimate. From one compiled batch to half, twice and four times the batch,
31 of 33 estimates were inside (held-out models of `studies/memory_vs_compiler`, by the rules of that time)."""
_STATE = ("parameters", "non_trainable", "optimizer", "accumulators", "inputs")


@dataclass(frozen=True)
class CheckedByCompiler:
    """The result of a compiler check.

    winner       the best that it found to fit; None where none did
    records      its trials
    rejected     what it found too large, with its figures
    ended        why no more was compiled
    instead      the best that it has not found too large, where there is no winner; None where there is none such
    """

    winner: TrialRecord | None
    records: tuple[TrialRecord, ...]
    rejected: tuple[Rejection, ...]
    ended: str
    interrupted: bool = False
    instead: TrainConfig | None = None

    @property
    def notes(self) -> list[str]:
        """Configurations that could not be compiled, and why. That says nothing for or against them."""
        failed = [one for one in self.records if one.failure is not None and not one.failure.out_of_memory]
        return [
            f"{one.config.describe()} could not be compiled "
            f"({one.failure.kind.value}: {formatting.first_line(one.failure.message)})"
            for one in failed
            if one.failure is not None
        ]


@dataclass
class CompilerCheck:
    """Compiles one configuration after another and reports each to the watcher.

    most  so many are compiled at most, those of an earlier run not counted
    """

    jobs: JobRunner
    study: Study
    findings: Findings
    watch: Watch
    most: int = COMPILED_AT_MOST
    _compiled: int = 0
    _storage_failed: bool = False

    def run(self) -> CheckedByCompiler:
        """Compile until the best of the corrected ranking is compiled, the count is reached, or time is up."""
        interrupted = False
        try:
            ended = self._until_the_best_is_compiled()
        except KeyboardInterrupt:
            ended, interrupted = "interrupted", True
        self.watch(Event("stage", f"compiling ended: {ended}"))
        ranked = [one for one in self._ranked() if self._evidence(one.config) is not None]
        winner = next((self.study.outcome(one.config) for one in ranked), None)
        instead = self._instead() if winner is None else None
        return CheckedByCompiler(
            winner, tuple(self.study.records), tuple(self._too_large()), ended, interrupted, instead
        )

    def _until_the_best_is_compiled(self) -> str:
        while True:
            ahead = self._ahead()
            if not ahead:
                return "the best of the corrected ranking has been compiled" if self._ranked() else NOTHING_LEFT
            if self._compiled >= self.most:
                return f"{formatting.counted(self._compiled, 'configuration')} compiled"
            if not self.jobs.clock.allows(1.0):
                return "the budget is spent"
            if self._storage_failed:
                return "the study cannot be stored"
            self._compile(ahead[: min(compilers_at_once(), self.most - self._compiled)])

    def _ahead(self) -> list[TrainConfig]:
        """Return the configurations that rank before the best compiled one.

        Where a correction leaves nothing that may fit, and nothing that was compiled does: what needs least, for a
        correction may be wrong, and only a compiler can show it.
        """
        found: list[TrainConfig] = []
        for one in self._ranked():
            if self._evidence(one.config) is not None:
                return found
            found.append(one.config)
        return found or self._least()

    def _least(self) -> list[TrainConfig]:
        """Return the configuration with the least estimated memory that is not compiled and may fit."""
        known = self._known()
        left = [one for one in self.findings.estimates.values() if self._legal(one.config) and one.config not in known]
        left = [one for one in left if one.may_fit]
        return [one.config for one in sorted(left, key=lambda one: self._corrected(one).least_bytes)[:1]]

    def _instead(self) -> TrainConfig | None:
        """Return the best of the shortlist that fits by all evidence, else the one that would be compiled next."""
        fitting = []
        for config in self.findings.shortlist:
            estimate, record = self.findings.estimates.get(config), self.study.outcome(config)
            if estimate is None or (record is not None and _is_too_large(record, estimate)):
                continue
            if (corrected := self._corrected(estimate)).fits:
                fitting.append(corrected)
        if fitting:
            return self._least_change_first(sorted(fitting, key=lambda one: one.seconds_per_sample))[0].config
        return next(iter(self._ahead()), None)

    def _ranked(self) -> list[CandidateEstimate]:
        """Return corrected estimates that may fit, the best first, without those that the compiler refused."""
        corrected = [self._corrected(one) for one in self.findings.estimates.values() if self._legal(one.config)]
        hopeful = [one for one in corrected if one.may_fit and _within_headroom(one)]
        return self._least_change_first(sorted(hopeful, key=lambda one: one.seconds_per_sample))

    def _least_change_first(self, ordered: list[CandidateEstimate]) -> list[CandidateEstimate]:
        """Order configurations whose estimates are as good as the best by the number of their changes."""
        own = self.findings.space.baseline
        ties = [one for one in ordered if one.seconds_per_sample <= TIE * ordered[0].seconds_per_sample]
        nearest = sorted(ties, key=lambda one: (*distance(own, one.config), one.seconds_per_sample))
        return [*nearest, *ordered[len(ties) :]]

    def _legal(self, config: TrainConfig) -> bool:
        if config.backend != self.jobs.backend or config not in self._space:  # nobody asks for another backend
            return False
        if not config.jit_compile or any(getattr(config, name) != value for name, value in self._same_program.items()):
            return False
        record = self.study.outcome(config)
        return record is None or record.failure is None

    @cached_property
    def _space(self) -> frozenset[TrainConfig]:
        return frozenset(self.findings.space.configs)

    @cached_property
    def _same_program(self) -> dict[str, Any]:
        """Return one value of each setting that leaves the program the same: the baseline's where it is legal."""
        configs, own = self.findings.space.configs, self.findings.space.baseline
        chosen = {}
        for name in TrainConfig.settings():
            if not TrainConfig.affects(name) & (Affects.PROGRAM | Affects.SIZES):
                values = [getattr(config, name) for config in configs]
                chosen[name] = getattr(own, name) if getattr(own, name) in values else min(values, default=None)
        return chosen

    def _corrected(self, estimate: CandidateEstimate) -> CandidateEstimate:
        own = self._evidence(estimate.config)
        if own is not None:
            return replace(
                estimate,
                update_seconds=_update_seconds(own) or estimate.update_seconds,
                needed_bytes=own.memory.must_fit_bytes,
                least_bytes=own.memory.must_fit_bytes,
            )
        known = self._nearest_known(estimate)
        if known is None:
            return estimate
        like, total_bytes, update_seconds = known
        total = carried(estimate.analytic.memory, like.analytic.memory, total_bytes)
        time_ratio = 1.0 if update_seconds is None else update_seconds / like.update_seconds
        return replace(
            estimate,
            update_seconds=estimate.update_seconds * time_ratio,
            needed_bytes=round(total * (1 + CARRIED)),
            least_bytes=round(total * (1 - CARRIED)),
        )

    def _nearest_known(self, estimate: CandidateEstimate) -> tuple[CandidateEstimate, int, float | None] | None:
        """Return (estimate, compiled bytes, compiled seconds) of the same program at the nearest local batch."""
        found = [
            (self.findings.estimates[config], *figures_)
            for config, figures_ in self._known().items()
            if config in self.findings.estimates and _alike(config, estimate.config)
        ]
        size = estimate.config.batch.local
        return min(found, key=lambda one: abs(one[0].config.batch.local - size), default=None)

    def _known(self) -> dict[TrainConfig, tuple[int, float | None]]:
        known: dict[TrainConfig, tuple[int, float | None]] = {}
        for record in self.study.records:
            config = record.config
            if record.compiled is not None:
                known[config] = record.compiled.memory.program_bytes, _update_seconds(record.compiled)
            elif record.failure is not None and record.failure.needed_bytes is not None:
                known[config] = record.failure.needed_bytes, None
        return known

    def _evidence(self, config: TrainConfig) -> CompilerEvidence | None:
        record = self.study.outcome(config)
        return None if record is None else record.compiled

    def _compile(self, configs: Sequence[TrainConfig]) -> None:
        first = self.study.next_number
        try:
            for number, config in enumerate(configs, first):
                self.study.begin(config)
                self.watch(Event("trial_started", config.describe(), number=number, config=config))
        except StudyError as error:
            self._without_study(error)
            return
        pool = ThreadPoolExecutor(len(configs))
        try:
            outcomes = list(pool.map(self._ask, configs, range(first, first + len(configs))))
        except BaseException:
            for config in configs:
                self._give_back(config)
            raise
        finally:
            # Not waited for: after Ctrl-C the client ends the jobs, and with them the threads.
            pool.shutdown(wait=False, cancel_futures=True)
        for config, outcome in zip(configs, outcomes, strict=True):
            if isinstance(outcome, Failure) and self.jobs.cut_short(outcome):
                self._give_back(config)
            else:
                self._record(config, outcome)

    def _give_back(self, config: TrainConfig) -> None:
        """Give a trial without an outcome back; if the study cannot store that, it ends it when it opens next."""
        with suppress(StudyError):
            self.study.abandon(config)

    def _without_study(self, error: StudyError) -> None:
        """Stop compiling where the study cannot be stored. The plan uses what is known."""
        self._storage_failed = True
        self.watch(Event("note", f"{error}; compiling ends here, and the plan uses the results so far"))

    def _ask(self, config: TrainConfig, number: int) -> CompilerEvidence | Failure:
        return self.jobs.compile(
            config,
            analytic=self.findings.estimates[config].analytic,
            name=f"compile-{number}",
            on_phase=lambda phase: self.watch(Event("trial_phase", phase, number=number)),
        )

    def _record(self, config: TrainConfig, outcome: CompilerEvidence | Failure) -> None:
        self._compiled += 1
        estimate = self.findings.estimates[config]
        objective = None if isinstance(outcome, Failure) else self._seconds_per_sample(estimate, outcome)
        try:
            record = self.study.tell(config, outcome, objective, estimate.update_seconds)
        except StudyError as error:
            self._without_study(error)
            record = self.study.records[-1]
        best = next((one for one in self._ranked() if self._evidence(one.config) is not None), None)
        best_record = None if best is None else self.study.outcome(best.config)
        self.watch(
            Event(
                "trial_finished",
                outcome.message if isinstance(outcome, Failure) else config.describe(),
                number=record.number,
                config=record.config,
                outcome=outcome,
                best_number=None if best_record is None else best_record.number,
            )
        )

    def _seconds_per_sample(self, estimate: CandidateEstimate, evidence: CompilerEvidence) -> float:
        seconds = _update_seconds(evidence) or estimate.update_seconds
        return replace(estimate, update_seconds=seconds).seconds_per_sample

    def _too_large(self) -> list[Rejection]:
        """Return a Rejection for each configuration that the compiler found too large, by its error or its figures."""
        fitting = self._ranked()
        found = []
        for record in self.study.records:
            config = record.config
            estimate = self.findings.estimates.get(config)
            needed = _needed_bytes(record)
            if estimate is None or not _is_too_large(record, estimate):
                continue
            usable = estimate.usable_bytes
            if record.failure is not None and record.failure.available_bytes is not None:
                usable = record.failure.available_bytes
            found.append(
                Rejection(
                    config=record.config,
                    stage="infeasible",
                    reason=f"the compiler needs {_parts(record, needed)} of {formatting.size(usable)} a device",
                    figures={
                        "evidence": Evidence.COMPILED.value,
                        "needed_bytes": needed,
                        "usable_bytes": usable,
                        "capacity_bytes": estimate.capacity_bytes,
                        "headroom": estimate.headroom,
                    },
                    nearest=would_fit(config, fitting),
                )
            )
        return found


def why_not_here(jobs: JobRunner, space: Space) -> str | None:
    """Return why the compiler of this hardware cannot be used here; None where it can."""
    if jobs.backend != TRACED_ON:
        return f"what {jobs.backend} runs is not what XLA compiles for JAX"
    if not any(config.jit_compile for config in space.configs):
        return "without jit_compile there is no compiled program"
    try:
        target = compiler_target(jobs.cluster)
    except HardwareError as error:
        return str(error)
    return compiler_packages.why_missing(target)


def check(
    jobs: JobRunner, findings: Findings, watch: Watch, most: int, *, study: str | None
) -> tuple[StudyPlace, CheckedByCompiler]:
    """Compile the best estimates with the compiler of the runner's cluster, in a study.

    most   the largest number of configurations to compile
    study  path or URL of the study; None: the usual folder

    HardwareError where the compiler is not installed here.
    """
    target = compiler_target(jobs.cluster)
    key = {**identity(jobs, findings), "compiler": target.name, **compiler_packages.versions(target)}
    place = StudyPlace.choose(study, study_name(stem(jobs.source), key))
    choices = knob_choices([findings.space.baseline, *findings.space.configs])
    watch(Event("stage", f"compiling the best estimates with {target.name}"))
    with Study(place, findings.shortlist, choices, key) as kept:
        return place, CompilerCheck(jobs.with_(logs=place.folder), kept, findings, watch, most).run()


def _within_headroom(estimate: CandidateEstimate) -> bool:
    """Return whether the lower end leaves the headroom free. After a compilation it is the compiler's figure."""
    return estimate.analytic.capacity.fits(estimate.least_bytes)


def _is_too_large(record: TrialRecord, estimate: CandidateEstimate) -> bool:
    if record.failure is not None:
        return record.failure.kind is FailureKind.COMPILE_OOM
    needed = _needed_bytes(record)
    return needed is not None and not estimate.analytic.capacity.fits(needed)


def _parts(record: TrialRecord, needed: int | None) -> str:
    """Return the compiler's figure, and apart from it the other batches that `fit` holds."""
    if record.compiled is None or not record.compiled.memory.other_batches_bytes:
        return formatting.size(needed)
    memory = record.compiled.memory
    program, others = formatting.size(memory.program_bytes), formatting.size(memory.other_batches_bytes)
    return f"{program}, and fit {others} for the next batch,"


def _needed_bytes(record: TrialRecord) -> int | None:
    if record.failure is not None:
        return record.failure.needed_bytes
    return None if record.compiled is None else record.compiled.memory.must_fit_bytes


def _alike(one: TrainConfig, other: TrainConfig) -> bool:
    """Return whether both compiled programs have the same operations, for other sizes."""
    return program_key(one.with_(jit_compile=True)) == program_key(other.with_(jit_compile=True))


def carried(memory: MemoryCost, like: MemoryCost, compiled_bytes: int) -> float:
    """Return the bytes of a device: counted state, and temporaries scaled by the factor of a compiled neighbour.

    compiled_bytes  those of the neighbour's program, without other batches that `fit` holds
    """
    own_state, own_total = _state_and_total(memory)
    state, total = _state_and_total(like)
    ratio = max(0, compiled_bytes - state) / max(1, total - state)
    return own_state + ratio * (own_total - own_state) + memory.other_batches


def _state_and_total(memory: MemoryCost) -> tuple[int, int]:
    components = memory.components()
    return sum(components[name] for name in _STATE), memory.total - memory.other_batches


def _update_seconds(evidence: CompilerEvidence) -> float | None:
    return None if evidence.time is None else evidence.time.update_seconds
