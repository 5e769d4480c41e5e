"""Compares updates of a fit's model in one micro-step with the same updates in two, and describes what it finds."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

import numpy as np

from autoplan import formatting
from autoplan.jobs.messages import SplitProbe
from autoplan.runtime import optimizers
from autoplan.runtime.backends import Backend
from autoplan.runtime.data import rounded_inputs
from autoplan.runtime.data.data_facts import DataFacts
from autoplan.runtime.intercept import FitCall, run_one_micro_step
from autoplan.runtime.live_models.build import ensure_built
from autoplan.runtime.optimizers import accumulation_of
from autoplan.runtime.user_code.failure_reason import reason
from autoplan.worker.split_probe.attribution import explained
from autoplan.worker.split_probe.fixed_values import Recorded, fixed_values
from autoplan.worker.split_probe.micro_steps import MicroSteps, computes_in
from autoplan.worker.split_probe.padding import has_targets, why_not_padded
from autoplan.worker.split_probe.rows import SampleRows, TrainingRows, affordable_rows
from autoplan.worker.split_probe.updates import TOLERANCES, Update, differences

MOST_ROWS = 64
"""Rows of a compared update, if the script's batch has as many."""
ENOUGH_SECONDS = 10.0
"""After this time without compilations no further rows are compared."""
LONG_SECONDS = 40.0
"""After this time, compilations included, no further rows are compared."""

DESCENT_UPDATES = 20
"""Updates of a descent: a loss may treat rows apart at the start of a training and together later, once it is small."""
DESCENT_STEP = 0.03
"""Length of an update of the descent, relative to the weights."""
DESCENT_SECONDS = 1.2
"""After this time the descent ends."""
COMPARED_AFTER = (0, 1, 2, 4, 7, 11, 15)
"""Updates of the descent after which an update is compared with its halves, as it is after the last."""
LATER_TOLERANCE = 10
"""Factor of the tolerance after a descent, where gradients are small sums of large numbers."""


class SplitOptions(TypedDict, total=False):
    """Options of the job.

    rows           most rows of a compared update
    any_remainder  whether an epoch may have a remainder although it has none under the script's effective batch
    """

    rows: int
    any_remainder: bool


def probe_fit(call: FitCall, facts: DataFacts, backend: Backend, options: SplitOptions) -> SplitProbe:
    """Run a few micro-steps of a fit, and return what they show."""
    started, watch = time.monotonic(), backend.watch_compilation()
    _build(call, facts)
    with fixed_values() as recorded:
        comparison = _Comparison(call, facts, backend, options, started, recorded)
        found = comparison.run()
        if found.split == "same" and recorded.split_reason():
            found = found.model_copy(update={"split": "differs", "split_reason": recorded.split_reason()})
        if found.split == "same":
            found = comparison.with_padding(found, recorded.batch_statistics)
    if found.compared and recorded.random_draws:
        found = found.model_copy(update={"compared": f"{found.compared}, with fixed values instead of random draws"})
    return found.model_copy(
        update={
            "random_draws": recorded.random_draws,
            "batch_statistics": recorded.batch_statistics,
            "lost_values": comparison.lost_values(),
            "seconds": round(time.monotonic() - started, 2),
            "compilations": watch.compilations,
        }
    )


def _build(call: FitCall, facts: DataFacts) -> None:
    """Build the model before its initial weights would be drawn as fixed values; a fixed batch is not the sample's."""
    try:
        ensure_built(call.model, call.arguments, facts, entirely=True)
    except (RuntimeError, ValueError):
        ensure_built(call.model, call.arguments, facts)


