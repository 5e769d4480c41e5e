"""Runs the trials of a tuning: the baseline first, then what the study proposes, until count or budget is used up.

A failure ends a trial, never the study.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal

from autoplan.errors import NoFeasibleConfiguration, NothingMeasured, StudyError
from autoplan.formatting import first_line
from autoplan.jobs.answers import explain_failure
from autoplan.jobs.messages import Observation
from autoplan.jobs.runner import JobRunner
from autoplan.plan.records import (
    FAILURES,
    Evidence,
    Failure,
    FailureKind,
    Measurement,
    Outcome,
    Rejection,
    Rescue,
    TrialRecord,
)
from autoplan.tuning.candidate_estimate import CandidateEstimate
from autoplan.tuning.estimates.calibration import contenders, reordered
from autoplan.tuning.objective import PlannedFit, settled_compile_seconds
from autoplan.tuning.oom_rescue.outcome import nothing_runs, rescue
from autoplan.tuning.oom_rescue.search import Need, RescueSearch, cannot_run, needs
from autoplan.tuning.request import Event, Watch
from autoplan.tuning.space.held_batch import why_batch_held
from autoplan.tuning.space.prune import distance
from autoplan.tuning.trials.refused_settings import refused_by
from autoplan.tuning.trials.study import Study
from autoplan.tuning.verification.verifier import verification_seconds
from cost_models.config import TrainConfig

Figures = Mapping[str, Any]
MEASURED = {"groups": 8, "group_seconds": 0.5}
"""How long a trial measures: groups of micro-steps, each ended by waiting for the device."""
ROOM_MAKERS = (FailureKind.OOM, FailureKind.COMPILE_OOM, FailureKind.TIMEOUT)
"""Failures of a baseline that tuning can help with: it is too large or too slow, but not wrong."""


@dataclass(frozen=True)
class Tried:
    """The result of the trials.

    baseline    trial 0, the user's own configuration
    reference   what others are compared with: the baseline, or the first that ran where the baseline does not
    ended       why there were no more trials
    rescued     how the reference was found where the baseline runs out of memory
    left_out    what was not tried because of a failed trial that needs no more memory, or has the same settings
    """

    baseline: TrialRecord
    reference: TrialRecord
    records: tuple[TrialRecord, ...]
    ended: str
    interrupted: bool = False
    rescued: Rescue | None = None
    left_out: tuple[Rejection, ...] = ()


@dataclass(frozen=True)
class Reference:
    """The configuration that others are compared with."""

    record: TrialRecord
    rescued: Rescue | None = None
    interrupted: bool = False


@dataclass
class Runner:
    """Runs one trial after another and reports each to the watcher. Configurations are compared by the objective.

    exact               whether losses will have to be equal, which makes verification shorter
    reference_seconds   what a trial of the reference takes; 0 before there is one
    left_out            what was taken off the shortlist because of failed trials
    """

    jobs: JobRunner
    study: Study
    observation: Observation
    estimates: Mapping[TrainConfig, CandidateEstimate]
    legal: frozenset[TrainConfig]
    watch: Watch
    trials: int
    exact: bool = True
    reference_seconds: float = 0.0
    left_out: list[Rejection] = field(default_factory=list)
    _trial_seconds: list[float] = field(default_factory=list)
    _storage_failed: bool = False

    def run_baseline(self, config: TrainConfig) -> TrialRecord:
        """Trial 0. SourceError when the training is at fault by itself.

        A fault of an earlier run is tried again: it may have been fixed outside the source file.
        """
        for kept in self.study.records:
            self._learn(kept)
            if kept.measurement is not None:
                self.jobs.writers.update(kept.measurement.writers)
        record = self.study.outcome(config)
        if record is None or (record.failure is not None and record.failure.kind not in ROOM_MAKERS):
            record = self._run(config, announce=True)
        if record is None:
            raise _spent(self.jobs)
        if record.failure is not None and record.failure.kind not in ROOM_MAKERS:
            raise explain_failure(record.failure)
        return record

    def run_reference(self, failed: TrialRecord) -> Reference:
        """Where the baseline failed: the least change from it that runs.

        NoFeasibleConfiguration when none runs.
        """
        if failed.failure is not None and failed.failure.out_of_memory:
            return self._rescue(failed)
        return Reference(self._first_that_runs(failed))

    def _rescue(self, failed: TrialRecord) -> Reference:
        """Try changes until the least one that runs is found. Ctrl-C ends the search."""
        baseline = failed.config
        search = RescueSearch(baseline, self.legal, self._needs(baseline))
        stage = "the baseline (your own configuration) runs out of memory; searching for the smallest change that runs"
        self._tell(Event("stage", stage))
        interrupted = False
        try:
            self._climb(search)
        except KeyboardInterrupt:
            if search.least is None:
                raise
            interrupted = True
        usable_bytes = self.jobs.usable_bytes()
        found = rescue(search, failed, self.estimates, usable_bytes=usable_bytes, observation=self.observation)
        if found is None and search.next() is not None:
            raise _spent(self.jobs)
        if found is None:
            held = why_batch_held(self.observation)
            raise NoFeasibleConfiguration(nothing_runs(search, failed, self.estimates, usable_bytes, held))
        record = next(one for one in search.records if one.config == found.config)
        return Reference(record, found, interrupted)

    def _climb(self, search: RescueSearch) -> None:
        """Try what the search names, until it ends or the budget ends."""
        while (config := search.next()) is not None and self._may_go_on():
            if self._is_refused(config):
                search.skip(config)
                continue
            record = self.study.outcome(config) or self._run(config, announce=True)
            if record is None:
                return
            search.add(record)

    def _first_that_runs(self, failed: TrialRecord) -> TrialRecord:
        """By least change from a baseline that took too long. NoFeasibleConfiguration when none runs."""
        baseline = failed.config
        last: TrialRecord | None = None
        for config in sorted(self.legal, key=lambda config: distance(baseline, config)):
            if config == baseline or not self._may_fit(config) or self._is_refused(config) or not self._may_go_on():
                continue
            last = self.study.outcome(config) or self._run(config, announce=True)
            if last is not None and last.measurement is not None:
                return last
        if last is None or last.failure is None or failed.failure is None:
            raise _spent(self.jobs)
        own, why = failed.failure.message, last.failure
        raise NoFeasibleConfiguration(
            f"your own configuration took too long ({first_line(own)}), and no other configuration that was tried "
            f"runs; the last one, {last.config.describe()}, failed ({FAILURES[why.kind]}: {first_line(why.message)})"
        )

    def run_rest(self) -> str:
        """Trials until none is left to try; returns why they ended."""
        while True:
            if self._storage_failed:
                return "the study could not be stored any more"
            if len(self.study.records) >= self.trials:
                return f"all {self.trials} trials are done"
            if not self._may_go_on():
                return self._why_no_more()
            self.study.reorder(reordered(self.study.shortlist, self.estimates, self.study.records))
            try:
                config = self.study.ask(self._contenders)
            except StudyError as error:
                self._without_study(error)
                continue
            if config is None:
                return "every configuration of the shortlist was tried"
            if self._run(config, announce=False) is None:
                return "the budget is spent"

    def _why_no_more(self) -> str:
        enough = self.jobs.clock.allows(self.typical_seconds())
        return "the rest of the budget is reserved for verification" if enough else "the budget is spent"

    def _contenders(self, untried: Sequence[TrainConfig]) -> list[TrainConfig]:
        own = self.observation.config.batch.local
        return contenders(untried, self.estimates, self.study.records, local_batch=own)

    def objective(self, record: TrialRecord) -> float | None:
        """Seconds a sample of the planned fit; None for a failure."""
        if record.measurement is None:
            return None
        return self._seconds_per_sample(record.config, record.measurement)

    def _whole_fit_seconds(self, config: TrainConfig, outcome: Outcome) -> float | None:
        """Return the seconds of the script's own fit; None for a failure, or where its length is not known."""
        if isinstance(outcome, Failure):
            return None
        compile_seconds = settled_compile_seconds(outcome, self.study.records)
        return PlannedFit.of(self.observation).seconds(config, outcome, compile_seconds)

    def _seconds_per_sample(self, config: TrainConfig, measurement: Measurement) -> float:
        compile_seconds = settled_compile_seconds(measurement, self.study.records)
        return PlannedFit.of(self.observation).seconds_per_sample(config, measurement, compile_seconds)

    def ranked(self) -> list[TrialRecord]:
        """Measured and legal, the best first."""
        scored = [(self.objective(r), r.number, r) for r in self.study.records if r.config in self.legal]
        return [record for score, _, record in sorted((s, n, r) for s, n, r in scored if s is not None)]

    def worth_verifying(self, reference: TrialRecord) -> list[TrialRecord]:
        """Better than the reference, in the order in which to verify.

        Among trials whose difference from the best is within the noise, the one with the least change goes first: a
        setting without a visible gain is not worth its change, least of all one that changes the numbers.
        """
        standard = self.objective(reference) or 0.0
        better = [record for record in self.ranked() if (self.objective(record) or 0.0) < standard]
        if not better:
            return []
        baseline = reference.config
        slowest_of_best = _samples_per_second(better[0])[0]
        alike = [record for record in better if _samples_per_second(record)[1] >= slowest_of_best]

        def change(record: TrialRecord) -> tuple[bool, bool, int, float]:
            config = record.config
            knobs, _ = distance(baseline, config)
            moves, rounds = config.backend != baseline.backend, config.precision != baseline.precision
            return moves, rounds, knobs, self.objective(record) or 0.0

        first = sorted(alike, key=change)
        return [*first, *(record for record in better if record not in first)]

    def _may_fit(self, config: TrainConfig) -> bool:
        """Whether it is estimated to fit. Where nothing is estimated, nothing speaks against it."""
        estimate = self.estimates.get(config)
        return not self.estimates or (estimate is not None and estimate.fits)

    def _needs(self, baseline: TrainConfig) -> dict[TrainConfig, Need]:
        return needs(baseline, self.legal, self.estimates)

    def _learn(self, record: TrialRecord) -> None:
        """Take off the shortlist what cannot work any better than a configuration that failed."""
        if record.failure is None:
            return
        if record.failure.out_of_memory:
            needed = self._needs(record.config)
            reason = f"estimated to need no less than {record.config.describe()}, which ran out of memory"
            gone = self.study.leave_out(lambda other: cannot_run(other, record.config, needed))
            self._leave_out(gone, "infeasible", reason, {"evidence": Evidence.ANALYTIC.value})
        elif record.failure.kind is FailureKind.UNSUPPORTED:
            why = f"{first_line(record.failure.message)} (trial {record.number}, {record.config.describe()})"
            gone = self.study.leave_out(self._is_refused)
            self._leave_out(gone, "known_issue", f"a trial with the same settings was refused: {why}", {})

    def _leave_out(
        self, gone: Sequence[TrainConfig], stage: Literal["infeasible", "known_issue"], reason: str, figures: Figures
    ) -> None:
        if gone:
            figures = {**figures, "configurations": len(gone)}
            self.left_out.append(Rejection(config=gone[0], stage=stage, reason=reason, figures=figures))

    def _is_refused(self, config: TrainConfig) -> bool:
        """Return whether a configuration shares the settings of a refused one; it is not tried then."""
        own = self.observation.config
        return self.study.outcome(config) is None and refused_by(config, own, self.study.records) is not None

    def typical_seconds(self) -> float:
        """Return the median seconds of this run's trials, process start and end included; 0 before the first."""
        return median(self._trial_seconds) if self._trial_seconds else 0.0

    def _setup_seconds(self) -> float:
        """Return the median seconds before fit in a trial. Before there is one, those of the observation.

        The observation is the first process that imports the script's packages, which can take several times as long.
        """
        measured = [record.measurement.setup_seconds for record in self.study.records if record.measurement]
        return median(measured) if measured else self.observation.setup_seconds

    def _may_go_on(self) -> bool:
        """Whether another trial would leave time to verify.

        The first half of a budget is for trials in any case. So is what one other than the baseline takes: without it
        there is nothing to verify. Where options exclude the baseline, the first legal measurement is the plan.
        """
        clock, trial_seconds, setup_seconds = self.jobs.clock, self.typical_seconds(), self._setup_seconds()
        if (len(self.study.records) == 1 or not self.ranked()) and clock.allows(trial_seconds):
            return True
        if clock.budget_seconds is not None and clock.elapsed() + trial_seconds < clock.budget_seconds / 2:
            return True
        reserve = verification_seconds(self.reference_seconds, trial_seconds, setup_seconds, exact=self.exact)
        return clock.allows(trial_seconds + reserve)

    def _run(self, config: TrainConfig, *, announce: bool) -> TrialRecord | None:
        """Run one trial and store it. An interruption gives the configuration back, as does the end of the budget."""
        if announce:
            self.study.begin(config)
        number = self.study.next_number
        self._tell(Event("trial_started", config.describe(), number=number, config=config))
        started = self.jobs.clock.elapsed()
        try:
            outcome = self.jobs.measure(
                config, f"trial-{number}", options=MEASURED, on_phase=lambda phase: self._phase(number, phase)
            )
        except BaseException:
            self._give_back(config)
            raise
        self._trial_seconds.append(self.jobs.clock.elapsed() - started)
        if isinstance(outcome, Failure) and self.jobs.cut_short(outcome):
            self._give_back(config)
            return None
        return self._record(config, outcome)

    def _give_back(self, config: TrainConfig) -> None:
        """Give a trial without an outcome back; if the study cannot store that, it ends it when it opens next."""
        with suppress(StudyError):
            self.study.abandon(config)

    def _record(self, config: TrainConfig, outcome: Outcome) -> TrialRecord:
        estimate = self.estimates.get(config)
        objective = None
        if isinstance(outcome, Measurement):
            objective = self._seconds_per_sample(config, outcome)
        predicted = estimate.update_seconds if estimate else None
        try:
            record = self.study.tell(config, outcome, objective, predicted)
        except StudyError as error:
            self._without_study(error)
            record = self.study.records[-1]
        self._learn(record)
        best = next(iter(self.ranked()), None)
        text = outcome.message if isinstance(outcome, Failure) else config.describe()
        self._tell(
            Event(
                "trial_finished",
                text,
                number=record.number,
                config=record.config,
                outcome=outcome,
                whole_fit_seconds=self._whole_fit_seconds(config, outcome),
                whole_fit_known=PlannedFit.of(self.observation).samples is not None,
                best_number=best.number if best else None,
            )
        )
        return record

    def _without_study(self, error: StudyError) -> None:
        """Stop trials where the study cannot be stored. The plan uses what is in memory."""
        if not self._storage_failed:
            self._tell(Event("note", f"{error}; trials end here, and the plan uses the measurements so far"))
        self._storage_failed = True

    def _phase(self, number: int, phase: str) -> None:
        self._tell(Event("trial_phase", phase, number=number))

    def _tell(self, event: Event) -> None:
        left = self.jobs.clock.left()
        self.watch(event if left is None else Event(**{**event.__dict__, "seconds_left": left}))


def _samples_per_second(record: TrialRecord) -> tuple[float, float]:
    """The ends of the interval that a trial's groups give, slow and fast."""
    found = record.measurement
    if found is None:
        return 0.0, 0.0
    rows = found.samples_per_micro_step
    return rows / found.micro_step_seconds_high, rows / found.micro_step_seconds_low


def _spent(jobs: JobRunner) -> NothingMeasured:
    """The budget did not even reach the first measurement."""
    return NothingMeasured(
        f"the budget of {jobs.clock.budget_seconds:.0f} s was spent before a configuration was measured; give more "
        "with --budget, or plan without measuring (--no-measure)"
    )
