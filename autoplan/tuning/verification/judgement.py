"""Judges a few updates of a plan against the baseline's: equal within rounding, or within the variation between seeds.

Compared are the losses, the changes of the trainable weights and of other variables, and how many updates were applied.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from autoplan.jobs.messages import ChangeComparison, NumericsRun, UpdateRun, VariableDifference
from autoplan.tuning.verification.statistics import student_t

SEEDS = 5
UPDATES = 20
MOVED_UPDATES = 50
"""Another backend sums in another order in every kernel, and updates carry that on: a longer look, a wider bound."""
CHANGE_CONFIDENCE = 0.99
"""Confidence of the intervals of changes, higher than that of the loss, because several are compared."""
ROUNDING_FACTOR = 10.0
"""A variable may differ by this many times what the baseline's own change differs when its initial weights change in
their last digit: rounding enters at every micro-step, not only once."""

_EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}

Verdict = Literal["exact", "within_seed_band", "outside", "not_compared"]
State = Literal["equal", "within_seed_band", "differs", "none"]


@dataclass(frozen=True)
class Tolerances:
    """Allowed relative differences of the loss of an update, and of the change of a variable."""

    loss: float
    change: float


EXACT = Tolerances(loss=1e-5, change=1e-3)
MOVED = Tolerances(loss=1e-3, change=1e-2)
"""For another backend."""


@dataclass(frozen=True)
class Numerics:
    """Whether the plan trains as the baseline does. The fields are those of `Verification`; None is "not compared"."""

    verdict: Verdict
    detail: str
    updates: int | None = None
    applied: int | None = None
    baseline_applied: int | None = None
    remainder: bool = False
    weight_difference: float | None = None
    weight_difference_of: str = ""
    state: State | None = None
    seeds: int = 0
    same_program: bool = False
    left_out: int = 0


@dataclass(frozen=True)
class Circumstances:
    """The facts about two runs that decide how their figures are judged.

    tolerances        where results have to be equal within rounding
    compute_dtype     of the plan
    other_statistics  BatchNormalization normalizes over another number of samples, so results differ by design
    """

    tolerances: Tolerances = EXACT
    compute_dtype: str = "float32"
    other_statistics: bool = False


def incomparable(theirs: UpdateRun, ours: UpdateRun, updates: int) -> str:
    """Return why the runs of one seed cannot be compared; "" if they can."""
    if not ours.losses or len(theirs.losses) != len(ours.losses):
        return f"the baseline has {len(theirs.losses)} losses and the plan has {len(ours.losses)}"
    if not all(map(math.isfinite, theirs.losses)):
        return "a loss of the baseline is not a finite number"
    if theirs.applied is None or ours.applied is None or theirs.applied == ours.applied:
        return ""
    fewer = min(theirs.applied, ours.applied)
    whose = ("plan", "baseline") if fewer == ours.applied else ("baseline", "plan")
    return (
        f"{fewer} of the {updates} compared updates were applied under the {whose[0]}, and "
        f"{max(theirs.applied, ours.applied)} under the {whose[1]}: the {whose[0]}'s optimizer skipped updates whose "
        "gradients are not finite"
    )


@dataclass(frozen=True)
class Exactness:
    """Whether two runs are equal within rounding. `faults` are the quantities that are not, the first one first."""

    faults: tuple[Literal["loss", "weights", "state"], ...]
    detail: str
    weight_difference: float | None
    weight_difference_of: str
    state: State | None

    @property
    def holds(self) -> bool:
        """Whether everything was compared and is equal."""
        return not self.faults and self.weight_difference is not None

    @property
    def only_weights(self) -> bool:
        """Whether only changes of single weights differ, which rounding may explain."""
        return self.faults == ("weights",)


def exactness(
    theirs: UpdateRun,
    ours: NumericsRun,
    tolerances: Tolerances = EXACT,
    rounding: ChangeComparison | None = None,
) -> Exactness:
    """Compare the plan's run with the baseline's of the same seed.

    rounding  the baseline compared with itself after its initial weights changed in their last digit
    """
    run, compared = ours.runs[0], ours.compared
    loss = largest_loss_difference(theirs.losses, run.losses)
    faults: list[Literal["loss", "weights", "state"]] = []
    over, allowed = f"over {len(run.losses)} updates", f"allowed {tolerances.loss:.0e}"
    lines = [f"largest relative difference of a loss {over}: {loss:.1e}, {allowed}"]
    if not loss <= tolerances.loss:
        faults.append("loss")
    if compared is None:
        lines.append("the changes of the weights could not be compared")
        return Exactness(tuple(faults), "; ".join(lines), None, "", None)
    worst = _worst(compared, "weight")
    if compared.weights > tolerances.change or _unexplained(compared, tolerances, rounding):
        faults.append("weights")
    if worst is not None:
        within = "" if rounding is None or worst.difference <= tolerances.change else ", as far as rounding moves it"
        lines.append(
            f"of the change of a weight: {worst.difference:.1e} ({worst.path}{within}), of all weights together "
            f"{compared.weights:.1e}, allowed {tolerances.change:.0e}"
        )
    differing = [one for one in _state(compared) if one.difference > tolerances.change]
    if differing:
        faults.append("state")
        lines.append(_described(differing[0]))
    state: State = "differs" if differing else "equal" if _state(compared) else "none"
    largest = compared.weights if worst is None else worst.difference
    return Exactness(tuple(faults), "; ".join(lines), largest, "" if worst is None else worst.path, state)


def largest_loss_difference(theirs: Sequence[float], ours: Sequence[float]) -> float:
    """Return the largest relative difference of a loss."""
    return max(abs(one - other) / max(abs(other), 1e-12) for one, other in zip(ours, theirs, strict=True))


def _state(compared: ChangeComparison) -> list[VariableDifference]:
    return [one for one in compared.variables if one.kind in ("state", "batch_statistics")]


def _worst(compared: ChangeComparison, kind: str) -> VariableDifference | None:
    return max((one for one in compared.variables if one.kind == kind), key=lambda one: one.difference, default=None)


def _unexplained(compared: ChangeComparison, tolerances: Tolerances, rounding: ChangeComparison | None) -> bool:
    """Return whether a weight differs by more than is allowed, and by more than rounding moves it."""
    moved = {} if rounding is None else {one.path: one.difference for one in rounding.variables}
    return any(
        one.difference > max(tolerances.change, ROUNDING_FACTOR * moved.get(one.path, 0.0))
        for one in compared.variables
        if one.kind == "weight"
    )


def _described(one: VariableDifference) -> str:
    if one.baseline_change is not None and one.plan_change is not None:
        return (
            f"the variable {one.path} changes by {one.baseline_change:.6g} under the baseline and by "
            f"{one.plan_change:.6g} under the plan"
        )
    return f"the change of the variable {one.path} differs by {one.difference:.1e} of itself"


@dataclass(frozen=True)
class Band:
    """Whether a figure of the plan lies in the prediction interval of the baseline's seeds."""

    ours: float
    centre: float
    half: float

    @property
    def inside(self) -> bool:
        """Whether it does."""
        return abs(self.ours - self.centre) <= self.half

    @classmethod
    def of(cls, seeds: Sequence[float], ours: float, compute_dtype: str, confidence: float = 0.95) -> Band:
        """Return mean +- t * s * sqrt(1 + 1/n), and at least what rounding explains.

        That is the square root of the compute dtype's epsilon, since updates carry rounding on.
        """
        centre, spread = float(np.mean(seeds)), float(np.std(seeds, ddof=1))
        rounding = math.sqrt(_EPSILON[compute_dtype]) * abs(centre)
        half = student_t(len(seeds) - 1, confidence) * spread * math.sqrt(1 + 1 / len(seeds))
        return cls(ours, centre, max(half, rounding))

    def __str__(self) -> str:
        return f"{self.ours:.6g}; {self.centre - self.half:.6g} to {self.centre + self.half:.6g}"


