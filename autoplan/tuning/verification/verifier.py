"""Verifies the winner: runs baseline and winner alternately in clean processes, and compares times and losses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from autoplan.jobs.messages import Observation
from autoplan.jobs.runner import JobRunner
from autoplan.plan.records import Failure, FailureKind, Measurement, TrialRecord, ValidationMemory, Verification
from autoplan.tuning.request import Event, Watch
from autoplan.tuning.verification.judgement import Numerics
from autoplan.tuning.verification.numerics import TrainingComparison
from autoplan.tuning.verification.statistics import Speedup, Timed, speedup
from cost_models.config import TrainConfig

PAIRS = 3
MOST_PAIRS = 5
FEWEST_PAIRS = 2
BRIEF = {"groups": 4, "group_seconds": 0.25, "max_seconds": 10.0, "brief": True}
"""How long a run of the first pairs measures: a large difference between processes shows at once."""
LONGER = {"groups": 8, "group_seconds": 1.0, "brief": True}
BRIEF_SECONDS = 4.0
"""Seconds by which a run of the first pairs is shorter than a trial, at least as long as half of one."""
NUMERICS_SECONDS = 3.0
COMPARISONS = 3
"""Configurations whose training is compared at most where options exclude the baseline and nothing is faster."""


@dataclass(frozen=True)
class Verified:
    """The verification of a configuration in clean processes.

    out_of_time  the budget ended before there was a result
    timed        False where only training results were compared, because it is not faster
    """

    config: TrainConfig
    verification: Verification
    runs: tuple[Timed, ...] = ()
    out_of_time: bool = False
    timed: bool = True

    @property
    def holds(self) -> bool:
        """Whether it was shown to be faster, with numerics that do not differ."""
        return self.verification.faster and self.verification.numerics != "outside"


@dataclass(frozen=True)
class FailedRun:
    """A run of a pair that failed, with its configuration."""

    config: TrainConfig
    failure: Failure


@dataclass
class Verifier:
    """Verifies winners against a reference. All runs find the programs that the trials compiled, so all start equal.

    validation    whether the script's validation fits; one that does not is run with the rows that fit, or not at all
    interrupted   whether Ctrl-C ended it early, with what there was by then
    """

    jobs: JobRunner
    observation: Observation
    watch: Watch
    most_pairs: int = MOST_PAIRS
    validation: ValidationMemory | None = None
    interrupted: bool = False

    def verify_best(self, reference: TrainConfig, ranked: Sequence[TrialRecord]) -> list[Verified]:
        """Verify the best, and the next best where it does not hold and time allows; the last one counts.

        Ctrl-C ends it with what there is; KeyboardInterrupt passes where that is nothing.
        """
        tried: list[Verified] = []
        for record in ranked:
            seconds = record.measurement.wall_seconds if record.measurement else 0.0
            if tried and not self.jobs.clock.allows(verification_seconds(seconds, seconds, 0.0, exact=True)):
                break
            try:
                tried.append(self.verify(reference, record.config))
            except KeyboardInterrupt:
                if not tried:
                    raise
                self.interrupted = True
            if self.interrupted or tried[-1].holds:
                break
        return tried

    def verify(self, reference: TrainConfig, winner: TrainConfig) -> Verified:
        """Compare losses, then time pairs of processes; more pairs where the result is open and time allows.

        Ctrl-C ends it with the pairs that are complete; KeyboardInterrupt passes where they are too few.
        """
        numerics = self.compare_training(reference, winner)
        if numerics.verdict == "outside" or _mostly_skipped(numerics):
            return Verified(winner, _record(numerics))
        timed: list[tuple[Timed, Timed]] = []
        try:
            failure = self._time_enough(reference, winner, timed)
        except KeyboardInterrupt:
            if len(timed) < FEWEST_PAIRS:
                raise
            self.interrupted, failure = True, None
        if failure is not None and self.jobs.cut_short(failure.failure):
            return Verified(winner, _record(numerics), out_of_time=True)  # the run has not failed
        if failure is not None:
            return _failed(winner, numerics, failure)
        return self._verified(winner, numerics, timed, speedup(timed))

    def compare_best(
        self, reference: TrainConfig, ranked: Sequence[TrialRecord], verified: Sequence[Verified]
    ) -> list[Verified]:
        """Compare training results of the best that trains as the reference does, where time allows.

        This is for options that exclude the reference: the plan is one of `ranked` then, faster or not. Those that are
        verified already are not compared again. Ctrl-C ends it with what there is.
        """
        known = {one.config: one.verification.numerics for one in verified}
        found: list[Verified] = []
        for record in ranked[:COMPARISONS]:
            if known.get(record.config, "outside") != "outside":
                break
            own = record.measurement
            setup_seconds = self.observation.setup_seconds if own is None else own.setup_seconds
            seconds = 2 * (setup_seconds + NUMERICS_SECONDS)
            if record.config in known or not self.jobs.clock.allows(seconds):
                continue
            try:
                numerics = self.compare_training(reference, record.config)
            except KeyboardInterrupt:
                self.interrupted = True
                break
            found.append(Verified(record.config, _record(numerics), timed=False))
            if numerics.verdict != "outside":
                break
        return found

    def compare_training(self, reference: TrainConfig, winner: TrainConfig) -> Numerics:
        """Return whether the winner trains as the reference does."""
        return TrainingComparison(self.jobs, self.observation, reference, winner, self._tell).result()

    def repeat(self, reference: TrainConfig, first: Measurement) -> list[Timed]:
        """Run the reference again, as time and Ctrl-C allow, to measure how much processes differ here."""
        runs = [Timed(reference, first)]
        try:
            while len(runs) <= PAIRS and self._time_for((runs[-1], runs[-1])):
                self._tell(f"repeat {len(runs)} of {PAIRS}: {reference.describe()}")
                outcome = self._measure(reference, len(runs), thorough=False)
                if isinstance(outcome, Failure):
                    break
                runs.append(Timed(reference, outcome))
        except KeyboardInterrupt:
            self.interrupted = True
        return runs

    def _time_enough(
        self, reference: TrainConfig, winner: TrainConfig, timed: list[tuple[Timed, Timed]]
    ) -> FailedRun | None:
        """Add pairs until they show which is faster, or there are enough of them. The first pairs are brief."""
        for wanted in (FEWEST_PAIRS, PAIRS, self.most_pairs):
            failure = self._time_pairs(reference, winner, timed, wanted)
            if failure is not None:
                return failure
            shown = speedup(timed)
            enough = shown.clear if len(timed) <= FEWEST_PAIRS else shown.decided
            if enough or not self._time_for(timed[-1]):
                break
        return None

    def _time_pairs(
        self, reference: TrainConfig, winner: TrainConfig, timed: list[tuple[Timed, Timed]], wanted: int
    ) -> FailedRun | None:
        """Add pairs until there are `wanted`; the order within a pair alternates."""
        while len(timed) < wanted:
            clear = bool(timed) and speedup(timed).large
            order = (reference, winner) if len(timed) % 2 == 0 else (winner, reference)
            runs: dict[TrainConfig, Timed] = {}
            for config in order:
                self._tell(f"verification, pair {len(timed) + 1} of {wanted}: {config.describe()}")
                outcome = self._measure(config, len(timed) + 1, thorough=config == winner, clear=clear)
                if isinstance(outcome, Failure):
                    enough = len(timed) >= FEWEST_PAIRS and self.jobs.cut_short(outcome)
                    return None if enough else FailedRun(config, outcome)
                runs[config] = Timed(config, outcome)
            timed.append((runs[reference], runs[winner]))
            if len(timed) >= FEWEST_PAIRS and not self._time_for(timed[-1]):
                return None
        return None

    def _measure(self, config: TrainConfig, pair: int, *, thorough: bool, clear: bool = False) -> Measurement | Failure:
        """Run one process of a pair. Brief runs suffice for the first pairs, and where the difference is clear."""
        extras = {**self._validated(), "checkpoint": True, "remainder": True} if thorough and pair == 1 else {}
        options = {**(BRIEF if pair <= FEWEST_PAIRS or clear else LONGER), **extras}
        role = "plan" if thorough else "reference"
        return self.jobs.measure(config, f"verify-{pair}-{role}", options=options, patience=2.0)

    def _validated(self) -> dict[str, Any]:
        """Return the options for the validation: what does not fit beside the reference is no fault of a candidate."""
        found = self.validation
        if found is None or found.fits:
            return {"validation": True}
        return {} if found.fitting_rows is None else {"validation": True, "validation_rows": found.fitting_rows}

    def _time_for(self, pair: tuple[Timed, Timed]) -> bool:
        return self.jobs.clock.allows(sum(one.measurement.wall_seconds for one in pair) * 1.2)

    def _verified(
        self, winner: TrainConfig, numerics: Numerics, timed: list[tuple[Timed, Timed]], shown: Speedup
    ) -> Verified:
        ran = {note for _, one in timed for note in one.measurement.notes}
        verification = _record(
            numerics,
            pairs=shown.pairs,
            speedup=shown.median,
            speedup_low=shown.low,
            speedup_high=shown.high,
            faster=shown.faster,
            validation_ran="validation" in ran,
            checkpoint_saved="checkpoint" in ran,
            remainder_ran="remainder" in ran,
        )
        return Verified(winner, verification, tuple(one for pair in timed for one in pair))

    def _tell(self, text: str) -> None:
        self.watch(Event("verification", text, seconds_left=self.jobs.clock.left()))


def verification_seconds(
    reference_seconds: float, winner_seconds: float, setup_seconds: float, *, exact: bool
) -> float:
    """Return the approximate seconds of the shortest verification, which trials leave for it.

    Each run of a brief pair takes less than a trial. A comparison of training takes the source's own start and a few
    updates of both; where results need not be equal, the baseline runs them with several seeds.
    """
    runs = 2 if exact else 3
    pair_seconds = sum(max(one / 2, one - BRIEF_SECONDS) for one in (reference_seconds, winner_seconds))
    return FEWEST_PAIRS * pair_seconds + runs * (setup_seconds + NUMERICS_SECONDS)


def unverified(detail: str) -> Verification:
    """Return the record of a plan that was not verified, with the reason."""
    return Verification(pairs=0, speedup=None, faster=False, numerics="not_compared", numerics_detail=detail)


def _mostly_skipped(numerics: Numerics) -> bool:
    """Return whether the plan applied less than half of the updates that the baseline applied."""
    applied, whole = numerics.applied, numerics.baseline_applied
    return applied is not None and whole is not None and 2 * applied < whole


def _record(numerics: Numerics, **timing: Any) -> Verification:
    """Return the record of a comparison, with the results of timing where there are some."""
    return Verification(
        **{"pairs": 0, "speedup": None, "faster": False, **timing},
        numerics=numerics.verdict,
        numerics_detail=numerics.detail,
        same_program=numerics.same_program,
        updates_compared=numerics.updates,
        updates_applied=numerics.applied,
        baseline_updates_applied=numerics.baseline_applied,
        remainder_compared=numerics.remainder,
        samples_left_out=numerics.left_out,
        seeds_compared=numerics.seeds,
        largest_weight_difference=numerics.weight_difference,
        largest_weight_difference_of=numerics.weight_difference_of,
        state=numerics.state,
    )


def _failed(winner: TrainConfig, numerics: Numerics, ended: FailedRun) -> Verified:
    """Return a verification that a failed run ended. A plan whose loss stops being finite trains differently."""
    reason = f"{ended.failure.kind.value}: {ended.failure.message}"
    whose = "the plan" if ended.config == winner else "the baseline"
    if ended.config == winner and ended.failure.kind is FailureKind.NAN:
        numerics = replace(numerics, verdict="outside", detail=f"in a longer run of the plan {ended.failure.message}")
    return Verified(winner, _record(numerics, failure=f"a run of {whose} failed: {reason}"))
