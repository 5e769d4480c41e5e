"""Estimates the seconds that a device waits for collectives on gradients and weights, overlapped time excluded."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np

from cost_models.config import TrainConfig
from cost_models.hardware.cluster import Cluster
from cost_models.parallel.collectives import all_gather, all_reduce, reduce_scatter
from cost_models.parallel.data_parallel import collectives
from cost_models.time.cost import Seconds
from cost_models.workload.workload import CONVERT, Kind, Role, Workload
from cost_models.xla.rules import rule

DEFAULT_OVERLAP = 0.5
"""Share of the backward pass behind which gradient all-reduces hide: XLA starts them early, but combines them late."""
BUCKET_BYTES = 25 * 2**20
"""Gradients that are reduced at a time: PyTorch's `bucket_cap_mb`."""
CONTENTION = 0.1256
"""How much slower kernels of a GPU run beside a collective (Galvatron's coefficient, 1.1256)."""


@dataclass(frozen=True)
class StepState:
    """State of a training step: what is exchanged, accumulated and handed over. Adds, so that layers can be repeated.

    parameters           elements of trainable variables
    table_parameters     elements of the largest trainable table that is looked up: its gradient is one of the last
    trainable_bytes      bytes of trainable variables
    slot_bytes           bytes of optimizer slots
    gradient_bytes       bytes that are reduced over devices for the optimizer
    statistics           (bytes, how many) of reductions that the step itself waits for
    variables            all variables
    trainable_variables  of these, the trainable ones
    dispatches           operations that run one by one without a compiler
    """

    parameters: float
    table_parameters: float
    trainable_bytes: float
    slot_bytes: float
    gradient_bytes: float
    statistics: tuple[tuple[float, float], ...]
    variables: float
    trainable_variables: float
    dispatches: float

    def __add__(self, other: StepState) -> StepState:
        """Return the state of both."""
        own, more = vars(self), vars(other)
        return StepState(**{name: value + more[name] for name, value in own.items()})

    def __mul__(self, times: float) -> StepState:
        """Return the state of so many of these."""
        scaled = {name: value * times for name, value in vars(self).items() if name != "statistics"}
        return StepState(**scaled, statistics=tuple((size, count * times) for size, count in self.statistics))


@lru_cache(maxsize=64)
def state_of(workload: Workload) -> StepState:
    """Return the state of a workload."""
    needed = collectives(workload)
    return StepState(
        parameters=workload.parameters,
        table_parameters=_table_parameters(workload),
        trainable_bytes=workload.variable_bytes(Role.TRAINABLE),
        slot_bytes=workload.variable_bytes(Role.SLOT),
        gradient_bytes=needed.gradient_bytes,
        statistics=needed.statistics_bytes,
        variables=len(workload.variables),
        trainable_variables=sum(one.role is Role.TRAINABLE for one in workload.variables),
        dispatches=workload.dispatches,
    )


def _table_parameters(workload: Workload) -> float:
    """Elements of the largest trainable variable that is looked up, as it is or converted."""
    converted = {op.writes[0]: op.reads[0] for op in workload.ops if op.primitive == CONVERT}
    looked_up = {op.reads[0] for op in workload.ops if op.kind is Kind.GATHER}
    tensors = {one.tensor for one in workload.variables if one.role is Role.TRAINABLE}
    tables = tensors & (looked_up | {converted[read] for read in looked_up if read in converted})
    return max((workload.tensors[table].elements.at(1) for table in tables), default=0.0)


class Exchange(Protocol):
    """A way to exchange gradients and weights over the data axis."""

    def exposed_seconds(
        self,
        state: StepState,
        forward_seconds: Seconds,
        backward_seconds: Seconds,
        config: TrainConfig,
        cluster: Cluster,
    ) -> Seconds:
        """Return the seconds of a micro-step in which one of several devices waits, or works more slowly.

        forward_seconds, backward_seconds  of the passes' kernels on the device; numbers or arrays
        """
        ...


