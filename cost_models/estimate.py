"""Estimates memory and time of one configuration on one cluster, with capacity, headroom and error band."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cost_models.accuracy import Accuracy, accuracy
from cost_models.config import TrainConfig
from cost_models.errors import ConfigError
from cost_models.hardware.cluster import Cluster
from cost_models.memory import (
    DEFAULT_HEADROOM,
    Capacity,
    LiveTensor,
    MemoryCost,
    capacity_bytes,
    largest,
    memory,
)
from cost_models.time.cost import TimeCost
from cost_models.time.step import step_time
from cost_models.validation import (
    Reader,
    mapping,
    number,
    optional,
    raised_as,
    read_fields,
    several,
    text,
    whole,
)
from cost_models.workload.workload import UnknownOp, Workload

SCHEMA = 1


@dataclass(frozen=True)
class Explanation:
    """The largest temporaries at the memory peak."""

    largest_tensors: tuple[LiveTensor, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the keys of `--format json` under `explanation`."""
        return {"largest_tensors": [tensor.to_dict() for tensor in self.largest_tensors]}


@dataclass(frozen=True)
class Estimate:
    """Memory and time of one configuration on one kind of hardware. Evidence: analytic.

    hardware     name of the cluster
    capacity     memory of one device, and the headroom
    accuracy     how far measured times were from such estimates; None where nobody has measured enough
    model_flops  the model's own FLOPs in a micro-step on one device; None where nobody counted them
    unknown_ops  operations that no rule knows: counted by their bytes
    """

    config: TrainConfig
    hardware: str
    memory: MemoryCost
    time: TimeCost
    capacity: Capacity
    accuracy: Accuracy | None
    model_flops: float | None
    unknown_ops: tuple[UnknownOp, ...]

    @property
    def capacity_bytes(self) -> int:
        """Bytes that one device leaves to programs (see `memory.capacity_bytes`)."""
        return self.capacity.device_bytes

    @property
    def headroom(self) -> float:
        """Share of the capacity that must stay free."""
        return self.capacity.headroom

    @property
    def fits(self) -> bool:
        """Whether the upper end of the interval is at most capacity x (1 - headroom)."""
        return self.capacity.fits(self.memory.total_high)

    @property
    def may_fit(self) -> bool:
        """Whether the lower end of the interval is at most the capacity: where it is not, the step does not fit."""
        return self.capacity.may_fit(self.memory.total_low)

    def __getitem__(self, key: str) -> Any:
        """Return the plain value under a key of `to_dict`, for programs that read `plan.predicted["time"]`."""
        return self.to_dict()[key]

    def to_dict(self) -> dict[str, Any]:
        """Return what `estimate --format json` prints."""
        return {
            "schema": SCHEMA,
            "hardware": self.hardware,
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
            "model_flops": self.model_flops,
            "coverage": {"unknown_ops": [op.to_dict() for op in self.unknown_ops]},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Estimate:
        """Read what `to_dict` writes, of this version or an older one; other keys are ignored.

        ConfigError for a missing or a wrong figure. Accuracy, FLOPs and coverage may be missing.
        """
        with raised_as(ConfigError, "the estimate cannot be read: "):
            values = read_fields(data, "estimate", _REQUIRED)
            limits = read_fields(values["memory"], "estimate.memory", _MEMORY)
            flops = optional(number)(data.get("model_flops"), "estimate.model_flops")
            coverage = mapping(data.get("coverage", {}), "estimate.coverage")
            unknown = several(_unknown_op)(coverage.get("unknown_ops", []), "estimate.coverage.unknown_ops")
        known = data.get("accuracy")
        return cls(
            config=TrainConfig.from_dict(values["config"]),
            hardware=values["hardware"],
            memory=MemoryCost.from_dict(limits["per_device_bytes"]),
            time=TimeCost.from_dict(values["time"]),
            capacity=Capacity(limits["capacity_bytes"], limits["headroom"]),
            accuracy=None if known is None else Accuracy.from_dict(known),
            model_flops=flops,
            unknown_ops=unknown,
        )


_REQUIRED: Mapping[str, Reader] = {"hardware": text, "config": mapping, "memory": mapping, "time": mapping}
_MEMORY: Mapping[str, Reader] = {"per_device_bytes": mapping, "capacity_bytes": whole, "headroom": number}
_UNKNOWN_OP: Mapping[str, Reader] = {"primitive": text, "count": whole, "reason": text}


def _unknown_op(value: object, where: str) -> UnknownOp:
    return UnknownOp(**read_fields(value, where, _UNKNOWN_OP))


def capacity_of(config: TrainConfig, cluster: Cluster, headroom: float = DEFAULT_HEADROOM) -> Capacity:
    """Return the memory that each device of the configuration's mesh has. ConfigError for a headroom that is no
    share."""
    return Capacity(capacity_bytes(cluster, config.mesh.devices), headroom)


def estimate(
    workload: Workload, config: TrainConfig, cluster: Cluster, *, headroom: float = DEFAULT_HEADROOM
) -> Estimate:
    """Estimate memory and time of `config` on `cluster`.

    headroom  share of the capacity that must stay free, at least 0 and below 1

    WorkloadError when the workload does not hold for this configuration (traced with another precision or remat, a
    mesh with a model axis); HardwareError for a figure that nobody published; ConfigError for
    a headroom that is no share.
    """
    capacity = capacity_of(config, cluster, headroom)
    return Estimate(
        config=config,
        hardware=cluster.name,
        memory=memory(workload, config, cluster),
        time=step_time(workload, config, cluster),
        capacity=capacity,
        accuracy=accuracy(cluster),
        model_flops=workload.model_flops.at(config.batch.local),
        unknown_ops=workload.unknown_ops,
    )


def explain(workload: Workload, config: TrainConfig, cluster: Cluster, count: int = 10) -> Explanation:
    """Return the `count` largest tensors at the memory peak, by layer. WorkloadError as `estimate`."""
    return Explanation(largest(workload, config, cluster, count))


def estimate_many(
    workload: Workload, configs: Iterable[TrainConfig], cluster: Cluster, *, headroom: float = DEFAULT_HEADROOM
) -> Sequence[Estimate]:
    """Estimate a list of candidates that share one traced structure, in order.

    Fusion and liveness are worked out once a structure; a further candidate costs a few array operations.
    """
    return [estimate(workload, config, cluster, headroom=headroom) for config in configs]
