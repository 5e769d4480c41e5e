"""Orders configurations by how much they change an out-of-memory baseline, the smallest change first.

A configuration with one kind of change comes before one with two, and two before three. Among as many kinds, the ranks
of the kinds decide (`Tradeoff`), and within the same kinds the amounts: accumulation 2 before accumulation 4. Another
effective batch is another training, so it comes last of all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from autoplan.plan import knobs
from autoplan.plan.knobs import Knob, Tradeoff, Tuning
from cost_models.config import TrainConfig

MEANING: Mapping[Tradeoff, str] = {
    Tradeoff.ACCUMULATION: "accumulation keeps the effective batch",
    Tradeoff.PRECISION: "another precision keeps every setting of the training and rounds its numbers differently",
    Tradeoff.REMAT: "rematerialization keeps every number and computes activations again instead of storing them",
    Tradeoff.MESH: "another mesh keeps the training and takes other devices",
    Tradeoff.PROGRAM: "another way to run the program keeps the training",
    Tradeoff.TRAINING: "another effective batch is another training, and comes last",
}
NAMES: Mapping[Tradeoff, str] = {
    Tradeoff.ACCUMULATION: "accumulation",
    Tradeoff.PRECISION: "precision",
    Tradeoff.REMAT: "rematerialization",
    Tradeoff.MESH: "mesh",
    Tradeoff.PROGRAM: "program",
    Tradeoff.TRAINING: "effective batch",
}
_COUNTED = (Tuning.FREE, Tuning.DERIVED)
"""Amounts are compared of knobs that tuning changes freely, and of the effective batch."""


def kinds_of_change(baseline: TrainConfig, config: TrainConfig) -> tuple[Tradeoff, ...]:
    """Return what a configuration gives up compared with the baseline, the least first."""
    changed = {knob.tradeoff for knob in knobs.KNOBS if knob.value(baseline) != knob.value(config)}
    return tuple(kind for kind in Tradeoff if kind in changed)


def least_first(baseline: TrainConfig, configs: Iterable[TrainConfig]) -> list[TrainConfig]:
    """Return the configurations by what they give up, the least first, without the baseline itself."""

    def order(config: TrainConfig) -> tuple[object, ...]:
        kinds = kinds_of_change(baseline, config)
        return Tradeoff.TRAINING in kinds, len(kinds), kinds, _amounts(baseline, config)

    return sorted((config for config in configs if config != baseline), key=order)


def _amounts(baseline: TrainConfig, config: TrainConfig) -> tuple[float, ...]:
    """Return how much each knob changes, the training itself first."""
    rows = [knob for knob in knobs.KNOBS if knob.tradeoff is not None and knob.tuning in _COUNTED]
    rows.sort(key=_training_first)
    return tuple(knob.kind.amount(knob.value(baseline), knob.value(config)) for knob in rows)


def _training_first(knob: Knob) -> int:
    """Sort by kind, the training itself before all others."""
    return -1 if knob.tradeoff is Tradeoff.TRAINING or knob.tradeoff is None else knob.tradeoff
