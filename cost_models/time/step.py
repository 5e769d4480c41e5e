"""Estimates the time of a micro-step: kernels on the device, waits for other devices, and host overhead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from cost_models.config import TrainConfig
from cost_models.execution import check, check_platform, device_share, profile_for, updates_of
from cost_models.hardware.cluster import Cluster
from cost_models.hardware.efficiency import Efficiency, efficiency_of
from cost_models.parallel.collectives import all_gather, slowest_of
from cost_models.parallel.whole_batch import gathered_bytes, on_whole_batch
from cost_models.time.cost import Seconds, TimeCost, TimeParts, figures
from cost_models.time.eager_torch import has_kernel_in_tensorflow, library_kernels
from cost_models.time.exchange import StepState, XlaExchange, state_of
from cost_models.time.gpu import nchw_seconds
from cost_models.time.kernels import kernel_table
from cost_models.time.page_faults import paging_seconds
from cost_models.time.roofline import kernel_seconds, peak_of, profile_of, row_seconds
from cost_models.time.software import KERAS, Kernels, Software, overhead_seconds
from cost_models.workload.workload import Kind, Workload
from cost_models.xla.buffers.schedule import Updates
from cost_models.xla.profile import Profile
from cost_models.xla.profiles.choice import compiler_profile
from cost_models.xla.rules import rule

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class DeviceTime:
    """The kernels of one micro-step on a device; numbers or arrays. Adds, so that layers can be repeated.

    forward, backward, update   seconds of compute and of memory traffic
    launches                    kernels that are started
    model_flops                 the model's own FLOPs
    """

    forward: TimeParts
    backward: TimeParts
    update: TimeParts
    launches: Seconds
    model_flops: Seconds

    def __add__(self, other: DeviceTime) -> DeviceTime:
        """Return the kernels of both, one after the other."""
        own, more = vars(self), vars(other)
        return DeviceTime(**{name: value + more[name] for name, value in own.items()})

    def __mul__(self, times: float) -> DeviceTime:
        """Return so many of these, one after the other."""
        return DeviceTime(**{name: value * times for name, value in vars(self).items()})

    @classmethod
    def stacked(cls, several: Sequence[DeviceTime]) -> DeviceTime:
        """Return several as one of arrays."""

        def passes(name: str) -> TimeParts:
            parts: list[TimeParts] = [getattr(one, name) for one in several]
            return TimeParts(*(np.array(column) for column in zip(*(one.values() for one in parts), strict=True)))

        launches, flops = (np.array([getattr(one, name) for one in several]) for name in ("launches", "model_flops"))
        return cls(passes("forward"), passes("backward"), passes("update"), launches, flops)


def step_time(
    workload: Workload,
    config: TrainConfig,
    cluster: Cluster,
    *,
    overlap: float | None = None,
    software: Software = KERAS,
    efficiency: Efficiency | None = None,
) -> TimeCost:
    """Estimate the seconds of one micro-step and one update.

    overlap     share of the backward pass behind which XLA's gradient all-reduces hide, 0 to 1 (None: 0.5); in place of
                the software's exchange
    software    the stack that runs the step; by default Keras on the configuration's backend
    efficiency  what kernels reach; None takes that of the cluster's chip

    WorkloadError when the workload does not hold for this configuration; HardwareError when the chip publishes no
    rate at all.
    """
    check(workload, config)
    check_platform(workload, config, cluster)
    if overlap is not None:
        software = replace(software, exchange=XlaExchange(overlap))
    device = device_time(workload, config, cluster, software, efficiency)
    parts = parts_of(device, state_of(workload), config, cluster, software, efficiency)
    return assemble(parts, config, float(device.model_flops), peak_of(workload, config, cluster))


def step_time_of_layers(
    one: Workload,
    two: Workload,
    layers: int,
    config: TrainConfig,
    cluster: Cluster,
    *,
    software: Software = KERAS,
    efficiency: Efficiency | None = None,
) -> TimeCost:
    """Estimate a step of many equal layers from steps that were traced with one and with two of them.

    Kernels and state are linear in the number of layers. Other arguments and errors as `step_time`.
    """
    check(one, config)
    check(two, config)
    first, second = (device_time(each, config, cluster, software, efficiency) for each in (one, two))
    device = first * (2 - layers) + second * (layers - 1)
    state = state_of(one) * (2 - layers) + state_of(two) * (layers - 1)
    parts = parts_of(device, state, config, cluster, software, efficiency)
    return assemble(parts, config, float(device.model_flops), peak_of(two, config, cluster))


def assemble(
    parts: TimeParts, config: TrainConfig, model_flops: float | None, peak_flops_per_second: float
) -> TimeCost:
    """Return the cost of one configuration from the parts of its micro-step.

    model_flops            the model's own FLOPs of a micro-step on one device; None when nobody counted them
    peak_flops_per_second  of one device
    """
    return TimeCost(
        **figures(
            TimeParts(*map(float, parts.values())),
            accumulation=config.batch.accumulation,
            global_batch=config.batch.global_size,
            model_flops=model_flops,
            peak_flops_per_second=peak_flops_per_second,
        )
    )


def device_time(
    workload: Workload,
    config: TrainConfig,
    cluster: Cluster,
    software: Software = KERAS,
    efficiency: Efficiency | None = None,
) -> DeviceTime:
    """Return the kernels of one micro-step on a device: of the mesh, only the batches' sizes matter."""
    efficiency = efficiency or efficiency_of(cluster)
    whole = on_whole_batch(workload, config.mesh.data)
    program = _program(whole, config, cluster, software)
    table = kernel_table(*program, config.batch.local)
    compute, traffic = kernel_seconds(table, config, cluster, efficiency, software)
    seconds = row_seconds(compute, traffic, efficiency, software)
    if software.nchw and software.applies("nchw-transposes"):
        seconds = seconds + nchw_seconds(table, config.batch.local, cluster.chip, efficiency)
    is_compute = compute >= traffic

    def parts(rows: Bools) -> TimeParts:
        whole, of_compute = float(seconds[rows].sum()), float(seconds[rows & is_compute].sum())
        return TimeParts(compute=of_compute, memory=whole - of_compute)

    paging = paging_seconds(workload, config, cluster) if software.applies("page-faults") else 0.0
    is_forward = ~table.is_backward & ~table.is_update
    return DeviceTime(
        forward=parts(is_forward) + TimeParts(memory=paging, communication=_gathering_seconds(whole, config, cluster)),
        backward=parts(table.is_backward),
        update=parts(table.is_update & ~table.is_backward),
        launches=table.launches,
        model_flops=workload.model_flops.at(config.batch.local),
    )


