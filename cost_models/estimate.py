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
    LargestTensors,
    LiveTensor,
    MemoryCost,
    capacity_bytes,
    largest,
    largest_group,
    memory,
    validation_memory,
)
from cost_models.time.cost import TimeCost
from cost_models.time.step import step_time
from cost_models.validation import (
    Reader,
    flag,
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
class Validation:
    """Memory while validating, where the script sets how many rows are validated at once.

    rows          rows at once on all devices
    memory        bytes per device, of the forward pass and of what the training keeps
    fitting_rows  the largest power of two that fits, if `rows` do not; None where nothing fits, or `rows` do
    fits          whether `rows` fit: the upper end of the interval leaves the headroom free
    may_fit       whether the lower end is at most the capacity
    """

    rows: int
    memory: MemoryCost
    fits: bool
    may_fit: bool
    fitting_rows: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the keys of `--format json` under `validation`."""
        return {
            "rows": self.rows,
            "per_device_bytes": self.memory.to_dict(),
            "fits": self.fits,
            "may_fit": self.may_fit,
            "fitting_rows": self.fitting_rows,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Validation:
        """Read what `to_dict` writes. ConfigError for a missing or a wrong figure."""
        values = read_fields(data, "estimate.validation", _VALIDATION)
        memory = MemoryCost.from_dict(values.pop("per_device_bytes"))
        return cls(memory=memory, **values)


@dataclass(frozen=True)
class Estimate:
    """Memory and time of one configuration on one kind of hardware. Evidence: analytic.

    hardware     name of the cluster
    capacity     memory of one device, and the headroom
    accuracy     how far measured times were from such estimates; None where nobody has measured enough
    model_flops  the model's own FLOPs in a micro-step on one device; None where nobody counted them
    unknown_ops  operations that no rule knows: counted by their bytes
    validation   memory while validating, where the script sets its rows; None where they follow the batch
    largest      temporaries of the shape that takes the most memory at the peak
    """

    config: TrainConfig
    hardware: str
    memory: MemoryCost
    time: TimeCost
    capacity: Capacity
    accuracy: Accuracy | None
    model_flops: float | None
    unknown_ops: tuple[UnknownOp, ...]
    validation: Validation | None = None
    largest: LargestTensors | None = None

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
            **({} if self.validation is None else {"validation": self.validation.to_dict()}),
            **({} if self.largest is None else {"largest": self.largest.to_dict()}),
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
            validation = optional(mapping)(data.get("validation"), "estimate.validation")
            largest_found = optional(mapping)(data.get("largest"), "estimate.largest")
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
            validation=None if validation is None else Validation.from_dict(validation),
            largest=None if largest_found is None else LargestTensors.from_dict(largest_found),
        )


_REQUIRED: Mapping[str, Reader] = {"hardware": text, "config": mapping, "memory": mapping, "time": mapping}
_MEMORY: Mapping[str, Reader] = {"per_device_bytes": mapping, "capacity_bytes": whole, "headroom": number}
_VALIDATION: Mapping[str, Reader] = {
    "rows": whole,
    "per_device_bytes": mapping,
    "fits": flag,
    "may_fit": flag,
    "fitting_rows": optional(whole),
}
_UNKNOWN_OP: Mapping[str, Reader] = {"primitive": text, "count": whole, "reason": text}


def _unknown_op(value: object, where: str) -> UnknownOp:
    return UnknownOp(**read_fields(value, where, _UNKNOWN_OP))


def capacity_of(config: TrainConfig, cluster: Cluster, headroom: float = DEFAULT_HEADROOM) -> Capacity:
    """Return the memory that each device of the configuration's mesh has. ConfigError for a headroom that is no
    share."""
    return Capacity(capacity_bytes(cluster, config.mesh.devices), headroom)


def validation_of(
    workload: Workload, config: TrainConfig, cluster: Cluster, capacity: Capacity, outside_bytes: int = 0
) -> Validation | None:
    """Return the memory while validating, and how many rows at once would fit; None without a validation step.

    outside_bytes  what else is held in the same memory
    """
    whole_batch = validation_memory(workload, config, cluster)
    if workload.validation is None or whole_batch is None:
        return None
    rows, smaller = workload.validation.rows, None
    fits = capacity.fits(whole_batch.total_high + outside_bytes)
    for power in () if fits or workload.validation.step.batch_exact else reversed(range((rows - 1).bit_length())):
        cost = validation_memory(workload, config, cluster, 2**power)
        if cost is not None and capacity.fits(cost.total_high + outside_bytes):
            smaller = 2**power
            break
    may_fit = capacity.may_fit(whole_batch.total_low + outside_bytes)
    return Validation(rows, whole_batch, fits, may_fit, smaller)


def estimate(
    workload: Workload,
    config: TrainConfig,
    cluster: Cluster,
    *,
    headroom: float = DEFAULT_HEADROOM,
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
        validation=validation_of(workload, config, cluster, capacity),
        largest=largest_group(workload, config, cluster),
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
