"""Compares rows with the same rows padded by rows of weight zero, as `runtime.data.rebatch` pads a remainder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
from keras.src.trainers.data_adapters import data_adapter_utils

from autoplan.runtime import model_facts
from autoplan.runtime.data import nested_arrays, padded_rows
from autoplan.runtime.data.data_facts import DataFacts
from autoplan.runtime.data.fit_arguments import FitArguments
from autoplan.runtime.fit import metrics_can_leave_out
from autoplan.runtime.user_code.failure_reason import reason
from autoplan.worker.split_probe.attribution import loss_name
from autoplan.worker.split_probe.micro_steps import MicroSteps
from autoplan.worker.split_probe.rows import SampleRows
from autoplan.worker.split_probe.updates import Update, differences


def why_not_padded(
    model: Any, arguments: FitArguments, facts: DataFacts, steps: MicroSteps, rows: SampleRows, tolerance: float
) -> str | None:
    """Return why padding changes the update of some rows; None where it changes nothing.

    The rows are padded to twice their number, once with a micro-step of padding alone, and once with padding in both
    micro-steps. Metrics leave the padding out where the weights show it, as they do in a fit.
    """
    whole = steps.update([rows])
    if model_facts.has_unweighted_metrics(model) and metrics_can_leave_out(model, arguments, facts):
        padded_rows.leave_out(model)
    for padded in _paddings(rows, arguments):
        try:
            update = steps.update(padded)
        except (TypeError, ValueError) as error:
            return f"its training step fails with sample weights ({reason(error)})"
        found, _ = differences(whole, update, tolerance)
        if found:
            return _difference(model, whole, update, [one.path for one in found if one.kind == "variable"])
        counting = _metrics_that_count(model) if len(padded) > 1 and padded[-1].padded == padded[-1].count else []
        if counting:
            return f"the metric {', '.join(counting)} counts rows of weight zero"
        other = _other_metrics(whole, update, tolerance) if not padded[0].padded else []
        if other:
            return f"the metric {', '.join(other)} has another value for rows with weights"
    return None


def _difference(model: Any, whole: Update, padded: Update, variables: list[str]) -> str:
    if variables:
        return f"the variable {variables[0]} moves otherwise with rows of weight zero"
    losses = f"the total loss ({loss_name(model).removeprefix('the loss ').removeprefix('of ')})"
    if whole.loss is None or padded.loss is None:
        return f"rows of weight zero change the gradient of {losses}"
    return f"rows of weight zero change {losses}: it is {whole.loss:.6g} without them, and {padded.loss:.6g} with them"


def _other_metrics(whole: Update, weighted: Update, tolerance: float) -> list[str]:
    """Return the metrics that differ between rows without weights and the same rows with equal weights."""
    own, others = whole.logs[0], weighted.logs[0]
    return [
        name
        for name, value in own.items()
        if "loss" not in name and not np.isclose(others.get(name, np.nan), value, rtol=tolerance, atol=tolerance)
    ]


def has_targets(rows: SampleRows) -> bool:
    """Return whether there are targets: without them the loss is the model's own and ignores sample weights."""
    return _unpacked(rows)[1] is not None


def _paddings(rows: SampleRows, arguments: FitArguments) -> Iterator[list[SampleRows]]:
    """Yield the two micro-steps of each padding. The weights are doubled, because half of the rows are padding."""
    weighted = _weighted(rows, arguments)
    count, half = rows.count, rows.count // 2
    yield [weighted, _padded(weighted.take(slice(0, 0)), count)]
    if half:
        parts = weighted.take(slice(0, half)), weighted.take(slice(half, count))
        yield [_padded(part, count) for part in parts]


def _unpacked(rows: SampleRows) -> tuple[Any, Any, Any]:
    if rows.kind == "arrays":
        return rows.leaves["x"], rows.leaves.get("y"), rows.leaves.get("sample_weight")
    x, y, weight = keras.utils.unpack_x_y_sample_weight(rows.leaves)
    return x, y, weight


def _weighted(rows: SampleRows, arguments: FitArguments) -> SampleRows:
    """Return the rows with doubled sample weights, in which the weights of classes are included."""
    x, y, weight = _unpacked(rows)
    class_weight = arguments.get("class_weight")
    if weight is None and class_weight is not None:
        weight = np.asarray(data_adapter_utils.class_weight_to_sample_weights(y, class_weight), dtype="float32")
    if weight is None:
        weight = np.ones(rows.count, dtype="float32")
    doubled = nested_arrays.map_leaves(lambda leaf: np.asarray(leaf) * np.float32(2), weight)
    leaves = {"x": x, "y": y, "sample_weight": doubled} if rows.kind == "arrays" else (x, y, doubled)
    return SampleRows(rows.kind, leaves, has_class_weights=True)


def _padded(rows: SampleRows, count: int) -> SampleRows:
    missing = count - rows.count
    leaves = nested_arrays.map_leaves(lambda leaf: nested_arrays.pad_rows(leaf, missing), rows.leaves)
    return SampleRows(rows.kind, leaves, has_class_weights=True, padded=missing)


def _metrics_that_count(model: Any) -> list[str]:
    """Return the metrics, other than means of losses, that a micro-step of padding alone has changed."""
    losses = {id(one) for one in (model._loss_tracker, *getattr(model._compile_loss, "metrics", []))}
    return [
        metric.name
        for metric in _single_metrics(model)
        if id(metric) not in losses and any(np.any(keras.ops.convert_to_numpy(one)) for one in metric.variables)
    ]


def _single_metrics(model: Any) -> Iterator[Any]:
    compiled = getattr(model, "_compile_metrics", None)
    for metric in model.metrics:
        if metric is compiled:
            yield from (one for one in compiled.metrics if one is not compiled)
        else:
            yield metric
