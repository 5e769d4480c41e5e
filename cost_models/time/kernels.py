"""Tabulates every kernel of a micro-step as a row of numbers, so that array operations price all kernels at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from cost_models.time.attention import Attention, find_attention
from cost_models.time.convolution import ConvolutionTable, convolution_table, is_transposed_kernel_gradient
from cost_models.workload.lstm import JAX_OVERSIZE, KERNELS_A_STEP, buffers_of
from cost_models.workload.workload import (
    ATTENTION_BACKWARD,
    ATTENTION_FORWARD,
    CAUSAL,
    ITEM_BYTES,
    POOL_SCATTER,
    Kind,
    Op,
    Phase,
    Tensor,
    Workload,
)
from cost_models.xla.buffers.liveness import schedule
from cost_models.xla.buffers.schedule import Updates
from cost_models.xla.fusion.kernel import Kernel
from cost_models.xla.profile import Profile, structure_batch
from cost_models.xla.rules import rule
from cost_models.xla.tiling import Storage

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


_BATCH_LENGTH_CHANNELS = 3  # dimensions
_LENGTH = 1  # dimension
_ROWS_OF_ROWS = 3  # dimensions


@dataclass(frozen=True)
class AttentionRows:
    """The rows of attention in several kernels, and a flag for each entry of the traffic table that moves a score."""

    forward: Bools
    backward: Bools
    vector: Bools
    moved_scores: Bools
    causal: bool


@dataclass(frozen=True)
class FusedAttentionRows:
    """The rows that are attention in one kernel, as the step was traced; `causal` ones skip masked pairs."""

    forward: Bools
    backward: Bools
    causal: Bools

    @property
    def any(self) -> bool:
        """Whether there are such rows."""
        return bool(self.forward.any() or self.backward.any())


@dataclass(frozen=True)
class TrafficTable:
    """Memory traffic of kernels: an entry for each tensor that a row reads or writes.

    moved_by, moved_tensor, moved_times   that row moves that tensor's bytes so often
    stored                                bytes of every tensor
    is_strided                            (rows,) transposes that do not read whole rows one after the other
    """

    moved_by: Ints
    moved_tensor: Ints
    moved_times: Floats
    stored: Storage
    is_strided: Bools

    def bytes_at(self, batch: int, *, without: Bools | None = None) -> Floats:
        """Return the bytes that each row reads and writes at a local batch, padding included.

        without  entries that are not moved
        """
        sizes = self.stored.at(batch)[self.moved_tensor] * self.moved_times
        if without is not None:
            sizes = np.where(without, 0.0, sizes)
        return np.asarray(np.bincount(self.moved_by, sizes, len(self.is_strided)), np.float64)


@dataclass(frozen=True)
class GemmTable:
    """Products of kernels: (groups, m, n, k) of each row is fixed + batch x per_sample, zeros where it is none.

    is_grouped  convolutions with several groups
    """

    fixed: Floats
    per_sample: Floats
    is_gemm: Bools
    is_grouped: Bools

    def at(self, batch: int) -> Floats:
        """Return (groups, m, n, k) of each row at a local batch."""
        return self.fixed + batch * self.per_sample

    @property
    def sums_batch(self) -> Bools:
        """Products and convolutions that sum over the batch: gradients of weights."""
        return self.per_sample[:, 3] > 0


@dataclass(frozen=True)
class LstmRows:
    """The steps of the recurrence of each row that is an LSTM in one call; 0 for other rows."""

    steps: Floats

    @property
    def rows(self) -> Bools:
        """Which rows are an LSTM."""
        return self.steps > 0

    def launches(self, groups: Floats) -> Floats:
        """Return the kernels that one run of each row launches. `groups`: the layers and directions of an LSTM."""
        return np.where(self.rows, KERNELS_A_STEP * self.steps * groups, 1.0)


@dataclass(frozen=True)
class KernelTable:
    """Every kernel as a row of numbers: FLOPs are fixed + batch x per_sample, in `dtypes[dtype]`.

    runs        how often a row runs in a micro-step
    slow        rows that some compilers run in plain loops, by the name of their rate in
                `Efficiency.slow_kernel_shares`
    attention   None where there is none, or where the compiler decided about it already
    fused       rows of attention in one kernel
    lstm        rows that are an LSTM in one call of a library
    """

    flops_fixed: Floats
    flops_per_sample: Floats
    runs: Floats
    is_backward: Bools
    is_update: Bools
    dtype: Ints
    dtypes: tuple[str, ...]
    traffic: TrafficTable
    gemm: GemmTable
    convolution: ConvolutionTable
    fused: FusedAttentionRows
    lstm: LstmRows
    attention: AttentionRows | None = None
    slow: Mapping[str, Bools] = field(default_factory=dict)

    @cached_property
    def distinct_gemms(self) -> tuple[Ints, Ints]:
        """(first row of each distinct GEMM, the number of the distinct GEMM of each row that is a GEMM).

        Layers repeat, and their products have one shape at every batch.
        """
        rows = np.flatnonzero(self.gemm.is_gemm)
        marks = self.dtype, self.convolution.is_convolution, self.convolution.is_minimal
        kinds = np.column_stack([self.gemm.fixed, self.gemm.per_sample, *marks])[rows]
        _, first, like = np.unique(kinds, axis=0, return_index=True, return_inverse=True)
        return rows[first], np.asarray(like, np.int64).reshape(-1)

    @property
    def item_bytes(self) -> Floats:
        """Bytes of an element in the dtype of each row's arithmetic."""
        return np.array([ITEM_BYTES[name] for name in self.dtypes])[self.dtype]

    @property
    def launches(self) -> float:
        """The kernels that a micro-step launches."""
        return float((self.runs * self.lstm.launches(self.gemm.fixed[:, 0])).sum())

    def flops_at(self, batch: int) -> Floats:
        """Return the FLOPs of each row at a local batch, however often it runs."""
        return (self.flops_fixed + batch * self.flops_per_sample) * self.runs

    def bytes_at(self, batch: int, *, fused_attention: bool = False) -> Floats:
        """Return the bytes that one run of each row reads and writes at a local batch, padding included."""
        scores = self.attention.moved_scores if fused_attention and self.attention is not None else None
        return self.traffic.bytes_at(batch, without=scores)

    def transposed_bytes(self, batch: int) -> tuple[Floats, Floats]:
        """Return the bytes of each row to bring (operands, results) of convolutions into the other layout.

        Matrix units take convolutions with channels last. Where images have them first a library's kernels transpose
        what is read, and what is written unless the kernel writes it so. Depthwise ones do without matrix units.
        """
        gemm = self.gemm.at(batch)
        transposed = self.convolution.is_convolution & ~(self.gemm.is_grouped & (gemm[:, 2] <= 1))
        results = gemm[:, 0] * gemm[:, 1] * gemm[:, 2] * self.item_bytes
        operands = np.maximum(self.bytes_at(batch) - results, 0.0)
        of_operands, of_results = (np.where(transposed, 2 * moved * self.runs, 0.0) for moved in (operands, results))
        return np.asarray(of_operands, np.float64), np.asarray(of_results, np.float64)


