"""`Affine`: a size or a count that is linear in the local batch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from cost_models.errors import WorkloadError

LARGEST = 1e30
"""Larger numbers are refused: arithmetic on them overflows."""


@dataclass(frozen=True, slots=True)
class Affine:
    """`fixed + per_sample x local batch`.

    Traces at local batches b and 2b give both numbers.
    """

    fixed: float = 0
    per_sample: float = 0

    @classmethod
    def through(cls, local_batch: int, at_batch: float, at_double: float) -> Affine:
        """Return the line through (local_batch, at_batch) and (2 x local_batch, at_double)."""
        slope, rest = divmod(at_double - at_batch, local_batch)
        per_sample = slope if rest == 0 else (at_double - at_batch) / local_batch
        return cls(2 * at_batch - at_double, per_sample)

    def at(self, local_batch: int) -> float:
        """Return the value at a local batch."""
        return self.fixed + self.per_sample * local_batch

    def __add__(self, other: Affine) -> Affine:
        return Affine(self.fixed + other.fixed, self.per_sample + other.per_sample)

    def __sub__(self, other: Affine) -> Affine:
        return Affine(self.fixed - other.fixed, self.per_sample - other.per_sample)

    def __mul__(self, factor: float) -> Affine:
        return Affine(self.fixed * factor, self.per_sample * factor)

    @property
    def constant(self) -> bool:
        """Whether the value is the same for every local batch."""
        return self.per_sample == 0

    @classmethod
    def sum(cls, values: Iterable[Affine]) -> Affine:
        fixed = per_sample = 0.0
        for value in values:
            fixed += value.fixed
            per_sample += value.per_sample
        return cls(fixed, per_sample)

    def to_plain(self) -> int | float | list[float]:
        """Return a number where the value is constant, else [fixed, per_sample]; whole numbers as int."""
        fixed, per_sample = (int(part) if part == int(part) else part for part in (self.fixed, self.per_sample))
        return fixed if self.constant else [fixed, per_sample]

    @classmethod
    def from_plain(cls, value: object) -> Self:
        """Return the value that `to_plain` wrote. WorkloadError for anything else."""
        parts = value if isinstance(value, list) and len(value) == 2 else [value]
        if all(isinstance(part, int | float) and not isinstance(part, bool) and abs(part) < LARGEST for part in parts):
            return cls(*parts)
        raise WorkloadError(f"{value!r} is not a size; expected a number, or [fixed, per_sample]")
