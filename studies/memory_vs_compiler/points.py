"""The points to compile: model, precision, optimizer, batch and chip, most important first."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, replace

from cost_models import Batch, Cluster, Precision, TrainConfig
from cost_models.config import AttentionMode
from cost_models.hardware.lookup import cluster

TARGETS = {
    "A100": "gpu-a100-80gb",
    "H100": "gpu-h100-80gb",
    "TPU v4": "tpu-v4-8",
    "TPU v5e": "tpu-v5e-1",
    "TPU v6e": "tpu-v6e-1",
    "CPU": "cpu",
}
"""Targets by their names in the catalogue. Each point uses one device."""
_QUICK: tuple[str, ...]
_SLOW: tuple[str, ...]
_QUICK, _SLOW = ("A100", "CPU"), ("TPU v5e",)  # XLA:TPU takes a minute to compile, the others seconds
_FIRST, _SECOND = (*_QUICK, *_SLOW), ("H100", "TPU v4", "TPU v6e")
PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")
COMPILED_AT = 2
"""The batch b, in smallest batches of a model, whose compilation corrects the estimates of b/2, 2b and 4b."""


@dataclass(frozen=True)
class Point:
    """One micro-step for one chip.

    batch         in samples
    accumulation  in micro-steps per update
    attention     "auto": as Keras chooses on the chip; "unfused": after `keras.config.disable_flash_attention()`
    """

    target: str
    model: str
    precision: str
    optimizer: str
    batch: int
    accumulation: int = 1
    attention: str = "auto"

    @classmethod
    def read(cls, texts: Sequence[str]) -> Point:
        """Return the point of the seven texts of a table."""
        target, model, precision, optimizer, batch, accumulation, attention = texts
        return cls(target, model, precision, optimizer, int(batch), int(accumulation), attention)

    @property
    def trace(self) -> tuple[str, str, str, str]:
        """Return what a trace depends on beside the chip. One trace serves all batches."""
        return self.model, self.precision, self.optimizer, self.attention

    @property
    def config(self) -> TrainConfig:
        """Return the configuration of the point."""
        return TrainConfig(
            Batch(self.batch, accumulation=self.accumulation),
            precision=Precision(self.precision),
            attention=AttentionMode(self.attention),
        )

    @property
    def cluster(self) -> Cluster:
        """Return the hardware of the point."""
        return cluster(TARGETS[self.target])

    def at(self, batch: int) -> Point:
        """Return the point with another batch."""
        return replace(self, batch=batch)

    def plain(self) -> list[str]:
        return [str(value) for value in astuple(self)]


def held_out(model: str) -> bool:
    """Return whether no rule may be made with this model in view: the SHA-256 of its name is odd."""
    return hashlib.sha256(model.encode()).digest()[-1] % 2 == 1


def points() -> Iterator[Point]:
    """Yield every point, most important first, so that a run that is stopped early has compiled the important ones."""
    yield from _small()
    for targets, times in ((_QUICK, 8), (_SLOW, 8), (_QUICK, 2), (_SLOW, 2), (("H100",), 8)):
        yield from _at(targets, times, 0)
    for targets, times in ((_FIRST, 4), (_SECOND[1:], 8)):
        yield from _at(targets, times, 0)
    yield from _accumulating(_QUICK)
    yield from _other_optimizer(_QUICK)
    yield from _at(_FIRST, 4, 1)
    yield from _at(_QUICK, 4, 2)
    yield from _at(_QUICK, 1, 0)
    for targets, times in ((_SECOND, 2), (_SLOW, 1), (_SECOND, 4), (_SECOND, 1)):
        yield from _at(targets, times, 0)
    yield from _at(_SLOW, 4, 2)


def _small() -> Iterator[Point]:
    """Yield points of small models: three batches on a TPU v5e, the largest on the other targets."""
    from studies.memory_vs_compiler.models import SMALL

    for targets, times in ((_SLOW, 16), (_SLOW, 4), (_SLOW, 1), (_SECOND[1:], 16), (("A100", "H100"), 16)):
        for name, case in SMALL.items():
            for target in targets:
                yield Point(target, name, case.precision, case.optimizer, times * case.batch)


def _accumulating(targets: tuple[str, ...]) -> Iterator[Point]:
    from studies.memory_vs_compiler.models import MODELS, SMALL

    for name in [one for one in MODELS if one not in SMALL][::3]:
        case = MODELS[name]
        for target in targets:
            yield Point(target, name, case.precision, case.optimizer, 2 * case.batch, accumulation=4)


def _at(targets: tuple[str, ...], times: int, further: int) -> Iterator[Point]:
    """Yield points of a precision: with further = 0 the first precision of a model, else a following one."""
    from studies.memory_vs_compiler.models import MODELS

    for name, case in MODELS.items():
        first = PRECISIONS.index(case.precision)
        precision = PRECISIONS[(first + further) % len(PRECISIONS)]
        for target in targets:
            yield Point(target, name, precision, case.optimizer, times * case.batch)


def _other_optimizer(targets: tuple[str, ...]) -> Iterator[Point]:
    from studies.memory_vs_compiler.models import MODELS, OPTIMIZERS

    names = list(OPTIMIZERS)
    for name, case in MODELS.items():
        other = names[(names.index(case.optimizer) + 1 + len(name)) % len(names)]
        if other != case.optimizer:
            for target in targets:
                yield Point(target, name, case.precision, other, 2 * case.batch)
