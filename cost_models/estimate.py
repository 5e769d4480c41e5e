"""Estimate: memory and time of one configuration, and how far to trust them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from cost_models.accuracy import Accuracy, accuracy
from cost_models.config import TrainConfig
from cost_models.errors import ConfigError
from cost_models.hardware.cluster import Cluster
from cost_models.memory import LiveTensor, MemoryCost, largest, memory
from cost_models.time.roofline import TimeCost, step_time
from cost_models.workload.workload import UnknownOp, Workload

SCHEMA = 1
DEFAULT_HEADROOM = 0.08


@dataclass(frozen=True)
class Explanation:
    """The largest temporaries at the memory peak, and the layer at work there."""

    largest_tensors: tuple[LiveTensor, ...]

    def to_dict(self) -> dict[str, Any]:
        return {"largest_tensors": [tensor.to_dict() for tensor in self.largest_tensors]}


@dataclass(frozen=True)
class Estimate:
    """What arithmetic says about one configuration on one cluster. Evidence: analytic."""

    workload: Workload
    config: TrainConfig
    cluster: Cluster
    memory: MemoryCost
    time: TimeCost
    headroom: float

    @property
    def capacity_bytes(self) -> int:
        """What one device leaves usable (see `capacity_of`)."""
        return capacity_of(self.config, self.cluster)

    @property
    def fits(self) -> bool:
        """Whether the upper end of the interval is at most capacity x (1 - headroom)."""
        return self.memory.total_high <= self.capacity_bytes * (1 - self.headroom)

    @property
    def may_fit(self) -> bool:
        """Whether the lower end of the interval is at most the capacity: where it is not, the step does not fit."""
        return self.memory.total_low <= self.capacity_bytes

    @property
    def accuracy(self) -> Accuracy | None:
        """How far measured times lay from such predictions; None where nobody has measured enough."""
        return accuracy(self.cluster)

    @property
    def unknown_ops(self) -> tuple[UnknownOp, ...]:
        """Operations that no rule knows: counted by their bytes."""
        return self.workload.unknown_ops

    def explain(self, count: int = 10) -> Explanation:
        """The `count` largest tensors at the peak, by layer."""
        return Explanation(largest(self.workload, self.config, self.cluster, count))

    def to_dict(self) -> dict[str, Any]:
        """What `estimate --format json` prints."""
        return {
            "schema": SCHEMA,
            "hardware": self.cluster.name,
            "evidence": "analytic",
            "config": self.config.to_dict(),
            "memory": {
                "per_device_bytes": self.memory.to_dict(),
                "capacity_bytes": self.capacity_bytes,
                "headroom": self.headroom,
                "fits": self.fits,
                "may_fit": self.may_fit,
            },
            "time": self.time.to_dict(),
            "accuracy": None if self.accuracy is None else self.accuracy.to_dict(),
            "model_flops": self.workload.model_flops.at(self.config.batch.local),
            "coverage": {"unknown_ops": [op.to_dict() for op in self.unknown_ops]},
        }


def capacity_of(config: TrainConfig, cluster: Cluster) -> int:
    """Bytes that a device leaves usable; simulated devices that the mesh leaves idle give their share to the others."""
    usable = cluster.chip.usable_memory_bytes
    return usable * cluster.devices // config.mesh.devices if cluster.simulated else usable


def check_headroom(headroom: float) -> None:
    """ConfigError for a headroom that is no share of the capacity."""
    if not 0 <= headroom < 1:
        raise ConfigError(f"headroom is {headroom:g}; expected a share of the capacity, at least 0 and below 1")


def estimate(
    workload: Workload, config: TrainConfig, cluster: Cluster, *, headroom: float = DEFAULT_HEADROOM
) -> Estimate:
    """Memory and time of `config` on `cluster`.

    headroom  share of the capacity that must stay free, at least 0 and below 1

    WorkloadError when the workload says nothing about this configuration (traced with another precision or remat, a
    mesh with a model axis); HardwareError for a figure that nobody published; ConfigError for
    a headroom that is no share.
    """
    check_headroom(headroom)
    return Estimate(
        workload=workload,
        config=config,
        cluster=cluster,
        memory=memory(workload, config, cluster),
        time=step_time(workload, config, cluster),
        headroom=headroom,
    )


def estimate_many(
    workload: Workload, configs: Iterable[TrainConfig], cluster: Cluster, *, headroom: float = DEFAULT_HEADROOM
) -> Sequence[Estimate]:
    """`estimate` for a list of candidates that share one traced structure, in order.

    Fusion and liveness are worked out once a structure; a further candidate costs a few array operations.
    """
    return [estimate(workload, config, cluster, headroom=headroom) for config in configs]