def _gathering_seconds(workload: Workload, config: TrainConfig, cluster: Cluster) -> float:
    """Return the seconds in which devices wait for rows of the others, for calls on the whole batch."""
    found = gathered_bytes(workload, config.batch.local)
    return sum(all_gather(size, cluster, config.mesh.data).seconds for size in found)


def parts_of(
    device: DeviceTime,
    state: StepState,
    config: TrainConfig,
    cluster: Cluster,
    software: Software = KERAS,
    efficiency: Efficiency | None = None,
) -> TimeParts:
    """Return the parts of a micro-step. Where the figures of `device` are arrays, so are the parts."""
    efficiency = efficiency or efficiency_of(cluster)
    stream = cluster.chip.memory_bytes_per_second * device_share(config, cluster)
    stream *= efficiency.stream_share * efficiency.cache_curve[-1][1]
    update = _update(device, state, config, cluster, software, stream)
    kernels = device.forward + device.backward + update
    communication: Seconds = 0.0
    if config.mesh.data > 1:
        passes = device.forward.seconds, device.backward.seconds
        communication = software.exchange.exposed_seconds(state, *passes, config, cluster)
    if profile_of(cluster.chip).waits_for_slowest and software.applies("slowest-device"):
        communication = communication + waiting_seconds(kernels.seconds, config.mesh.devices)
    parts = kernels + TimeParts(communication=communication)
    overhead = overhead_seconds(
        device.launches, parts.seconds, config, cluster, variables=state.variables, dispatches=state.dispatches
    )
    return parts + TimeParts(overhead=overhead)


@rule("slowest-device", "Sinha et al. 2022, arXiv 2208.11035: GPUs of one kind differ by 8%")
def waiting_seconds(seconds: Seconds, devices: int) -> Seconds:
    """Return the seconds in which a typical device waits for the slowest."""
    return seconds * (slowest_of(devices) - 1)


def _program(
    workload: Workload, config: TrainConfig, cluster: Cluster, software: Software
) -> tuple[Workload, Profile, Updates]:
    """The operations that run, what fuses them, and when gradients become weights."""
    kernels, kind, updates = software.kernels, cluster.chip.kind, updates_of(config)
    if software.updates_once and updates is Updates.SELECTED:
        updates = Updates.TOGETHER
    if kernels is Kernels.BACKEND and config.backend == "torch" and not config.jit_compile:
        kernels = Kernels.LAYERS if profile_of(cluster.chip).layer_kernels else kernels
    if kernels is Kernels.LAYERS and software.applies("layer-kernels"):
        return library_kernels(workload, biases_apart=software.biases_apart), compiler_profile(kind), updates
    if kernels is not Kernels.BACKEND:
        one_by_one = compiler_profile(kind, jit_compile=False)
        target = replace(one_by_one, fusible=frozenset({Kind.BROADCAST}), free_moves=frozenset({"pad"}))
        if software.applies("layer-kernels"):
            workload = library_kernels(workload, has_kernel_in_tensorflow)
        return workload, target, updates
    return workload, profile_for(config, cluster), updates


def _update(
    device: DeviceTime, state: StepState, config: TrainConfig, cluster: Cluster, software: Software, stream: float
) -> TimeParts:
    """The optimizer's share of a micro-step."""
    accumulation, update = config.batch.accumulation, device.update
    if software.optimizer is not None:
        launch_seconds = cluster.chip.kernel_launch_seconds
        seconds = software.optimizer.seconds(state.parameters, state.trainable_variables, stream, launch_seconds)
        update = TimeParts(memory=seconds)
    if software.updates_once:
        shards = config.mesh.data if config.layout.shard_state else 1
        return update * (1 / (shards * accumulation))
    if accumulation == 1:
        return update
    # Gradients and accumulators are read and written, and old and new state are chosen from.
    moved = 3 * state.trainable_bytes + 2 * (state.trainable_bytes + state.slot_bytes)
    return update + TimeParts(memory=moved / stream)