def kernel_table(
    workload: Workload,
    profile: Profile,
    updates: Updates,
    batch: int | None = None,
) -> KernelTable:
    """Return the kernels of a micro-step as rows; kernels in bodies of loops have the number of their runs.

    batch  local batch that decides the kernels on XLA:CPU, whose library takes large operations; None: the trace's
    """
    if batch is not None:
        batch = structure_batch(workload, profile, batch) if "ynnpack" in profile else None
    return _kernel_table(workload, profile, updates, batch)


@lru_cache(maxsize=256)
def _kernel_table(workload: Workload, profile: Profile, updates: Updates, batch: int | None) -> KernelTable:
    rows: list[tuple[Kernel, float]] = []
    # Orders that save memory have the same kernels: one table serves them all.
    plan = schedule(workload, profile, Updates.TOGETHER if "memory-scheduler" in profile else updates, batch)
    _flatten(plan.kernels, 1.0, rows)
    moved = [
        (row, tensor, times) for row, (kernel, _) in enumerate(rows) for tensor, times in _traffic(plan.tensors, kernel)
    ]
    kernels = [kernel for kernel, _ in rows]
    ops = [kernel.op for kernel in kernels]
    attention = find_attention(kernels, plan.tensors, workload.ops)
    arithmetic = [_rate_dtype(plan.tensors, kernel) for kernel in kernels]
    dtypes = tuple(sorted(set(arithmetic)))
    return KernelTable(
        flops_fixed=np.array([kernel.flops.fixed for kernel in kernels], np.float64),
        flops_per_sample=np.array([kernel.flops.per_sample for kernel in kernels], np.float64),
        runs=np.array([runs for _, runs in rows], np.float64),
        is_backward=_flags(op.phase is Phase.BACKWARD for op in ops),
        is_update=_flags(op.phase is Phase.UPDATE for op in ops),
        dtype=np.array([dtypes.index(name) for name in arithmetic], np.int64),
        dtypes=dtypes,
        traffic=TrafficTable(
            moved_by=np.array([row for row, _, _ in moved], np.int64),
            moved_tensor=np.array([tensor for _, tensor, _ in moved], np.int64),
            moved_times=np.array([times for _, _, times in moved], np.float64),
            stored=plan.stored,
            is_strided=_flags(_reads_across(plan.tensors, op) for op in ops),
        ),
        gemm=gemm_table(ops),
        convolution=convolution_table(plan.tensors, ops),
        fused=fused_attention_rows(ops),
        lstm=lstm_rows(plan.tensors, ops),
        attention=_attention_rows(attention, rows, moved),
        slow=_slow_rows(plan.tensors, rows),
    )


