"""Estimates the time of a compiled program from its HLO: a roofline per kernel, and a timeline of collectives.

Rates, efficiencies, launches and the host's work are those of `step_time`. The compiled text decides the rest: kernels,
the bytes that each moves, the collectives, and the kernels behind which an asynchronous collective may hide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from cost_models.config import TrainConfig
from cost_models.errors import WorkloadError
from cost_models.execution import check_origin
from cost_models.hardware.cluster import Cluster
from cost_models.parallel.collectives import (
    Collective,
    all_gather,
    all_reduce,
    all_to_all,
    collective_permute,
    reduce_scatter,
)
from cost_models.time.convolution import ConvolutionTable
from cost_models.time.cost import TimeCost, TimeParts
from cost_models.time.kernels import KernelTable, TrafficTable, fused_attention_rows, gemm_table, lstm_rows
from cost_models.time.roofline import kernel_seconds, peak_of
from cost_models.time.software import overhead_seconds
from cost_models.time.step import assemble
from cost_models.workload.compiled_op import Compiled, CompiledCollective
from cost_models.workload.workload import Kind, Op, Phase, Workload
from cost_models.xla.tiling import Storage

_PRICES: Mapping[str, Callable[..., Collective]] = {
    "all_reduce": all_reduce,
    "all_gather": all_gather,
    "reduce_scatter": reduce_scatter,
    "all_to_all": all_to_all,
    "collective_permute": collective_permute,
}


def compiled_time(
    workload: Workload,
    config: TrainConfig,
    cluster: Cluster,
    *,
    model_flops: float | None = None,
    overlap: float | None = None,
) -> TimeCost:
    """Return the seconds of one micro-step and one update of a workload that was read from compiled text.

    model_flops  the model's own FLOPs of a micro-step on one device, for `mfu`: the text also holds recomputation
                 (`Workload.model_flops` of the trace); None leaves `mfu` None
    overlap      None takes from the schedule what runs between a collective's start and its end; a share from 0 to 1
                 hides all of them behind that share of the backward pass, as `step_time` does

    Gradient accumulation is in the text already. WorkloadError when the workload says nothing about this
    configuration; ConfigError for a group of devices that the cluster cannot form; HardwareError for a rate or a link
    that nobody published.
    """
    check_origin(workload, config)
    if any(op.compiled is None for op, _ in _rows(workload)):
        raise WorkloadError("this workload was traced, not read from compiled text; price it with step_time")
    parts = _parts(workload, config, cluster, overlap)
    return assemble(parts, config, model_flops, peak_of(workload, config, cluster))


def _parts(workload: Workload, config: TrainConfig, cluster: Cluster, overlap: float | None) -> TimeParts:
    """The parts of a micro-step."""
    rows, table = _rows(workload), _table(workload)
    compute, traffic = kernel_seconds(table, config, cluster)
    slower = np.maximum(compute, traffic)
    runs = np.maximum(table.runs, 1.0)
    timeline = _Timeline(zip((compute / runs).tolist(), (traffic / runs).tolist(), strict=True), cluster)
    timeline.run(workload.ops, 1.0)
    communication = timeline.waits
    if overlap is not None:
        communication = max(0.0, timeline.sending - overlap * float(slower[table.is_backward].sum()))
    of_compute = float(slower[compute >= traffic].sum())
    of_memory = float(slower.sum()) - of_compute - timeline.hidden_copies
    launches = sum(times * op.compiled.launches for op, times in rows if op.compiled is not None)
    parts = TimeParts(of_compute, of_memory, communication)
    overhead = overhead_seconds(
        launches, parts.seconds, config, cluster, variables=len(workload.variables), dispatches=workload.dispatches
    )
    return parts + TimeParts(overhead=overhead)


@lru_cache(maxsize=16)
def _rows(workload: Workload) -> tuple[tuple[Op, float], ...]:
    """Every kernel and collective with how often it runs."""
    return tuple(_flatten(workload.ops, 1.0))


def _has_body(op: Op) -> bool:
    return op.kind in (Kind.LOOP, Kind.BRANCH)


def _flatten(ops: Sequence[Op], runs: float) -> Iterator[tuple[Op, float]]:
    for op in ops:
        if _has_body(op):
            yield from _flatten(op.body, runs * op.repeat)
        else:
            yield op, runs


@lru_cache(maxsize=16)
def _table(workload: Workload) -> KernelTable:
    """The rows as the roofline's table: the bytes that a row moves are a tensor of its own."""
    rows = _rows(workload)
    count = len(rows)
    moved = [op.compiled.moved_bytes if op.compiled else 0 for op, _ in rows]
    ops = [op for op, _ in rows]
    arithmetic = [_arithmetic_dtype(op) for op in ops]
    dtypes = tuple(sorted(set(arithmetic)))
    no = np.zeros(count, np.bool_)
    return KernelTable(
        flops_fixed=np.array([op.flops.fixed for op in ops], np.float64),
        flops_per_sample=np.zeros(count),
        runs=np.array([runs for _, runs in rows], np.float64),
        is_backward=np.array([op.phase is Phase.BACKWARD for op in ops], np.bool_),
        is_update=no,
        dtype=np.array([dtypes.index(name) for name in arithmetic], np.int64),
        dtypes=dtypes,
        traffic=TrafficTable(
            moved_by=np.arange(count),
            moved_tensor=np.arange(count),
            moved_times=np.ones(count),
            stored=Storage.exact(np.array(moved, np.float64)),
            is_strided=no,
        ),
        gemm=gemm_table(ops),
        convolution=ConvolutionTable.unknown(count),
        fused=fused_attention_rows(ops),
        lstm=lstm_rows(workload.tensors, ops),
    )