def within_seeds(seeds: Sequence[UpdateRun], ours: NumericsRun, known: Circumstances) -> tuple[Verdict, str, State]:
    """Judge the plan's run by runs of the baseline with several seeds; the first has the plan's seed.

    The mean loss of the later updates has to lie in the 95% prediction interval of the seeds, the norm of the weights'
    change and the changes of other variables in the 99% ones. With other batch statistics a lower loss is no fault, and
    then nothing is concluded; changes are not judged.
    """
    run = ours.runs[0]
    loss = Band.of([later_mean(one.losses) for one in seeds], later_mean(run.losses), known.compute_dtype)
    low, high = loss.centre - loss.half, loss.centre + loss.half
    detail = (
        f"mean loss of the later updates {loss.ours:.6g}; 95% interval over {len(seeds)} seeds of the baseline "
        f"{low:.6g} to {high:.6g}"
    )
    if not loss.inside:
        if known.other_statistics and loss.ours < loss.centre:
            lower = "BatchNormalization sees other micro-batches, and the loss is lower"
            return "not_compared", f"{lower} ({detail})", "none"
        return "outside", detail, "none"
    weights = _weight_band(seeds, run, known)
    if weights is None:
        return "not_compared", f"the changes of the weights could not be compared ({detail})", "none"
    detail += (
        f"; norm of the change of the weights {weights.ours:.6g}, 99% interval {weights.centre - weights.half:.6g} to "
        f"{weights.centre + weights.half:.6g}"
    )
    if not weights.inside and not known.other_statistics:
        return "outside", detail, "none"
    judged = _judged_state(seeds, run, ours.compared, known)
    for path, band in judged.items():
        if not band.inside:
            outside = f"the variable {path} changes by {band.ours:.6g}, outside {band.centre - band.half:.6g} to "
            return "outside", f"{outside}{band.centre + band.half:.6g} of the baseline's seeds ({detail})", "differs"
    return "within_seed_band", detail, "within_seed_band" if judged else "none"


def later_mean(losses: Sequence[float]) -> float:
    """Return the mean loss over the later half of the updates."""
    return float(np.mean(losses[len(losses) // 2 :]))


def _weight_band(seeds: Sequence[UpdateRun], run: UpdateRun, known: Circumstances) -> Band | None:
    norms = [one.weight_change for one in seeds if one.weight_change is not None]
    if run.weight_change is None or len(norms) != len(seeds):
        return None
    return Band.of(norms, run.weight_change, known.compute_dtype, CHANGE_CONFIDENCE)


def _judged_state(
    seeds: Sequence[UpdateRun], run: UpdateRun, compared: ChangeComparison | None, known: Circumstances
) -> dict[str, Band]:
    """Return the bands of state, without the statistics of other micro-batches, which differ by design."""
    kinds = {} if compared is None else {one.path: one.kind for one in compared.variables}
    skipped = {path for path, kind in kinds.items() if kind == "batch_statistics"} if known.other_statistics else set()
    shared = [path for path in run.state_changes if path not in skipped and all(path in s.state_changes for s in seeds)]
    return {
        path: Band.of(
            [one.state_changes[path] for one in seeds], run.state_changes[path], known.compute_dtype, CHANGE_CONFIDENCE
        )
        for path in shared
    }