@dataclass(frozen=True)
class XlaExchange:
    """Keras on JAX: XLA reduces gradients in every micro-step.

    overlap  share of the backward pass behind which collectives hide, 0 to 1. Nothing hides statistics.
    """

    overlap: float = DEFAULT_OVERLAP

    def exposed_seconds(
        self,
        state: StepState,
        forward_seconds: Seconds,
        backward_seconds: Seconds,
        config: TrainConfig,
        cluster: Cluster,
    ) -> Seconds:
        devices = config.mesh.data
        gradient_bytes = round(state.gradient_bytes)
        if config.layout.shard_state:  # ZeRO-3: parameters gathered forward and backward, gradients scattered
            gathers = 2 * all_gather(round(state.trainable_bytes), cluster, devices).seconds
            gradients = gathers + reduce_scatter(gradient_bytes, cluster, devices).seconds
        else:
            gradients = all_reduce(gradient_bytes, cluster, devices).seconds
        statistics = sum(count * all_reduce(round(size), cluster, devices).seconds for size, count in state.statistics)
        return np.maximum(0.0, gradients - self.overlap * backward_seconds) + statistics


@dataclass(frozen=True)
class BucketedExchange:
    """Gradients in buckets, as PyTorch's DistributedDataParallel and FSDP exchange them.

    Weights of a sharded state are gathered before each pass, and gradients scattered; the next layer's while this one's
    is at work. Gradients of copies are reduced once an update, in buckets, while the backward pass runs: the last
    bucket is full when that ends, and all of them where a program hands over everything at its end. Buckets hold whole
    gradients, so that the last one holds that of the table of words.

    gather_bytes, reduce_bytes  of an element, when weights are gathered and gradients are reduced
    overlaps                    gradients are exchanged while the backward pass runs, not after it
    contention                  how much slower kernels run beside a collective
    """

    gather_bytes: int = 4
    reduce_bytes: int = 4
    overlaps: bool = True
    bucket_bytes: int = BUCKET_BYTES
    contention: float = CONTENTION

    def exposed_seconds(
        self,
        state: StepState,
        forward_seconds: Seconds,
        backward_seconds: Seconds,
        config: TrainConfig,
        cluster: Cluster,
    ) -> Seconds:
        devices = config.mesh.data
        gathered = round(state.parameters * self.gather_bytes)
        reduced = round(state.parameters * self.reduce_bytes)
        if config.layout.shard_state:
            forward = all_gather(gathered, cluster, devices).seconds
            backward = forward + reduce_scatter(reduced, cluster, devices).seconds
            return self._waits(forward, backward, 0.0, forward_seconds, backward_seconds)
        accumulation = config.batch.accumulation
        backward = all_reduce(reduced, cluster, devices).seconds / accumulation
        last_bytes = max(self.bucket_bytes, state.table_parameters * self.reduce_bytes)
        last = backward * min(1.0, last_bytes / reduced) if self.overlaps else backward
        return self._waits(0.0, backward, last, forward_seconds, backward_seconds)

    def _waits(
        self, forward: float, backward: float, last: float, forward_seconds: Seconds, backward_seconds: Seconds
    ) -> Seconds:
        """Collectives of each pass beside its kernels, the last bucket after them."""
        hidden = np.minimum(forward, forward_seconds) + np.minimum(backward - last, backward_seconds)
        waits = np.maximum(0.0, forward - forward_seconds) + np.maximum(last, backward - backward_seconds)
        slowed: Seconds = contention_seconds(hidden, self.contention)
        return waits + slowed


@rule("contention", "Galvatron: kernels beside a collective take 1.1256 times as long")
def contention_seconds(hidden: Seconds, contention: float) -> Seconds:
    """Return the seconds that kernels lose beside collectives.

    hidden  seconds of collectives behind kernels
    """
    return contention * hidden