def _arithmetic_dtype(op: Op) -> str:
    """The dtype that a product multiplies; other arithmetic runs in float32."""
    dtype = op.compiled.dtype if op.compiled and op.gemm else "float32"
    return dtype if "float" in dtype else "float32"


def _seconds(exchange: CompiledCollective, cluster: Cluster) -> float:
    price = _PRICES[exchange.kind]
    return price(exchange.payload_bytes, cluster, exchange.devices, stride=exchange.stride).seconds


@dataclass
class _Timeline:
    """The operations in order, with what runs beside them. Seconds of one micro-step.

    One collective travels at a time; one that is awaited at once is waited for in full, one that is awaited later as
    far as the kernels until then take less time than it does. Asynchronous copies use the memory when the kernels
    leave it idle, the oldest first.

    kernels        (seconds of arithmetic, seconds of traffic) of one run, in the order of `_flatten`
    waits          seconds that kernels wait for collectives
    sending        seconds of all collectives
    hidden_copies  seconds of copies that run behind arithmetic
    """

    kernels: Iterator[tuple[float, float]]
    cluster: Cluster
    waits: float = 0.0
    sending: float = 0.0
    hidden_copies: float = 0.0

    def run(self, ops: Sequence[Op], times: float) -> float:
        """Run one body `times` times over; returns the seconds of one run."""
        now = link_free = 0.0
        awaited: dict[int, float] = {}
        copies: list[_Copy] = []
        for place, op in enumerate(ops):
            if _has_body(op):
                now += op.repeat * self.run(op.body, times * op.repeat)
                continue
            arithmetic, traffic = next(self.kernels)
            compiled = op.compiled or Compiled(0)
            if compiled.exchange is not None:
                seconds = _seconds(compiled.exchange, self.cluster)
                self.sending += seconds * times
                link_free = max(now, link_free) + seconds
                awaited[place + compiled.covers] = link_free
            elif compiled.covers:
                copies.append(_Copy(place + compiled.covers, max(arithmetic, traffic)))
            else:
                self.hidden_copies += times * _fill(copies, max(0.0, arithmetic - traffic))
                now += max(arithmetic, traffic)
            now += sum(copy.seconds for copy in copies if copy.end <= place)
            copies = [copy for copy in copies if copy.end > place]
            wait = max(0.0, awaited.pop(place, 0.0) - now)
            self.waits += wait * times
            now += wait
        return now


@dataclass
class _Copy:
    """An asynchronous copy: where it is awaited, and what is left of it."""

    end: int
    seconds: float


def _fill(copies: Sequence[_Copy], idle: float) -> float:
    """Let copies run while the memory is idle; returns for how long they did."""
    left = idle
    for copy in copies:
        used = min(copy.seconds, left)
        copy.seconds -= used
        left -= used
    return idle - left
