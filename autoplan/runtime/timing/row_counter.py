"""Counts the rows of the batches that pass through a model's training function, whatever their sizes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from autoplan.runtime.data import nested_arrays


class RowCounter:
    """Counts batches and their rows on JAX and PyTorch.

    On TensorFlow, the training function is a graph that reads its batches itself, so nothing is counted.
    """

    def __init__(self) -> None:
        self.rows = self.batches = 0

    @property
    def mean_rows(self) -> float | None:
        """Rows of a batch on average; None if none was counted."""
        return self.rows / self.batches if self.batches else None

    def watched(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the inputs of a call of the training function, so that their batches are counted."""
        *state, data = inputs
        if isinstance(data, list):  # PyTorch: the batches of one execution
            for batch in data:
                self._add(batch)
            return inputs
        return inputs if hasattr(data, "element_spec") else (*state, self._counted(data))

    def _counted(self, batches: Any) -> Iterator[Any]:
        return map(self._add, batches) if isinstance(batches, Iterator) else batches

    def _add(self, batch: Any) -> Any:
        self.batches += 1
        self.rows += nested_arrays.row_count(batch)
        return batch
