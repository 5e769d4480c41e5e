"""Defines the user's limits on a search (`Limits`), and says which of them exclude the script's own configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autoplan import formatting
from autoplan.errors import ConfigError
from autoplan.plan import knobs
from autoplan.plan.knobs import formatted
from autoplan.tuning.space.legal_values import Situation
from cost_models.config import TrainConfig


@dataclass(frozen=True)
class Limits:
    """The user's limits on a search.

    fixed            values that `--fix` sets, under the flat names of knobs
    free             fields that may change
    effective_range  legal effective batches LO..HI in samples; None keeps the script's own
    """

    fixed: Mapping[str, Any]
    free: frozenset[str]
    effective_range: tuple[int, int] | None

    def broken_pins(self, config: TrainConfig) -> list[str]:
        """Return the pins that a configuration does not keep, as the user writes them."""
        return [
            f"--fix {knob.spelling}={formatted(self.fixed[knob.name])}"
            for knob in knobs.KNOBS
            if knob.name in self.fixed and self.fixed[knob.name] != knob.value(config)
        ]

    @property
    def range_option(self) -> str:
        """The option that frees the effective batch, as the user writes it."""
        low, high = self.effective_range or (0, 0)
        return f"--effective-batch {low}" if low == high else f"--effective-batch {low}..{high}"

    def outside_range(self, effective: int) -> bool:
        """Return whether an effective batch is outside of the range that the user set."""
        return self.effective_range is not None and not (
            self.effective_range[0] <= effective <= self.effective_range[1]
        )


def checked_range(effective_batch: tuple[int, int] | None) -> tuple[int, int] | None:
    """Return the range. ConfigError where it is empty or starts below 1."""
    if effective_batch is None:
        return None
    low, high = effective_batch
    if not 1 <= low <= high:
        raise ConfigError(f"--effective-batch {low}..{high}: expected 1 <= LO <= HI, for example 64..4096")
    return low, high


def check_range_is_searched(situation: Situation, limits: Limits) -> None:
    """Raise ConfigError for a range without the script's own effective batch where the batch may not change."""
    own = situation.baseline.batch.effective
    if "batch" in limits.free or not limits.outside_range(own):
        return
    reason = situation.observation.held.get("batch")
    because = f"because {reason}" if reason else "because --only does not name batch; add it, or leave the range out"
    raise ConfigError(f"{limits.range_option}: the effective batch stays {own} here, {because}")


def excluding_options(situation: Situation, limits: Limits) -> str | None:
    """Return the options, or the hardware, that exclude the script's own configuration; None where nothing does."""
    baseline, cluster = situation.baseline, situation.cluster
    options = limits.broken_pins(baseline)
    if limits.outside_range(baseline.batch.effective):
        options.append(limits.range_option)
    if baseline.mesh.devices > cluster.devices:
        options.append(f"the hardware ({formatting.counted(cluster.devices, 'device')})")
    return " with ".join(options) or None