def lstm_rows(tensors: Sequence[Tensor], ops: Sequence[Op]) -> LstmRows:
    """Return the LSTMs among operations; both passes write their first output for each sample and step."""
    steps = [tensors[op.writes[0]].shape[_LENGTH].fixed if op.kind is Kind.LSTM else 0.0 for op in ops]
    return LstmRows(np.array(steps, np.float64))


def moved_share(op: Op, tensor: int) -> float:
    """Return the share of a tensor's bytes that an operation moves: JAX allocates buffers larger than cuDNN asks."""
    return 1 / JAX_OVERSIZE if op.kind is Kind.LSTM and tensor in buffers_of(op) else 1.0


def gemm_table(ops: Sequence[Op]) -> GemmTable:
    """Return the products of these operations, a row each."""
    fixed, per_sample = np.zeros((len(ops), 4)), np.zeros((len(ops), 4))
    for row, op in enumerate(ops):
        for column, size in enumerate(op.gemm):
            fixed[row, column], per_sample[row, column] = size.fixed, size.per_sample
    grouped = (op.kind is Kind.CONV and bool(op.gemm) and op.gemm[0].fixed > 1 for op in ops)
    is_gemm = (bool(op.gemm) and op.kind is not Kind.ATTENTION for op in ops)
    return GemmTable(fixed, per_sample, _flags(is_gemm), _flags(grouped))


def fused_attention_rows(ops: Sequence[Op]) -> FusedAttentionRows:
    """Return the operations that are attention in one kernel."""
    found = [op.primitive if op.kind is Kind.ATTENTION else "" for op in ops]
    forward = _flags(name.startswith(ATTENTION_FORWARD) for name in found)
    backward = _flags(name.startswith(ATTENTION_BACKWARD) for name in found)
    return FusedAttentionRows(forward, backward, _flags(name.endswith(CAUSAL) for name in found))


def _flags(values: Iterable[bool]) -> Bools:
    return np.array(list(values), np.bool_)


