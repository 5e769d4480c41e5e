"""Says what a micro-step does besides computing where that takes notable time, and which changes would shorten it."""

from __future__ import annotations

from autoplan import formatting
from autoplan.plan.next_commands import SYNTHETIC
from autoplan.plan.records import Measurement, Plan
from cost_models.config import TrainConfig

_ARRAYS = "arrays"
_MERGES_DISPATCH = ("tensorflow",)
"""Backends on which Keras runs the micro-steps of one execution in one program."""


def beside_computing(plan: Plan) -> str | None:
    """Return what takes time besides computing, as it was measured; None where that is not notable.

    Batches of arrays are slices of what is in memory already, so there is no input pipeline that could be faster.
    """
    measured = plan.measured
    if measured is None or not measured.input_bound or plan.source.fit.data == SYNTHETIC:
        return None
    if plan.source.fit.data != _ARRAYS:
        return "Reading the data is slower than computing (measured): a faster input pipeline would help most now."
    changes = _changes_that_help(plan.config, plan.source.fit.samples)
    advice = f": {formatting.listed(changes, 'or')} would help" if changes else ""
    return f"{_keras_own_work(measured)}{advice}."


def _keras_own_work(measured: Measurement) -> str:
    """Return how long Keras's own work takes: a micro-step of the fit less one whose batch is on the device already."""
    alone = measured.compute_micro_step_seconds or 0.0
    rest = measured.micro_step_seconds - alone
    work = "Keras's own work for each micro-step (taking the batch from the arrays, callbacks, starting the program)"
    if rest <= alone:
        return f"{work} takes {formatting.percent(rest / measured.micro_step_seconds)} of the micro-step (measured)"
    longer, shorter = formatting.seconds(rest), formatting.seconds(alone)
    return f"{work} takes longer than computing, {longer} against {shorter} (measured)"


def _changes_that_help(config: TrainConfig, samples: int | None) -> list[str]:
    """Return the changes that reduce this work for each sample: on this backend, with this many samples an epoch."""
    changes = []
    if config.batch.accumulation > 1:
        changes.append("larger micro-batches with less accumulation")
    elif samples is None or config.batch.global_size < samples:
        changes.append("a larger batch (--effective-batch; it changes the training)")
    if config.backend in _MERGES_DISPATCH:
        changes.append("a larger steps_per_execution")
    return changes
