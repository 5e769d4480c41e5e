"""Describes the validation of a fit: how many rows it computes at once, and whether the script sets that number."""

from __future__ import annotations

from dataclasses import dataclass
from types import GeneratorType
from typing import Any

import keras

from autoplan.runtime.data import data_facts, nested_arrays
from autoplan.runtime.data.data_facts import DataFacts
from autoplan.runtime.data.fit_arguments import FitArguments


@dataclass(frozen=True)
class ValidationFacts:
    """Facts about the validation of a fit.

    kind      as in `DataFacts`
    rows      rows that are computed at once
    samples   rows of a validation; None if they are not known
    fixed     whether the number of rows is the script's own, so that no plan changes it
    settable  whether `validation_batch_size` sets it: of arrays, Keras makes the batches
    """

    kind: str
    rows: int
    samples: int | None
    fixed: bool
    settable: bool


def of_fit(arguments: FitArguments, facts: DataFacts) -> ValidationFacts | None:
    """Return the facts about the validation of a fit; None if it does not validate, or on a generator's batches."""
    data = validation_arguments(arguments)
    if data is None or isinstance(data.get("x"), GeneratorType):
        return None
    own = arguments.get("validation_batch_size")
    if data_facts.is_arrays(data.get("x")):
        samples = nested_arrays.row_count(data["x"])
        # Steps that the script counts are steps of its own batch, whatever the batch of a plan is.
        fixed = own is not None or bool(arguments.get("validation_steps"))
        return ValidationFacts("arrays", min(own or facts.batch, samples), samples, fixed, settable=True)
    of_data = data_facts.describe(data)
    return ValidationFacts(of_data.kind, of_data.batch, of_data.samples, fixed=True, settable=False)


def sample(arguments: FitArguments, validation: ValidationFacts) -> Any:
    """Return a batch of one row as the validation step receives it; None for data without batches of dense arrays."""
    data = validation_arguments(arguments)
    if data is None:
        return None
    facts = DataFacts(validation.kind, validation.samples, validation.rows, None, explicit_steps=False)
    return data_facts.placeholder_batch(data, facts)


def validation_arguments(arguments: FitArguments) -> FitArguments | None:
    """Return the validation data as the data of a fit: given ones, or the rows of `validation_split`; None without."""
    given = arguments.get("validation_data")
    if given is None and not arguments.get("validation_split"):
        return None
    if given is None:
        rows = slice(data_facts.training_samples(arguments), None)
        given = tuple(
            nested_arrays.map_leaves(lambda leaf: nested_arrays.take_rows(leaf, rows), arguments.get(name))
            for name in ("x", "y", "sample_weight")
        )
    x, y, weight = keras.utils.unpack_x_y_sample_weight(given)
    return {"x": x, "y": y, "sample_weight": weight}