@dataclass
class _Comparison:
    """The comparison of updates of one model.

    batches  number of compared batches so far
    most     the largest relative difference so far
    compiled_at  when both programs were compiled
    spreads  how far the losses of its halves lay apart, for each compared batch
    """

    call: FitCall
    facts: DataFacts
    backend: Backend
    options: SplitOptions
    started: float
    recorded: Recorded
    batches: int = 0
    most: float = 0.0
    compiled_at: float | None = None
    spreads: list[tuple[float, SampleRows]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.data = TrainingRows(self.call.arguments, self.facts)

    def lost_values(self) -> dict[str, str]:
        """Return what 16-bit policies would lose of the inputs, as far as the data can be read."""
        found: dict[str, str] = {}
        for x in [] if self._why_not() else self.data.inputs():
            found = {**rounded_inputs.lost_values(self.call.model, x), **found}
        return found

    def run(self) -> SplitProbe:
        """Compare updates with their halves."""
        self.remainder = self._may_have_a_remainder()
        why_not = self._why_not()
        batches = [] if why_not else self.data.chosen(self._rows())
        if not batches:
            run_one_micro_step(self.call)
            return SplitProbe(split_reason=why_not or "the data have too few rows for a comparison")
        self.rows, self.tolerance = batches[0].count, TOLERANCES[computes_in(self.call.model)]
        self.steps = MicroSteps(self.call, self.recorded)
        try:
            first = self._first(batches[0])
        except Exception as error:  # noqa: BLE001 -- it is raised again unless the number of rows is its cause
            return self._refused_rows(error)
        why_not = _why_not_repeatable(first, self.steps.update([batches[0]]), self.tolerance)
        return SplitProbe(split_reason=why_not) if why_not else self._halves(first, batches)

    def _rows(self) -> int:
        """Return the rows of a compared update: an even number, and two if a micro-step of the script has one row."""
        most = min(self.options.get("rows", MOST_ROWS), affordable_rows(self.call.model, self.call.arguments))
        return max(2, min(self.facts.batch, most) // 2 * 2)

    def _why_not(self) -> str:
        """Return why an update cannot be compared with its parts; "" if it can."""
        if not self.facts.rebatchable:
            return "the data cannot be re-batched"
        if optimizers.own_optimizers(self.call.model):
            return "the model's train_step applies its own optimizers"
        return ""

    def _first(self, batch: SampleRows) -> Update:
        """Run the first update, as the script runs its own if it does not run otherwise."""
        try:
            return self.steps.update([batch])
        except Exception as error:
            if self.backend.is_out_of_memory(error) or not self.steps.run_as_the_script():
                raise
            return self.steps.update([batch])

    def _refused_rows(self, error: Exception) -> SplitProbe:
        """Return that the model takes its own batch only, if that batch runs; raise the error if that does not run."""
        if self.backend.is_out_of_memory(error) or self.rows == self.facts.batch:
            raise error
        own = self.data.chosen(self.facts.batch)
        if not own or own[0].count != self.facts.batch:
            raise error
        self.steps.update([own[0]])
        return SplitProbe(split="differs", split_reason=_does_not_take(self.rows, error))

    def _halves(self, first: Update, batches: Sequence[SampleRows]) -> SplitProbe:
        for batch in batches:
            if self.batches and self._long_enough():
                break
            whole = first if self.batches == 0 else self.steps.update([batch])
            try:
                parts = self.steps.update(batch.parts(2))
            except Exception as error:
                if self.batches or self.backend.is_out_of_memory(error):
                    raise
                return SplitProbe(split="differs", split_reason=_does_not_take(self.rows // 2, error))
            found, most = differences(whole, parts, self.tolerance)
            self.most, self.batches = max(self.most, most), self.batches + 1
            if found:
                reason = explained(self.call.model, batch, whole, parts, found, self.tolerance)
                return SplitProbe(split="differs", split_reason=reason, compared=self._described())
            self.compiled_at = self.compiled_at or time.monotonic()
            self.steps.advance(whole)
            self.batch = batch
            self.spreads.append((_spread(parts), batch))
        why_not = self._later()
        return SplitProbe(split="differs" if why_not else "same", split_reason=why_not, compared=self._described())

    def _later(self) -> str:
        """Return what differs as the training may be later: during a descent, and with other values of switches.

        Later updates start from where this one began.
        """
        start = self.steps.start
        different = self._after_a_descent() or self._with_other_switches()
        self.steps.start_with(start)
        return different

    def _most_different_halves(self) -> SampleRows:
        return max(self.spreads, key=lambda one: one[0])[1]

    def _after_a_descent(self) -> str:
        batch, started = self._most_different_halves(), time.monotonic()
        for made in range(DESCENT_UPDATES):
            whole = self.steps.update([batch])
            late = time.monotonic() - started > DESCENT_SECONDS or self._long_enough()
            last = late or made == DESCENT_UPDATES - 1
            different = self._difference(whole, batch) if last or made in COMPARED_AFTER else ""
            if different:
                return f"after a descent on the compared rows, {different}"
            if last:
                break
            self.steps.advance(whole, DESCENT_STEP)
        return ""

    def _with_other_switches(self) -> str:
        own = self.steps.untrained_scalars()
        if not own or self._long_enough():
            return ""
        self.steps.start_with({path: _switched(value) for path, value in own.items()})
        batch = self._most_different_halves()
        switched = self._difference(self.steps.update([batch]), batch)
        names = " and ".join(path.rpartition("#")[0] for path in own)
        return f"with another value of {names}, {switched}" if switched else ""

    def _difference(self, whole: Update, batch: SampleRows) -> str:
        """Return how an update from the present start differs from its halves; "" where a loss is not finite."""
        parts = self.steps.update(batch.parts(2))
        tolerance = LATER_TOLERANCE * self.tolerance
        found, _ = differences(whole, parts, tolerance)
        if not found or not whole.finite or not parts.finite:
            return ""
        return explained(self.call.model, batch, whole, parts, found, tolerance)

    def _long_enough(self) -> bool:
        now = time.monotonic()
        return now - (self.compiled_at or now) > ENOUGH_SECONDS or now - self.started > LONG_SECONDS

    def _may_have_a_remainder(self) -> bool:
        """Return whether an epoch may end with rows that do not fill an update."""
        samples, effective = self.facts.samples, self.facts.batch * accumulation_of(self.call.model.optimizer)
        unknown = samples is None or not self.facts.exact or samples % effective != 0
        return bool(self.options.get("any_remainder")) or unknown

    def with_padding(self, found: SplitProbe, batch_statistics: Sequence[str]) -> SplitProbe:
        """Add whether rows of weight zero change an update, where an epoch may have a remainder to pad."""
        if not self.remainder or not has_targets(self.batch):
            return found
        if batch_statistics:
            reason = f"{', '.join(batch_statistics)} takes its statistics over rows of weight zero too"
            return found.model_copy(update={"padding": "differs", "padding_reason": reason})
        call, rows = self.call, self.batch.parts(2)[-1]
        why_not = why_not_padded(call.model, call.arguments, self.facts, self.steps, rows, self.tolerance)
        return found.model_copy(update={"padding": "differs" if why_not else "same", "padding_reason": why_not or ""})

    def _described(self) -> str:
        counted = formatting.counted(self.batches, "batch", "batches")
        return (
            f"an update of {self.rows} rows was compared in {computes_in(self.call.model)} with its halves on "
            f"{counted}: loss and gradients differed by "
            f"{self.most:.1e} of their size at most (allowed {self.tolerance:.0e})"
        )


def _spread(parts: Update) -> float:
    losses = [loss for loss in parts.losses if loss is not None]
    return max(losses) - min(losses) if losses else 0.0


def _switched(value: Any) -> Any:
    """Return another value of a variable with one element: one instead of zero, otherwise zero."""
    return np.where(value == 0, 1, 0).astype(value.dtype).reshape(value.shape)


def _does_not_take(rows: int, error: Exception) -> str:
    return f"the model does not take a micro-step of {rows} rows ({reason(error)})"


def _why_not_repeatable(first: Update, second: Update, tolerance: float) -> str:
    """Return why updates of this model cannot be compared; "" if the same update gives the same results twice."""
    if not first.finite:
        return "the loss or a gradient is not finite"
    if not first.has_gradient:
        return "no gradient reached the compiled optimizer"
    found, _ = differences(first, second, tolerance)
    if not found:
        return ""
    return (
        "the same rows give other results in a second micro-step from the same weights: the model uses random numbers "
        "from outside keras.random, or state outside its variables"
    )
