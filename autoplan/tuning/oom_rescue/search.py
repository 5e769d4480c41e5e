"""A baseline that runs out of memory, and the least change that runs: which configuration to try next, in few trials.

Changes are ranked by what they give up (`Change`). One change comes before two, two before three; among as many, the
ranks decide, and within the same kinds the amount: accumulation 2 before accumulation 4. What changes the training
itself comes last of all, and only where the user freed it.

Nothing is run here. A `Ladder` says which configuration to try next and is told what became of it. It skips what cannot
run by what is known: what is forecast to need more than there is, and what is forecast to need no less than what has
run out of memory. The first guess is what the forecasts trust; from there it goes down while nothing runs, in steps
that grow with every failure, and then back up to the least change that still runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from autoplan.plan.knobs import changes
from autoplan.plan.records import TrialRecord
from autoplan.tuning.space.prune import Forecast
from cost_models.config import Precision, Remat, RematMode, TrainConfig

SHRINK = (0.9, 0.8, 0.6, 0.4)
"""After so many failures (the baseline's is the first) the next guess needs at most this share of the smallest of them;
after more the least need of all is tried, and when that fails nothing runs."""
OTHER_STRUCTURE = 1.5
"""Forecasts of one structure of the training step rank well among themselves. Of another structure only what needs this
many times as much as a failure is taken to fail too."""
MOST_TRIALS = 6
"""Once something runs and so many were tried, the search for a still smaller change ends."""
REMAT_SHARE = 0.9
"""What a rematerialized training step is taken to need of the plain one where only that has a forecast."""
_PRECISIONS = list(Precision)
_REMAT_MODES = list(RematMode)


class Change(IntEnum):
    """What a change gives up, least first."""

    ACCUMULATION = 0
    PRECISION = 1
    REMAT = 2
    MESH = 3
    PROGRAM = 4
    TRAINING = 5


@dataclass(frozen=True)
class Need:
    """Memory that one configuration is taken to need, as shares of what its devices have.

    low, high   the ends of the forecast. Without forecasts 0 and a measure of the micro-batch, the baseline's being 1
    usable      the share that may be used; infinite where nothing is known of it
    """

    low: float
    high: float
    usable: float = math.inf

    @property
    def fits(self) -> bool:
        """Whether the forecast trusts it to run."""
        return self.high <= self.usable


def kinds_of_change(baseline: TrainConfig, config: TrainConfig) -> tuple[Change, ...]:
    """What is another than in the baseline, least first."""
    differs = {
        Change.ACCUMULATION: baseline.batch.accumulation != config.batch.accumulation,
        Change.PRECISION: baseline.precision != config.precision,
        Change.REMAT: baseline.remat != config.remat,
        Change.MESH: (baseline.mesh, baseline.layout) != (config.mesh, config.layout),
        Change.PROGRAM: _program(baseline) != _program(config),
        Change.TRAINING: baseline.batch.effective != config.batch.effective,
    }
    return tuple(change for change, other in differs.items() if other)


def least_first(baseline: TrainConfig, configs: Iterable[TrainConfig]) -> list[TrainConfig]:
    """By what they give up, the least first; without the baseline itself."""

    def order(config: TrainConfig) -> tuple[object, ...]:
        kinds = kinds_of_change(baseline, config)
        return Change.TRAINING in kinds, len(kinds), kinds, _amounts(baseline, config)

    return sorted((config for config in configs if config != baseline), key=order)


def needs(
    baseline: TrainConfig, configs: Iterable[TrainConfig], forecasts: Mapping[TrainConfig, Forecast]
) -> dict[TrainConfig, Need]:
    """The need of the baseline and of each configuration that can be tried.

    Where nothing is forecast it is measured by the micro-batch and the width of its numbers. Where something is, a
    configuration without a forecast cannot be built, but for a rematerialized one: it was not worth a trace.
    """
    every = list(dict.fromkeys((baseline, *configs)))
    forecast = {config: need for config in every if (need := _forecast_need(forecasts.get(config))) is not None}
    if baseline not in forecast:
        return {config: Need(0.0, _micro_batch(config) / _micro_batch(baseline)) for config in every}
    found = dict(forecast)
    for config in every:
        plain = forecast.get(config.with_(remat=Remat()))
        if config not in found and plain is not None and config.remat.mode is not RematMode.NONE:
            found[config] = Need(plain.low * REMAT_SHARE, plain.high * REMAT_SHARE, plain.usable)
    return found


def cannot_run(config: TrainConfig, failed: TrainConfig, needed: Mapping[TrainConfig, Need]) -> bool:
    """Whether a configuration needs no less than one that ran out of memory, as far as forecasts can be trusted."""
    if config not in needed or failed not in needed:
        return False
    margin = 1.0 if _structure(config) == _structure(failed) else OTHER_STRUCTURE
    return needed[config].high >= margin * needed[failed].high


class Ladder:
    """Which configuration to try next, until the least change that runs is found or nothing is left.

    `least` is the least change that has run so far; None while nothing has.
    """

    def __init__(
        self, baseline: TrainConfig, configs: Iterable[TrainConfig], needed: Mapping[TrainConfig, Need]
    ) -> None:
        self.baseline, self.needed = baseline, needed
        self.order = least_first(baseline, (config for config in configs if config in needed))
        self.least: TrainConfig | None = None
        self.records: list[TrialRecord] = []
        self._failed: list[TrainConfig] = [baseline]
        self._last_hope: TrainConfig | None = None
        self._hopeless = False

    def next(self) -> TrainConfig | None:
        """What to try; None when there is nothing left that would tell more."""
        left = self._left()
        if self.least is None:
            return self._guess(left)
        smaller = left[: left.index(self.least)]
        return smaller[(len(smaller) - 1) // 2] if smaller and len(self.records) < MOST_TRIALS else None

    def tell(self, record: TrialRecord) -> None:
        """What became of a configuration that was tried."""
        config = TrainConfig.from_dict(record.config)
        self.records.append(record)
        if record.measurement is not None:
            if self.least is None or self.order.index(config) < self.order.index(self.least):
                self.least = config
        elif record.failure is not None and record.failure.out_of_memory:
            self._failed.append(config)
            self._hopeless = self._hopeless or config == self._last_hope

    def why_not(self, config: TrainConfig) -> str:
        """Why a configuration was passed over, by what forecasts say and trials have shown."""
        need = self.needed[config]
        if need.low > 1:
            return "forecast to need more than there is"
        by = [failed for failed in self._failed if self._ruled_out_by(config, failed)]
        if by:
            named = ", ".join(changes(self.baseline, by[-1])) or "your own configuration"
            what = "forecast to need" if math.isfinite(need.usable) else "taken to need"
            return f"{what} no less than {named}, which ran out of memory"
        return f"not tried: the search for a smaller change ends after {len(self.records)} trials"

    def _left(self) -> list[TrainConfig]:
        """What may still run or has run, least change first."""
        if self._hopeless:
            return []
        done = {TrainConfig.from_dict(record.config) for record in self.records if record.measurement is None}
        return [config for config in self.order if config not in done and not self._ruled_out(config)]

    def _ruled_out(self, config: TrainConfig) -> bool:
        if config == self.least:
            return False
        return self.needed[config].low > 1 or any(self._ruled_out_by(config, failed) for failed in self._failed)

    def _ruled_out_by(self, config: TrainConfig, failed: TrainConfig) -> bool:
        no_less_than_own = failed == self.baseline and self.needed[config].high >= self.needed[failed].high
        return no_less_than_own or cannot_run(config, failed, self.needed)

    def _guess(self, left: Sequence[TrainConfig]) -> TrainConfig | None:
        """The least change that is clearly smaller than all that failed; when that was in vain, the least need."""
        if not left:
            return None
        failures = len(self._failed)
        smallest = min(self.needed[config].high for config in self._failed)
        ceiling = smallest * SHRINK[failures - 1] if failures <= len(SHRINK) else 0.0
        likely = [config for config in left if self.needed[config].fits and self.needed[config].high <= ceiling]
        if likely:
            return likely[0]
        self._last_hope = min(left, key=lambda config: self.needed[config].high)
        return self._last_hope


def _forecast_need(forecast: Forecast | None) -> Need | None:
    """None where need or capacity is not known."""
    if forecast is None or not forecast.needed_bytes or not forecast.capacity_bytes:
        return None
    capacity = forecast.capacity_bytes
    return Need((forecast.least_bytes or 0) / capacity, forecast.needed_bytes / capacity, 1 - forecast.headroom)


def _micro_batch(config: TrainConfig) -> float:
    """A measure of the activations of a micro-step: samples on a device times the width of their numbers."""
    width = 2 if "16" in config.precision.compute_dtype else 4
    kept = REMAT_SHARE if config.remat.mode is not RematMode.NONE else 1.0
    return config.batch.local * width * kept


def _structure(config: TrainConfig) -> tuple[object, ...]:
    """What makes two training steps the same but for their batch."""
    return config.backend, config.precision, config.remat, config.jit_compile, config.layout


def _program(config: TrainConfig) -> tuple[object, ...]:
    return config.backend, config.steps_per_execution, config.jit_compile, config.keep_freed_memory


def _amounts(baseline: TrainConfig, config: TrainConfig) -> tuple[float, ...]:
    """How much of each change, the training itself first."""

    def octaves(one: int, other: int) -> float:
        return abs(math.log2(one / other))

    return (
        octaves(baseline.batch.effective, config.batch.effective),
        octaves(baseline.batch.accumulation, config.batch.accumulation),
        _PRECISIONS.index(config.precision),
        _REMAT_MODES.index(config.remat.mode),
        octaves(baseline.mesh.devices, config.mesh.devices),
        octaves(baseline.steps_per_execution, config.steps_per_execution),
        config.jit_compile != baseline.jit_compile,
        config.keep_freed_memory != baseline.keep_freed_memory,
    )
