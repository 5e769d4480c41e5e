"""`CandidateEstimate`: estimated memory and time of one configuration over an epoch, by which tuning ranks it."""

from __future__ import annotations

from dataclasses import dataclass

from cost_models.config import TrainConfig
from cost_models.estimate import Estimate


@dataclass(frozen=True)
class CandidateEstimate:
    """The estimate of one configuration. The compiler's figures may take the place of the analytic ones.

    analytic        the cost model's estimate
    update_seconds  of one change of the weights
    needed_bytes    upper end of the interval of a device's memory, `outside_bytes` included
    least_bytes     lower end of that interval
    samples         samples an epoch; None when not known
    outside_bytes   what the process holds in the same memory besides the training step: on a CPU the interpreter,
                    libraries and data, as they were measured before the first micro-step
    """

    analytic: Estimate
    update_seconds: float
    needed_bytes: int
    least_bytes: int
    samples: int | None = None
    outside_bytes: int = 0

    @classmethod
    def of(cls, estimate: Estimate, samples: int | None = None, outside_bytes: int = 0) -> CandidateEstimate:
        """Return the estimate with what the process holds besides."""
        return cls(
            analytic=estimate,
            update_seconds=estimate.time.update_seconds,
            needed_bytes=estimate.memory.total_high + outside_bytes,
            least_bytes=estimate.memory.total_low + outside_bytes,
            samples=samples,
            outside_bytes=outside_bytes,
        )

    @property
    def config(self) -> TrainConfig:
        """The configuration that is estimated."""
        return self.analytic.config

    @property
    def capacity_bytes(self) -> int:
        """Memory that one device leaves to programs."""
        return self.analytic.capacity_bytes

    @property
    def headroom(self) -> float:
        """Share of the capacity that must stay free."""
        return self.analytic.headroom

    @property
    def usable_bytes(self) -> int:
        """Capacity less the headroom."""
        return self.analytic.capacity.usable_bytes

    @property
    def fits(self) -> bool:
        """Whether the upper end of the interval leaves the headroom free."""
        return self.analytic.capacity.fits(self.needed_bytes)

    @property
    def may_fit(self) -> bool:
        """Whether the lower end of the interval is at most the capacity: then only a run or a compiler can decide."""
        return self.analytic.capacity.may_fit(self.least_bytes)

    @property
    def seconds_per_sample(self) -> float:
        """Estimated seconds a sample over an epoch. A last partial batch costs a whole micro-step."""
        batch = self.config.batch
        micro_step_seconds = self.update_seconds / batch.accumulation
        if self.samples is None:
            return micro_step_seconds / batch.global_size
        return micro_step_seconds * -(-self.samples // batch.global_size) / self.samples