def _slow_rows(tensors: Sequence[Tensor], rows: Sequence[tuple[Kernel, float]]) -> dict[str, Bools]:
    """Rows that some compilers run in plain loops, by the name of their rate."""
    return {
        "transposed_kernel_gradient": _flags(is_transposed_kernel_gradient(tensors, one.op) for one, _ in rows),
        "pool_gradient": _flags(is_pool_gradient(kernel, tensors) for kernel, _ in rows),
        "looped_gradient": _flags(is_looped_gradient(kernel, runs) for kernel, runs in rows),
    }


@rule("cpu-looped-gradient", "kernels timed one by one on x86-64: ConvLSTM")
def is_looped_gradient(kernel: Kernel, runs: float) -> bool:
    """Return whether this is a convolution of the backward pass in a loop, in a memory order that no library takes."""
    return kernel.op.kind is Kind.CONV and kernel.op.phase is Phase.BACKWARD and runs > 1


def _reads_across(tensors: Sequence[Tensor], op: Op) -> bool:
    """Whether this transposes, except for exchanging the first two of three dimensions, which copies whole rows."""
    if op.primitive != "transpose":
        return False
    read, made = tensors[op.reads[0]].shape, tensors[op.writes[0]].shape
    return not (len(read) == _ROWS_OF_ROWS and read != made and read[-1] == made[-1])


def _attention_rows(
    found: Attention, rows: Sequence[tuple[Kernel, float]], moved: Sequence[tuple[int, int, float]]
) -> AttentionRows | None:
    if not found.scores:
        return None
    products = np.array([row in found.products for row in range(len(rows))], np.bool_)
    backward = np.array([kernel.op.phase is Phase.BACKWARD for kernel, _ in rows], np.bool_)
    vector = np.array([row in found.vector for row in range(len(rows))], np.bool_)
    return AttentionRows(
        forward=products & ~backward,
        backward=products & backward,
        vector=vector,
        moved_scores=np.array([vector[row] or tensor in found.scores for row, tensor, _ in moved], np.bool_),
        causal=found.causal,
    )


@rule("cpu-pool-gradient", "kernels timed one by one on x86-64: max-pooling")
def is_pool_gradient(kernel: Kernel, tensors: Sequence[Tensor]) -> bool:
    """Return whether this is the gradient of pooling along more than one dimension."""
    is_pool = kernel.op.kind is Kind.POOL_GRADIENT or kernel.op.primitive == POOL_SCATTER
    return is_pool and len(tensors[kernel.writes[0]].shape) > _BATCH_LENGTH_CHANNELS


def _flatten(kernels: Sequence[Kernel], runs: float, rows: list[tuple[Kernel, float]]) -> None:
    for kernel in kernels:
        if kernel.body:
            _flatten(kernel.body, runs * kernel.op.repeat, rows)
        else:
            rows.append((kernel, runs))


def _traffic(tensors: Sequence[Tensor], kernel: Kernel) -> list[tuple[int, float]]:
    """(tensor, how many times its bytes are moved) of a kernel."""
    picked = dict(kernel.picked)
    reads = [picked.get(read, read) for read in kernel.reads]
    if kernel.op.kind is Kind.SCATTER:
        # In place: what is scattered is read, and as much of the target is read and written back.
        written = [tensors[write].shape for write in kernel.writes]
        scattered = [(read, 3.0) for read in reads if tensors[read].shape not in written]
        return scattered or [(read, 2.0) for read in reads]
    return [(end, moved_share(kernel.op, end)) for end in (*reads, *kernel.writes)]


def _rate_dtype(tensors: Sequence[Tensor], kernel: Kernel) -> str:
    reads = kernel.op.reads if kernel.op.gemm else ()
    if kernel.op.kind is not Kind.ATTENTION:
        reads = reads[:1]
    return next((tensors[read].dtype for read in reads if "float" in tensors[read].dtype), "float32")
