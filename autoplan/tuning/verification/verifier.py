"""Verifies the winner: runs baseline and winner alternately in clean processes, and compares times and losses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autoplan.jobs.messages import Observation
from autoplan.jobs.runner import JobRunner
from autoplan.plan.records import Failure, Measurement, TrialRecord, Verification
from autoplan.tuning.request import Event, Watch
from autoplan.tuning.verification.statistics import (
    EXACT_TOLERANCE,
    MOVED_TOLERANCE,
    MOVED_UPDATES,
    SEEDS,
    UPDATES,
    Numerics,
    Speedup,
    Timed,
    compare_losses,
    exactness_expected,
    speedup,
)
from cost_models.config import TrainConfig

PAIRS = 3
MOST_PAIRS = 5
FEWEST_PAIRS = 2
LONGER = {"groups": 8, "group_seconds": 1.0}
LONGER_SECONDS = 6.0
NUMERICS_SECONDS = 3.0
FIRST_SEED = 1


@dataclass(frozen=True)
class Verified:
    """The verification of a winner in clean processes. `out_of_time`: the budget ended before there was a result."""

    config: TrainConfig
    verification: Verification
    runs: tuple[Timed, ...] = ()
    out_of_time: bool = False

    @property
    def holds(self) -> bool:
        """Whether it was shown to be faster, with numerics that do not differ."""
        return self.verification.faster and self.verification.numerics != "outside"


@dataclass
class Verifier:
    """Verifies winners against a reference. All runs find the programs that the trials compiled, so all start equal.

    interrupted   whether Ctrl-C ended it early, with what there was by then
    """

    jobs: JobRunner
    observation: Observation
    watch: Watch
    most_pairs: int = MOST_PAIRS
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
        numerics = self._numerics(reference, winner)
        if numerics.verdict == "outside":
            return _refused(winner, numerics)
        timed: list[tuple[Timed, Timed]] = []
        try:
            failure = self._time_enough(reference, winner, timed)
        except KeyboardInterrupt:
            if len(timed) < FEWEST_PAIRS:
                raise
            self.interrupted, failure = True, None
        if failure is not None:
            return _failed(winner, numerics, failure, out_of_time=self.jobs.cut_short(failure))
        return self._verified(winner, numerics, timed, speedup(timed))

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
    ) -> Failure | None:
        """Add pairs until they show which is faster, or there are enough of them."""
        for wanted in (PAIRS, self.most_pairs):
            failure = self._time_pairs(reference, winner, timed, wanted)
            if failure is not None:
                return failure
            shown = speedup(timed)
            if shown.low > 1 or shown.high < 1 or not self._time_for(timed[0]):
                break
        return None

    def _time_pairs(
        self, reference: TrainConfig, winner: TrainConfig, timed: list[tuple[Timed, Timed]], wanted: int
    ) -> Failure | None:
        """Add pairs until there are `wanted`; the order within a pair alternates."""
        while len(timed) < wanted:
            order = (reference, winner) if len(timed) % 2 == 0 else (winner, reference)
            runs: dict[TrainConfig, Timed] = {}
            for config in order:
                self._tell(f"verification, pair {len(timed) + 1} of {wanted}: {config.describe()}")
                outcome = self._measure(config, len(timed) + 1, thorough=config == winner)
                if isinstance(outcome, Failure):
                    enough = len(timed) >= FEWEST_PAIRS and self.jobs.cut_short(outcome)
                    return None if enough else outcome
                runs[config] = Timed(config, outcome)
            timed.append((runs[reference], runs[winner]))
            if len(timed) >= FEWEST_PAIRS and not self._time_for(timed[-1]):
                return None
        return None

    def _measure(self, config: TrainConfig, pair: int, *, thorough: bool) -> Measurement | Failure:
        extras = {"validation": True, "checkpoint": True, "remainder": True} if thorough and pair == 1 else {}
        options = {**LONGER, **extras}
        role = "plan" if thorough else "reference"
        return self.jobs.measure(config, f"verify-{pair}-{role}", options=options, patience=2.0)

    def _time_for(self, pair: tuple[Timed, Timed]) -> bool:
        return self.jobs.clock.allows(sum(one.measurement.wall_seconds for one in pair) * 1.2)

    def _numerics(self, reference: TrainConfig, winner: TrainConfig) -> Numerics:
        """Compare losses of both under one seed, and of the reference under four more where they need not be equal."""
        if reference.batch.effective != winner.batch.effective:
            return Numerics("not_compared", "the effective batches differ, so no update is the same")
        facts = self.observation
        exact = exactness_expected(reference, winner, random_layers=facts.random_layers, batch_norm=facts.batch_norm)
        seeds = range(FIRST_SEED, FIRST_SEED + (1 if exact else SEEDS))
        moved = reference.backend != winner.backend
        updates = MOVED_UPDATES if moved else UPDATES
        theirs: list[list[float]] = []
        ours: list[float] = []
        runs = [(winner, FIRST_SEED), *((reference, seed) for seed in seeds)]
        for config, seed in [*runs[1:], runs[0]] if moved else runs:  # who gives its weights runs first
            whose = "plan's" if config == winner else "baseline's"
            self._tell(f"verification, losses of {updates} updates with seed {seed}: {config.describe()}")
            options = self._initial_weights(seed, given=config == winner) if moved else {}
            losses = self.jobs.numerics(config, seed=seed, updates=updates, options=options)
            if isinstance(losses, Failure):
                return Numerics(
                    "not_compared", f"the run for the {whose} losses failed ({losses.kind.value}: {losses.message})"
                )
            ours, theirs = (losses, theirs) if config == winner else (ours, [*theirs, losses])
        return compare_losses(
            theirs,
            ours,
            exact=exact,
            compute_dtype=winner.precision.compute_dtype,
            other_statistics=facts.batch_norm and reference.batch.global_size != winner.batch.global_size,
            tolerance=MOVED_TOLERANCE if moved else EXACT_TOLERANCE,
        )

    def _initial_weights(self, seed: int, *, given: bool) -> dict[str, str]:
        """Backends draw other initial weights from one seed: the baseline's are kept, and given to the plan."""
        if self.jobs.logs is None or seed != FIRST_SEED:
            return {}
        path = str((self.jobs.logs / "initial_weights.npz").absolute())
        return {"weights_from": path} if given else {"weights_to": path}

    def _verified(
        self, winner: TrainConfig, numerics: Numerics, timed: list[tuple[Timed, Timed]], shown: Speedup
    ) -> Verified:
        ran = {note for _, one in timed for note in one.measurement.notes}
        verification = Verification(
            pairs=shown.pairs,
            speedup=shown.median,
            speedup_low=shown.low,
            speedup_high=shown.high,
            faster=shown.faster,
            numerics=numerics.verdict,
            numerics_detail=numerics.detail,
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

    Each run of a pair takes a trial and what its longer groups add; a comparison of losses takes the source's own start
    and a few updates, twice where losses must be equal, else once for each seed and for the plan.
    """
    runs = 2 if exact else SEEDS + 1
    pair_seconds = reference_seconds + winner_seconds + 2 * LONGER_SECONDS
    return FEWEST_PAIRS * pair_seconds + runs * (setup_seconds + NUMERICS_SECONDS)


def unverified(detail: str) -> Verification:
    """Return the record of a plan that was not verified, with the reason."""
    return Verification(pairs=0, speedup=None, faster=False, numerics="not_compared", numerics_detail=detail)


def _refused(winner: TrainConfig, numerics: Numerics) -> Verified:
    return Verified(
        winner,
        Verification(pairs=0, speedup=None, faster=False, numerics=numerics.verdict, numerics_detail=numerics.detail),
    )


def _failed(winner: TrainConfig, numerics: Numerics, failure: Failure, *, out_of_time: bool) -> Verified:
    detail = f"{numerics.detail}; a verification run ended: {failure.kind.value}: {failure.message}"
    verification = Verification(pairs=0, speedup=None, faster=False, numerics=numerics.verdict, numerics_detail=detail)
    return Verified(winner, verification, out_of_time=out_of_time)
