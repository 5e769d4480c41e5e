"""Compares how baseline and plan train, over a few updates of both in processes of their own.

Equality within rounding is tried first. Where it does not hold and random numbers, batch statistics, another precision
or a baseline that does not repeat itself explain that, five seeds of the baseline say how far results may lie apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autoplan.jobs.messages import ChangeComparison, NumericsRun, Observation, UpdateRun
from autoplan.jobs.runner import JobRunner
from autoplan.plan import knobs
from autoplan.plan.records import Failure
from autoplan.tuning.verification.judgement import (
    EXACT,
    MOVED,
    MOVED_UPDATES,
    SEEDS,
    UPDATES,
    Circumstances,
    Exactness,
    Numerics,
    Tolerances,
    Verdict,
    exactness,
    incomparable,
    largest_loss_difference,
    within_seeds,
)
from cost_models.config import Affects, Precision, TrainConfig

FIRST_SEED = 1
NUMBERS = Affects.OPERATIONS | Affects.SIZES | Affects.PROGRAM | Affects.BUILD
"""Settings that affect one of these may change numbers: another rounding, another order of sums, another batch."""


def trains_with_same_program(reference: TrainConfig, winner: TrainConfig) -> bool:
    """Return whether two configurations only differ in settings that cannot change a number."""
    return reference.key(NUMBERS) == winner.key(NUMBERS)


def exactness_expected(
    baseline: TrainConfig, winner: TrainConfig, *, random_numbers: bool, batch_statistics: bool
) -> bool:
    """Return whether results should agree within rounding: in float32, without random numbers and batch statistics."""
    return _float32(baseline, winner) and not random_numbers and not batch_statistics


def _float32(baseline: TrainConfig, winner: TrainConfig) -> bool:
    return {baseline.precision, winner.precision} == {Precision.FLOAT32}


class _Stopped(Exception):
    """A run failed, or cannot be compared; the text says why."""


@dataclass
class TrainingComparison:
    """Compares two configurations.

    show   shows what is run
    alone  whether every seed takes a process of its own, because several in one ran out of memory
    """

    jobs: JobRunner
    observation: Observation
    reference: TrainConfig
    winner: TrainConfig
    show: Callable[[str], None]
    alone: bool = False

    def result(self) -> Numerics:
        """Return the verdict; `not_compared` with the reason where there is none."""
        if trains_with_same_program(self.reference, self.winner):
            differing = " and ".join(knobs.changes(self.reference, self.winner))
            return Numerics("not_compared", f"only {differing} differs, which changes no number", same_program=True)
        if self.reference.batch.effective != self.winner.batch.effective:
            return Numerics("not_compared", "the effective batches differ, so no update is the same")
        try:
            return self._compare()
        except _Stopped as stopped:
            return Numerics("not_compared", str(stopped))
        finally:
            for path in (self._changes, self._weights):
                with suppress(OSError):
                    path.unlink()

    def _compare(self) -> Numerics:
        facts = self.observation
        expected = exactness_expected(
            self.reference,
            self.winner,
            random_numbers=facts.draws_random_numbers,
            batch_statistics=facts.takes_batch_statistics,
        )
        seeds = range(FIRST_SEED, FIRST_SEED + (1 if expected else SEEDS))
        theirs = self._baseline_runs(seeds, changes_to=str(self._changes))
        ours = self._run(
            self.winner, [FIRST_SEED], compare_with=str(self._changes), **self._initial_weights(given=True)
        )
        run, base = ours.runs[0], theirs[0]
        found = Numerics(
            "not_compared",
            incomparable(base, run, self._updates),
            updates=len(run.losses),
            applied=run.applied,
            baseline_applied=base.applied,
            remainder=ours.remainder_rows > 0,
            seeds=len(theirs),
            left_out=facts.samples_left_out(self.winner),
        )
        if found.detail:
            return found
        if not all(map(math.isfinite, run.losses)):
            return replace(found, verdict="outside", detail="a loss of the plan is not a finite number")
        if _float32(self.reference, self.winner):
            equal = exactness(base, ours, self._tolerances)
            if equal.holds or expected:
                return self._exactly(found, equal, base, ours)
        return self._by_seeds(found, theirs, ours)

    def _exactly(self, found: Numerics, equal: Exactness, base: UpdateRun, ours: NumericsRun) -> Numerics:
        """Conclude where results should be equal within rounding; look for other causes where they are not."""
        if equal.holds:
            return _of(found, equal, "exact")
        if not equal.faults:
            return _of(found, equal, "not_compared")
        if equal.only_weights:
            rounding = self._compare_baseline([FIRST_SEED], nudged=True).compared
            explained = exactness(base, ours, self._tolerances, rounding)
            if explained.holds:
                return _of(found, explained, "exact")
        draws = sorted({*base.random_draws, *ours.runs[0].random_draws})
        again = self._compare_baseline(range(FIRST_SEED, FIRST_SEED + SEEDS) if draws else [FIRST_SEED])
        if draws or not self._repeats(base, again):
            why = f"random numbers are drawn ({draws[0]})" if draws else "the baseline does not repeat its own results"
            runs = self._completed(again.runs)
            judged = self._by_seeds(replace(found, seeds=len(runs)), runs, ours)
            return replace(judged, detail=f"{why}; {judged.detail}")
        return _of(found, equal, "outside")

    def _repeats(self, base: UpdateRun, again: NumericsRun) -> bool:
        """Return whether the baseline gives its own results again with the same seed."""
        compared: ChangeComparison | None = again.compared
        same_losses = largest_loss_difference(base.losses, again.runs[0].losses) <= self._tolerances.loss
        return same_losses and (compared is None or compared.weights <= self._tolerances.change)

    def _by_seeds(self, found: Numerics, theirs: Sequence[UpdateRun], ours: NumericsRun) -> Numerics:
        """Conclude from the variation between seeds."""
        facts, sizes = self.observation, (self.reference.batch.global_size, self.winner.batch.global_size)
        known = Circumstances(
            self._tolerances,
            self.winner.precision.compute_dtype,
            other_statistics=facts.takes_batch_statistics and sizes[0] != sizes[1],
        )
        verdict, detail, state = within_seeds(theirs, ours, known)
        return replace(found, verdict=verdict, detail=detail, state=state, seeds=len(theirs))

    @property
    def _moved(self) -> bool:
        return self.reference.backend != self.winner.backend

    @property
    def _tolerances(self) -> Tolerances:
        return MOVED if self._moved else EXACT

    @property
    def _updates(self) -> int:
        return MOVED_UPDATES if self._moved else UPDATES

    @property
    def _changes(self) -> Path:
        return self._folder / "baseline_changes.npz"

    @property
    def _weights(self) -> Path:
        return self._folder / "initial_weights.npz"

    @property
    def _folder(self) -> Path:
        return (self.jobs.logs or Path()).absolute()

    def _initial_weights(self, *, given: bool) -> dict[str, str]:
        """Backends draw other initial weights from one seed: the baseline's are kept, and given to the plan."""
        if not self._moved:
            return {}
        return {"weights_from": str(self._weights)} if given else {"weights_to": str(self._weights)}

    def _baseline_runs(self, seeds: Sequence[int], **options: Any) -> list[UpdateRun]:
        first = self._run(self.reference, seeds, **options, **self._initial_weights(given=False))
        return self._completed(first.runs, seeds)

    def _completed(self, runs: Sequence[UpdateRun], seeds: Sequence[int] = ()) -> list[UpdateRun]:
        """Return runs of all seeds. A process runs as many seeds as it can, others take further processes."""
        seeds = seeds or range(FIRST_SEED, FIRST_SEED + SEEDS)
        found = {run.seed: run for run in runs}
        while missing := [seed for seed in seeds if seed not in found]:
            found |= {run.seed: run for run in self._run(self.reference, missing).runs}
        return [found[seed] for seed in seeds]

    def _compare_baseline(self, seeds: Sequence[int], *, nudged: bool = False) -> NumericsRun:
        """Run the baseline again and compare it with its own first run."""
        options = {"nudged": True} if nudged else {}
        return self._run(self.reference, seeds, compare_with=str(self._changes), **options)

    def _run(self, config: TrainConfig, seeds: Sequence[int], **options: Any) -> NumericsRun:
        """Run the updates with some seeds, or with the first of them."""
        seeds = seeds[:1] if self.alone else seeds
        whose = "plan's" if config == self.winner else "baseline's"
        shown = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"
        self.show(f"verification, {self._updates} updates with {shown}: {config.describe()}")
        accumulations = sorted({self.reference.batch.accumulation, self.winner.batch.accumulation})
        found = self.jobs.numerics(
            config, seeds=list(seeds), updates=self._updates, options={"accumulations": accumulations, **options}
        )
        if isinstance(found, Failure) and found.out_of_memory and len(seeds) > 1:
            self.alone = True
            return self._run(config, seeds, **options)
        if isinstance(found, Failure):
            raise _Stopped(f"the run for the {whose} losses failed ({found.kind.value}: {found.message})")
        return found


def _of(found: Numerics, equal: Exactness, verdict: Verdict) -> Numerics:
    return replace(
        found,
        verdict=verdict,
        detail=equal.detail,
        weight_difference=equal.weight_difference,
        weight_difference_of=equal.weight_difference_of,
        state=equal.state,
    )
