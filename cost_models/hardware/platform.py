"""`TargetPlatform`: the answers of a device to the questions that Keras's JAX backend asks while a step is traced.

Keras asks for the platform, for cuDNN and for the compute capability, and chooses operations by the answers. A step
that is traced for a device that is not here has to get that device's answers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from cost_models.errors import HardwareError, WorkloadError
from cost_models.hardware.cluster import CHIP_KINDS, Chip

CUDNN = "cuDNN"
_AT_LEAST, _EQUAL = "compute capability >= ", "compute capability == "


@dataclass(frozen=True)
class TargetPlatform:
    """The platform that a training step is traced for.

    kind                "cpu", "gpu" or "tpu", as JAX calls it
    compute_capability  of an NVIDIA GPU; None for other devices

    HardwareError for another kind.
    """

    kind: str
    compute_capability: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in CHIP_KINDS:
            raise HardwareError(f"platform '{self.kind}'; expected one of {', '.join(CHIP_KINDS)}")

    @classmethod
    def of(cls, chip: Chip) -> TargetPlatform:
        """Return the platform of a chip."""
        return cls(chip.kind, chip.compute_capability if chip.kind == "gpu" else None)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> TargetPlatform:
        """Return the platform that `to_dict` wrote."""
        return cls(**data)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for messages between processes."""
        return {"kind": self.kind, "compute_capability": self.compute_capability}

    def __str__(self) -> str:
        capability = self.compute_capability
        return self.kind if capability is None else f"{self.kind} of compute capability {capability:g}"

    def answer(self, question: str) -> bool:
        """Return the answer to a question: a kind of device, `CUDNN`, `at_least(...)` or `exactly(...)`.

        WorkloadError for another question.
        """
        if question in CHIP_KINDS:
            return self.kind == question
        if question == CUDNN:
            return self.compute_capability is not None
        for words in (_AT_LEAST, _EQUAL):
            if question.startswith(words):
                return self._compares(words, float(question.removeprefix(words)))
        raise WorkloadError(
            f"a training step was traced by the question {question!r}, which this version does not know; trace it again"
        )

    def gives(self, answers: Iterable[tuple[str, bool]]) -> bool:
        """Return whether this platform gives all these answers, so that a step traced by them is its own."""
        return all(self.answer(question) == answer for question, answer in answers)

    def _compares(self, words: str, other: float) -> bool:
        own = self.compute_capability
        return own is not None and (own >= other if words == _AT_LEAST else own == other)


HOST = TargetPlatform("cpu")
"""The platform as which steps of backends other than JAX are traced: they choose kernels by rules of their own."""


def at_least(capability: str) -> str:
    """Return the question whether a GPU has at least this compute capability, as in "8.0"."""
    return f"{_AT_LEAST}{capability}"


def exactly(capability: str) -> str:
    """Return the question whether a GPU has exactly this compute capability."""
    return f"{_EQUAL}{capability}"
