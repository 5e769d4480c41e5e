"""Chooses the configuration to try next, in search of the smallest change that lets a baseline run in memory.

Nothing is run here. A `RescueSearch` names the configuration to try next and takes the record of its trial. It skips
configurations that cannot run: those estimated to need more than there is, and those estimated to need no less than
one that has run out of memory. The first guess is the least change that estimates say fits. After each failure the
search goes to smaller needs, in growing steps; once a configuration runs, it looks for a smaller change that still
runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from autoplan.plan.knobs import changes
from autoplan.plan.records import TrialRecord
from autoplan.tuning.candidate_estimate import CandidateEstimate
from autoplan.tuning.oom_rescue.change_order import least_first
from cost_models.config import Remat, RematMode, TrainConfig
from cost_models.execution import program_key

SHRINK = (0.9, 0.8, 0.6, 0.4)
"""After the n-th failure (the baseline's is the first) the next guess needs at most the n-th share of the smallest need
that failed. After more failures the least need of all is tried, and if that fails nothing runs."""
OTHER_PROGRAM = 1.5
"""Estimates of one program rank well among themselves. A configuration with another program is assumed to fail only
where it needs this many times as much as a failed one."""
MOST_TRIALS = 6
"""After so many trials, of which one ran, the search for a smaller change ends."""
REMAT_SHARE = 0.9
"""Assumed memory of a rematerialized training step over that of the plain one, where only the plain one has an
estimate."""


@dataclass(frozen=True)
class Need:
    """Memory that one configuration is assumed to need, as shares of its devices' capacity.

    low, high   the ends of the estimate's interval. Without estimates: 0 and the size of the micro-batch relative to
                the baseline's
    usable      the share that may be used; infinite where the capacity is not known
    """

    low: float
    high: float
    usable: float = math.inf

    @property
    def fits(self) -> bool:
        """Return whether it runs according to the estimate."""
        return self.high <= self.usable


def needs(
    baseline: TrainConfig, configs: Iterable[TrainConfig], estimates: Mapping[TrainConfig, CandidateEstimate]
) -> dict[TrainConfig, Need]:
    """Return the need of the baseline and of each configuration that can be tried.

    Without any estimate the size of the micro-batch and the width of its numbers are used as the need. With estimates,
    a configuration without one cannot be built, except a rematerialized one, which was not traced.
    """
    every = list(dict.fromkeys((baseline, *configs)))
    estimated = {config: need for config in every if (need := _estimated_need(estimates.get(config))) is not None}
    if baseline not in estimated:
        return {config: Need(0.0, _micro_batch(config) / _micro_batch(baseline)) for config in every}
    found = dict(estimated)
    for config in every:
        plain = estimated.get(config.with_(remat=Remat()))
        if config not in found and plain is not None and config.remat.mode is not RematMode.NONE:
            found[config] = Need(plain.low * REMAT_SHARE, plain.high * REMAT_SHARE, plain.usable)
    return found


def cannot_run(config: TrainConfig, failed: TrainConfig, needed: Mapping[TrainConfig, Need]) -> bool:
    """Return whether a configuration needs no less than one that ran out of memory, if estimates are right."""
    if config not in needed or failed not in needed:
        return False
    same = program_key(config) == program_key(failed)
    margin = 1.0 if same else OTHER_PROGRAM
    return needed[config].high >= margin * needed[failed].high


class RescueSearch:
    """Names the configuration to try next, until the smallest change that runs is found or nothing is left.

    `least` is the least change that has run so far; None while nothing has run. `order` has all candidates, the least
    change first.
    """

    def __init__(
        self, baseline: TrainConfig, configs: Iterable[TrainConfig], needed: Mapping[TrainConfig, Need]
    ) -> None:
        self.baseline, self.needed = baseline, needed
        self.order = least_first(baseline, (config for config in configs if config in needed))
        self.least: TrainConfig | None = None
        self.records: list[TrialRecord] = []
        self._failed: list[TrainConfig] = [baseline]
        self._skipped: set[TrainConfig] = set()
        self._last_hope: TrainConfig | None = None
        self._hopeless = False

    def next(self) -> TrainConfig | None:
        """Return the configuration to try; None when no further trial would change the answer."""
        left = self._left()
        if self.least is None:
            return self._guess(left)
        smaller = left[: left.index(self.least)]
        return smaller[(len(smaller) - 1) // 2] if smaller and len(self.records) < MOST_TRIALS else None

    def add(self, record: TrialRecord) -> None:
        """Take the record of a configuration that was tried."""
        config = record.config
        self.records.append(record)
        if record.measurement is not None:
            if self.least is None or self.order.index(config) < self.order.index(self.least):
                self.least = config
        elif record.failure is not None and record.failure.out_of_memory:
            self._failed.append(config)
            self._hopeless = self._hopeless or config == self._last_hope

    def skip(self, config: TrainConfig) -> None:
        """Leave out a configuration that shares the settings of a refused one."""
        self._skipped.add(config)

    def why_not(self, config: TrainConfig) -> str:
        """Return why a configuration was passed over: its estimate, or a trial of another one."""
        need = self.needed[config]
        if config in self._skipped:
            return "a trial with the same settings was refused"
        if need.low > 1:
            return "estimated to need more memory than there is"
        by = [failed for failed in self._failed if self._ruled_out_by(config, failed)]
        if by:
            named = ", ".join(changes(self.baseline, by[-1])) or "the baseline"
            basis = "estimated" if math.isfinite(need.usable) else "assumed"
            return f"{basis} to need no less than {named}, which ran out of memory"
        return f"not tried: the search for a smaller change ends after {len(self.records)} trials"

    def _left(self) -> list[TrainConfig]:
        """Return the configurations that may still run or have run, the least change first."""
        if self._hopeless:
            return []
        done = {record.config for record in self.records if record.measurement is None} | self._skipped
        return [config for config in self.order if config not in done and not self._ruled_out(config)]

    def _ruled_out(self, config: TrainConfig) -> bool:
        if config == self.least:
            return False
        return self.needed[config].low > 1 or any(self._ruled_out_by(config, failed) for failed in self._failed)

    def _ruled_out_by(self, config: TrainConfig, failed: TrainConfig) -> bool:
        no_less_than_own = failed == self.baseline and self.needed[config].high >= self.needed[failed].high
        return no_less_than_own or cannot_run(config, failed, self.needed)

    def _guess(self, left: Sequence[TrainConfig]) -> TrainConfig | None:
        """Return the least change that needs clearly less than all that failed; after that, the least need."""
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


def _estimated_need(estimate: CandidateEstimate | None) -> Need | None:
    """Return the need as shares of the capacity; None where one of them is not known."""
    if estimate is None or not estimate.needed_bytes or not estimate.capacity_bytes:
        return None
    capacity = estimate.capacity_bytes
    return Need((estimate.least_bytes or 0) / capacity, estimate.needed_bytes / capacity, 1 - estimate.headroom)


def _micro_batch(config: TrainConfig) -> float:
    """Return a measure of a micro-step's activations: samples on a device times the width of their numbers."""
    width = 2 if "16" in config.precision.compute_dtype else 4
    stored = REMAT_SHARE if config.remat.mode is not RematMode.NONE else 1.0
    return config.batch.local * width * stored
