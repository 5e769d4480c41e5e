"""Leaves padded rows out of the metrics of a model: those of `compile(metrics=...)` count rows of weight zero too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
from keras import ops

from autoplan.runtime.data import data_facts
from autoplan.runtime.data.data_facts import DataFacts
from autoplan.runtime.data.fit_arguments import FitArguments

_REPLACED = "_autoplan_counts_weighted_rows_only"


def have_the_only_zero_weights(arguments: FitArguments, facts: DataFacts) -> bool:
    """Return whether padded rows would have a fit's only weights of zero, so that metrics can leave them out."""
    return not (
        _has_weights(arguments, facts)
        or any(weight == 0 for weight in (arguments.get("class_weight") or {}).values())
        or _may_validate_with_weights(arguments)
    )


def _has_weights(arguments: FitArguments, facts: DataFacts) -> bool:
    if arguments.get("sample_weight") is not None:
        return True
    if facts.kind == "arrays":
        return False
    batch = data_facts.sample_batch({**arguments, "class_weight": None}, facts, 1)
    return batch is None or keras.utils.unpack_x_y_sample_weight(batch)[2] is not None


def _may_validate_with_weights(arguments: FitArguments) -> bool:
    """Return whether validation data may have weights, which the metrics have to ignore."""
    data = arguments.get("validation_data")
    if data is None:
        return False
    spec = getattr(data, "element_spec", data)
    return not (isinstance(spec, tuple | list) and len(spec) <= 2)


def leave_out(model: Any) -> None:
    """Give the metrics of `compile(metrics=...)` the weight one for rows that have a weight, and zero for others."""
    compiled = getattr(model, "_compile_metrics", None)
    if compiled is None or not compiled._user_metrics or hasattr(compiled, _REPLACED):
        return

    def update_state(y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        if sample_weight is None:
            type(compiled).update_state(compiled, y_true, y_pred)
            return
        if not compiled.built:
            compiled.build(y_true, y_pred)
        for metric, *values in _updates(compiled, y_true, y_pred, sample_weight):
            metric.update_state(*values)

    setattr(compiled, _REPLACED, True)
    compiled.update_state = update_state


def restore(model: Any) -> None:
    """Undo `leave_out`; later fits compile the micro-step again."""
    compiled = getattr(model, "_compile_metrics", None)
    if compiled is not None and hasattr(compiled, _REPLACED):
        del compiled.update_state
        delattr(compiled, _REPLACED)
        model.train_function = None


def _updates(compiled: Any, y_true: Any, y_pred: Any, weights: Any) -> Iterator[tuple[Any, Any, Any, Any]]:
    """Yield each metric with its arguments, as `CompileMetrics.update_state` flattens them."""
    true, predicted, given = (compiled._flatten_y(one) for one in (y_true, y_pred, weights))
    if len(given) < len(true):  # the weights are those of every output
        given = [given[0]] * len(true)
    unweighted, weighted = compiled._flat_metrics, compiled._flat_weighted_metrics
    for metric, own, *values, weight in zip(unweighted, weighted, true, predicted, given, strict=False):
        if metric:
            yield metric, *values, ops.cast(ops.not_equal(weight, 0), weight.dtype)
        if own:
            yield own, *values, weight
