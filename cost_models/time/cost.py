"""`TimeCost` and `TimeParts`: seconds of a micro-step by cause as values that add, and the rates derived from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from cost_models.errors import ConfigError
from cost_models.validation import Reader, number, optional, raised_as, read_fields, text

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Seconds = float | Floats
"""Seconds of one configuration, or of many in an array."""


@dataclass(frozen=True)
class TimeParts:
    """Seconds of a micro-step on one device by cause; numbers, or arrays of many configurations.

    compute        kernels whose arithmetic takes longer than their traffic
    memory         kernels whose traffic takes longer, and pages that the operating system of a CPU has to map anew
    communication  collectives that no computation hides, and waiting for the slowest device
    overhead       launches of kernels and the host's work for each program
    """

    compute: Seconds = 0.0
    memory: Seconds = 0.0
    communication: Seconds = 0.0
    overhead: Seconds = 0.0

    def __add__(self, other: TimeParts) -> TimeParts:
        """Return the seconds of both, one after the other."""
        return TimeParts(*(own + more for own, more in zip(self.values(), other.values(), strict=True)))

    def __mul__(self, factor: float | TimeParts) -> TimeParts:
        """Scale all parts by a number, or each part by its own factor."""
        factors = factor.values() if isinstance(factor, TimeParts) else (factor,) * len(PARTS)
        return TimeParts(*(own * times for own, times in zip(self.values(), factors, strict=True)))

    def values(self) -> tuple[Seconds, Seconds, Seconds, Seconds]:
        """Return the parts in the order of `PARTS`."""
        return self.compute, self.memory, self.communication, self.overhead

    @property
    def seconds(self) -> Seconds:
        """Seconds of all parts together."""
        return self.compute + self.memory + self.communication + self.overhead

    @property
    def bound(self) -> Any:
        """Name of the largest part: text, or an array of texts."""
        largest = np.argmax(np.stack(np.broadcast_arrays(*self.values())), axis=0)
        return np.array(PARTS)[largest] if largest.ndim else PARTS[int(largest)]


PARTS = tuple(item.name for item in fields(TimeParts))


@dataclass(frozen=True)
class TimeCost:
    """Seconds on one device. compute + memory + communication + overhead = micro_step; see `TimeParts`.

    mfu    model FLOPs a second over the chip's peak (PaLM, appendix B); recomputation does not count; None where
           nobody counted the model's FLOPs
    bound  the largest of the four parts
    """

    micro_step_seconds: float
    update_seconds: float
    compute_seconds: float
    memory_seconds: float
    communication_seconds: float
    overhead_seconds: float
    samples_per_second: float
    mfu: float | None
    bound: str

    @property
    def parts(self) -> TimeParts:
        """Seconds by cause."""
        return TimeParts(self.compute_seconds, self.memory_seconds, self.communication_seconds, self.overhead_seconds)

    def __add__(self, other: TimeCost) -> TimeCost:
        """Return the cost of both, one after the other on the same samples: for instance of two layers."""
        seconds = self.micro_step_seconds + other.micro_step_seconds
        reached = None
        if self.mfu is not None and other.mfu is not None:
            reached = (self.mfu * self.micro_step_seconds + other.mfu * other.micro_step_seconds) / seconds
        return _cost(
            self.parts + other.parts,
            update_seconds=self.update_seconds + other.update_seconds,
            samples_per_second=1 / (1 / self.samples_per_second + 1 / other.samples_per_second),
            mfu=reached,
        )

    def __mul__(self, times: float) -> TimeCost:
        """Return the cost of so many of these, one after the other on the same samples: seconds and FLOPs scale."""
        return _cost(
            self.parts * times,
            update_seconds=self.update_seconds * times,
            samples_per_second=self.samples_per_second / times,
            mfu=self.mfu,
        )

    def with_parts(self, parts: TimeParts) -> TimeCost:
        """Return the same work in other seconds: rates change with them."""
        ratio = float(parts.seconds) / self.micro_step_seconds
        return _cost(
            parts,
            update_seconds=self.update_seconds * ratio,
            samples_per_second=self.samples_per_second / ratio,
            mfu=None if self.mfu is None else self.mfu / ratio,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the keys of `--format json` under `time`."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TimeCost:
        """Read what `to_dict` writes; other keys are ignored. ConfigError for a missing or a wrong figure."""
        readers: dict[str, Reader] = {item.name: number for item in fields(cls)}
        readers |= {"mfu": optional(number), "bound": text}
        with raised_as(ConfigError, "the estimate of time cannot be read: "):
            return cls(**read_fields(data, "time", readers))


def figures(
    parts: TimeParts,
    *,
    accumulation: int | Ints,
    global_batch: int | Ints,
    model_flops: Seconds | None,
    peak_flops_per_second: float,
) -> dict[str, Any]:
    """Assemble the fields of `TimeCost` from the parts of a micro-step: the only place that does.

    accumulation           micro-steps an update
    global_batch           samples of a micro-step on all devices
    model_flops            the model's own FLOPs of a micro-step on one device; None when nobody counted them
    peak_flops_per_second  of one device

    Returns numbers, or arrays where the arguments are arrays.
    """
    seconds = parts.seconds
    return _fields(
        parts,
        update_seconds=seconds * accumulation,
        samples_per_second=global_batch / seconds,
        mfu=None if model_flops is None else model_flops / (seconds * peak_flops_per_second),
    )


def _fields(parts: TimeParts, **rates: Any) -> dict[str, Any]:
    of_parts = {f"{name}_seconds": seconds for name, seconds in zip(PARTS, parts.values(), strict=True)}
    return {"micro_step_seconds": parts.seconds, **of_parts, **rates, "bound": parts.bound}


def _cost(parts: TimeParts, **rates: Any) -> TimeCost:
    return TimeCost(**_fields(TimeParts(*map(float, parts.values())), **rates))
