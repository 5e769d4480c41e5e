"""Seconds of a published row, from the traced model and cited curves alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from cost_models import Batch, Precision, Remat, RematMode, TrainConfig, Workload
from cost_models.execution import updates_of
from cost_models.hardware.cluster import Cluster
from cost_models.hardware.efficiency import Efficiency, Floats
from cost_models.memory import memory
from cost_models.parallel.collectives import all_gather, all_reduce, reduce_scatter, slowest_of
from cost_models.time.eager_torch import library_kernels
from cost_models.time.kernels import KernelTable, kernel_table
from cost_models.time.roofline import kernel_seconds, overhead_of, slower_of
from cost_models.workload.workload import CONVERT, Kind, Phase, Role
from cost_models.xla.target import Target, library_target, target_of
from studies.time_vs_published import chips
from studies.time_vs_published.cases import Case
from studies.time_vs_published.traces import Traced, workload

CONTENTION = 0.1256
"""How much slower kernels of a GPU run beside a collective (Galvatron's coefficient, 1.1256)."""
BUCKET_BYTES = 25 * 2**20
"""Gradients that are reduced at a time: PyTorch's `bucket_cap_mb`."""
_COPIES = 4  # gradients are read and written once on their way into a bucket, and once on their way out
_SLOWER_IN_2020 = {"layers": 1.68, "xla": 1.85}
"""How much longer than at 90% of the bandwidth kernels of transformers took in 16 bits on a V100 in 2020.

A layer of BERT-large took 9.14 ms forward and backward in PyTorch for 8 x 512 tokens, 18.43 ms for 96 x 128, and 8.4 ms
for 8 x 512 in TensorFlow with XLA (spcl/substation, README; Ivanov et al. 2021, arXiv 2007.00072). As counted here its
products take 3.89 and 10.27 ms, and its other kernels 2.00 and 3.74 ms in PyTorch and 2.43 ms with XLA. Both sizes in
PyTorch together leave 1.9 ms for launching, which those who train large batches do not wait for.
"""
OPERATION_SECONDS = 1e-5
"""An operation of PyTorch from Python, as `cost_models.time.roofline` measured it."""


@dataclass(frozen=True)
class Parts:
    """Seconds on one device, and what has to be exchanged. Everything is linear in the number of blocks.

    table   parameters of the largest table that is looked up: its gradient is one of the last
    """

    forward: float
    backward: float
    update: float
    overhead: float
    parameters: float
    variables: float
    table: float
    flops: float

    def extended(self, longer: Parts, blocks: int) -> Parts:
        """With this one of one block and `longer` of two: that of `blocks`."""
        one, two = np.array(list(vars(self).values())), np.array(list(vars(longer).values()))
        return Parts(*(one + (blocks - 1) * (two - one)).tolist())


@dataclass(frozen=True)
class Predicted:
    """What the model says of a row."""

    seconds: float
    exposed_seconds: float
    model_flops: float
    parameters: float


def predict(case: Case, folder: Path) -> Predicted:
    """Seconds of a micro-step; an update's share of it where gradients are accumulated."""
    place = chips.machine(case.chip, case.devices, case.devices_per_host, bridged=case.bridged)
    parts = _parts(case.traced if not case.layers else case.traced.with_layers(1), case, place, folder)
    if case.layers:
        parts = parts.extended(_parts(case.traced.with_layers(2), case, place, folder), case.layers)
    update = _update(parts, case, place) / (case.devices if case.shard_state else 1) / case.accumulation
    device = parts.forward + parts.backward + update + parts.overhead
    exposed = _exposed(parts, case, place) if case.devices > 1 else 0.0
    if place.chip.kind == "gpu":  # all wait for the slowest
        exposed += device * (slowest_of(case.devices) - 1)
    return Predicted(device + exposed, exposed, parts.flops, parts.parameters)


def _update(parts: Parts, case: Case, place: Cluster) -> float:
    """Seconds of the optimizer: one kernel a variable, or what a library without a compiler launches."""
    if case.update is None:
        return parts.update
    moved = 4 * parts.parameters * case.update.passes / _bandwidth(case, place)
    kernels = parts.variables * case.update.kernels
    if case.update.waits:
        return max(moved, kernels * OPERATION_SECONDS)
    return moved + kernels * place.chip.kernel_launch_seconds  # Python is ahead of the device


def _exposed(parts: Parts, case: Case, place: Cluster) -> float:
    """Seconds of collectives beyond what they hide behind, and what they slow down meanwhile.

    Weights of a sharded state are gathered before each pass, and gradients scattered; the next layer's while this one's
    is at work. Gradients of copies are reduced once an update, in buckets, while the backward pass runs: the last
    bucket is full when that ends, and all of them where a program hands over everything at its end. Buckets hold whole
    gradients, so that the last one holds that of the table of words. Gradients are copied into buckets and out of them.
    """
    gathered, reduced = round(parts.parameters * case.gather_bytes), round(parts.parameters * case.reduce_bytes)
    count, copies, last = case.devices, 0.0, 0.0
    if case.shard_state:
        gather = all_gather(gathered, place, count).seconds
        scatter = reduce_scatter(reduced, place, count).seconds
        forward, backward = gather, gather + scatter
    else:
        forward, backward = 0.0, all_reduce(reduced, place, count).seconds / case.accumulation
        last_bytes = max(BUCKET_BYTES, parts.table * case.reduce_bytes)
        last = backward * min(1.0, last_bytes / reduced) if case.overlaps else backward
        copies = _COPIES * reduced / _bandwidth(case, place) / case.accumulation
    hidden = min(forward, parts.forward) + min(backward - last, parts.backward)
    waits = max(0.0, forward - parts.forward) + max(last, backward - parts.backward)
    return waits + copies + (CONTENTION * hidden if place.chip.kind == "gpu" else 0.0)


def _bandwidth(case: Case, place: Cluster) -> float:
    rate = place.chip.memory_bytes_per_second
    return rate * chips.efficiency(case.chip, place).bandwidth


@lru_cache(maxsize=64)
def _prepared(what: Traced, folder: Path, stack: str, biases_apart: bool) -> Workload:
    found = workload(what, folder)
    if stack == "operations":
        return library_kernels(found, _has_kernel_in_tensorflow)
    return library_kernels(found, biases_apart=biases_apart) if stack == "layers" else found


def _has_kernel_in_tensorflow(layer: str, phase: Phase) -> bool:
    """TensorFlow 2 has kernels for whole layers, too: Keras's `LayerNormalization` calls `fused_batch_norm` (its
    `_fused_can_be_used`), and softmax is one forward (`nn_grad.py` has its gradient in parts)."""
    name = layer.rpartition("/")[2]
    return "layer_normalization" in name or (name.startswith("softmax") and phase is Phase.FORWARD)


@lru_cache(maxsize=4096)
def _cached(what: Traced, folder: Path, stack: str, chip: str, batch: int, attention: str, *flags: bool) -> Parts:
    nchw, exact, of_2020, biases_apart = flags
    place = chips.machine(chip, 1, 1) if not chip.startswith("tpu") else chips.machine(chip, 4, 1)
    model = _prepared(what, folder, stack, biases_apart)
    remat = RematMode.FULL if model.remat == "full" else RematMode.NONE
    config = TrainConfig(Batch(batch), precision=Precision(what.precision), remat=Remat(remat))
    calculating = replace(config, backend="torch") if exact else config
    table = kernel_table(model, _target(place, stack), updates_of(config))
    efficiency = chips.efficiency(chip, place, attention=attention if attention != "chip" else "")
    if stack == "layers" and what.precision != "float32" and not nchw:
        # cuDNN of those years had `conv2d_grouped_direct_kernel` and `wgrad2d_grouped_direct_kernel` for grouped ones
        # in 16 bits with channels last, which leave the matrix units idle (profile in pytorch issue 34977).
        efficiency = replace(efficiency, grouped=False)
    compute, traffic = kernel_seconds(table, calculating, place, efficiency, fused_attention=bool(attention))
    if of_2020 and what.kind in ("encoder", "electra") and what.precision != "float32":
        traffic = np.where(table.is_gemm, traffic, traffic * _SLOWER_IN_2020[stack])
    seconds = slower_of(compute, traffic, efficiency)
    if nchw:
        seconds = seconds + _transposing(table, batch, place, efficiency)
    updating = table.is_update
    launches = float(table.runs.sum())
    return Parts(
        forward=float(seconds[~table.is_backward & ~updating].sum()),
        backward=float(seconds[table.is_backward].sum()),
        update=float(seconds[updating].sum()),
        overhead=overhead_of(model, launches, float(seconds.sum()), config, place),
        parameters=float(model.parameters),
        variables=float(sum(one.role is Role.TRAINABLE for one in model.variables)),
        table=_table_parameters(model),
        flops=model.model_flops.at(batch),
    )


def _table_parameters(model: Workload) -> float:
    """Elements of the largest variable that is looked up, as it is or converted."""
    converted = {op.writes[0]: op.reads[0] for op in model.ops if op.primitive == CONVERT}
    looked_up = {op.reads[0] for op in model.ops if op.kind is Kind.GATHER}
    tensors = {one.tensor for one in model.variables if one.role is Role.TRAINABLE}
    tables = tensors & (looked_up | {converted[read] for read in looked_up if read in converted})
    return max((model.tensors[table].elements.at(1) for table in tables), default=0.0)


def _transposing(table: KernelTable, batch: int, place: Cluster, efficiency: Efficiency) -> Floats:
    """Seconds of transpositions in 16 bits; `kernel_seconds` knows of float32.

    Kernels of Volta and Turing write channels first themselves (`volta_fp16_s884cudnn_..._nhwc2nchw`, in the same
    profile that the rate is from); those of Ampere and later are `..._nhwckrsc_nhwc` and a `nhwcToNchwKernel`.
    """
    operands, results = table.transposed_bytes(batch)
    to_last, to_first = (place.chip.memory_bytes_per_second * share for share in efficiency.transpose_shares)
    after = results / to_first if "bfloat16" in place.chip.peak_flops_per_second else 0.0
    return np.where(table.item_bytes == 2, operands / to_last + after, 0.0)


def _target(place: Cluster, stack: str) -> Target:
    """What fuses: a compiler, or, with a kernel an operation, nothing but what broadcasts into it."""
    if stack == "layers":
        return library_target(place.chip.kind)
    if stack != "operations":
        return target_of(place.chip.kind)
    return replace(target_of(place.chip.kind, jit_compile=False), fusible=frozenset({Kind.BROADCAST}))


def _parts(what: Traced, case: Case, place: Cluster, folder: Path) -> Parts:
    flags = case.nchw, case.exact_float32, case.of_2020, case.biases_apart
    return _cached(what, folder, case.stack, case.chip, case.batch, case.attention, *flags)


def predict_memory(case: Case, folder: Path) -> tuple[float, bool]:
    """(bytes at the peak, whether they fit) of a row on one device, by the memory model for Keras on JAX."""
    place = chips.machine(case.chip, 1, 1)
    config = TrainConfig(Batch(case.batch), precision=Precision(case.traced.precision))
    if not case.layers:
        cost = memory(workload(case.traced, folder), config, place)
        total, high = float(cost.total), float(cost.total_high)
    else:
        one, two = (memory(workload(case.traced.with_layers(n), folder), config, place) for n in (1, 2))
        more = case.layers - 1
        total = one.total + more * (two.total - one.total)
        high = one.total_high + more * (two.total_high - one.total_high)
    return total, bool(high <= place.chip.memory_bytes)
