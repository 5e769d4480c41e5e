"""Every kernel of a micro-step as a row of numbers, so that a price for all of them is a few array operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from cost_models.time.attention import Attention, find_attention
from cost_models.time.convolution import (
    dimensions_of,
    enlargement_of,
    is_along_a_line,
    is_transposed_kernel_gradient,
    moves_by_one,
    window_of,
)
from cost_models.workload.workload import ITEM_BYTES, POOL_SCATTER, Kind, Op, Phase, Tensor, Workload
from cost_models.xla.buffers.liveness import Updates, schedule
from cost_models.xla.fusion.fusion import Kernel
from cost_models.xla.profile import Profile, structure_batch
from cost_models.xla.tiling import Storage

Floats = npt.NDArray[np.float64]


_BATCH_LENGTH_CHANNELS = 3
_ROWS_OF_ROWS = 3  # dimensions


@dataclass(frozen=True)
class AttentionRows:
    """Which rows are attention, and which of the tensors that rows move are scores (one flag a `moved_by`).

    fusible   the library's attention without dropout: what a backend can run as one kernel
    """

    forward: npt.NDArray[np.bool_]
    backward: npt.NDArray[np.bool_]
    vector: npt.NDArray[np.bool_]
    moved_scores: npt.NDArray[np.bool_]
    causal: bool
    fusible: bool


@dataclass(frozen=True)
class KernelTable:
    """Every kernel as a row of numbers: FLOPs are fixed + batch x per_sample, in `dtypes[dtype]`.

    moved_by, moved_tensor, moved_times   that row moves that tensor's bytes so often
    slow                                  rows that some compilers run in plain loops, by the name of their rate in
                                          `Efficiency.slow_kernel_shares`
    windows                               of convolutions that move windows over images: positions of one
    minimal                               convolutions of windows of 3 x 3 that move by one: libraries have minimal
                                          filtering for them (Winograd)
    attention                             None where there is none, or where the compiler decided about it already
    """

    flops_fixed: Floats
    flops_per_sample: Floats
    moved_by: npt.NDArray[np.int64]
    moved_tensor: npt.NDArray[np.int64]
    moved_times: Floats
    stored: Storage
    runs: Floats
    gemm_fixed: Floats
    gemm_per_sample: Floats
    is_gemm: npt.NDArray[np.bool_]
    is_grouped: npt.NDArray[np.bool_]
    is_backward: npt.NDArray[np.bool_]
    dtype: npt.NDArray[np.int64]
    dtypes: tuple[str, ...]
    attention: AttentionRows | None = None
    minimal: npt.NDArray[np.bool_] | None = None
    convolutions: npt.NDArray[np.bool_] | None = None
    updates: npt.NDArray[np.bool_] | None = None
    transposes: npt.NDArray[np.bool_] | None = None
    across: npt.NDArray[np.bool_] | None = None
    lines: npt.NDArray[np.bool_] | None = None
    windows: Floats | None = None
    dimensionality: npt.NDArray[np.int64] | None = None
    enlargements: Floats | None = None
    slow: Mapping[str, npt.NDArray[np.bool_]] = field(default_factory=dict)

    @property
    def is_convolution(self) -> npt.NDArray[np.bool_]:
        """Rows that are convolutions, as far as that is known."""
        return self._flags(self.convolutions)

    @property
    def sums_batch(self) -> npt.NDArray[np.bool_]:
        """Products and convolutions that sum over the batch: gradients of weights."""
        return self.gemm_per_sample[:, 3] > 0

    @property
    def is_transpose(self) -> npt.NDArray[np.bool_]:
        """Rows that write in another order than they read, as far as that is known."""
        return self._flags(self.transposes)

    @property
    def is_across(self) -> npt.NDArray[np.bool_]:
        """Transposes that read no whole rows one after the other, as far as that is known."""
        return self._flags(self.across)

    @property
    def is_line(self) -> npt.NDArray[np.bool_]:
        """Convolutions along one dimension, as far as that is known."""
        return self._flags(self.lines)

    @property
    def window(self) -> Floats:
        """Positions of the windows that convolutions move over images; 0 for other rows, or where that is not known."""
        return np.zeros(len(self.runs)) if self.windows is None else self.windows

    @property
    def dimensions(self) -> npt.NDArray[np.int64]:
        """Along how many dimensions convolutions move; 0 for other rows, or where that is not known."""
        return np.zeros(len(self.runs), np.int64) if self.dimensionality is None else self.dimensionality

    @property
    def enlarged(self) -> Floats:
        """How many times as many positions convolutions make as they read, 1 where that is not known."""
        return np.ones(len(self.runs)) if self.enlargements is None else self.enlargements

    @property
    def is_minimal(self) -> npt.NDArray[np.bool_]:
        """Rows that minimal filtering can work out, as far as that is known."""
        return self._flags(self.minimal)

    @property
    def is_update(self) -> npt.NDArray[np.bool_]:
        """Rows that belong to the optimizer and the metrics, as far as that is known."""
        return self._flags(self.updates)

    @cached_property
    def products(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """(the first row of each product that differs from the others, which of these each product's row is like).

        Layers repeat, and their products have one shape at every batch.
        """
        rows = np.flatnonzero(self.is_gemm)
        marks = self.dtype, self.is_convolution, self.is_minimal
        kinds = np.column_stack([self.gemm_fixed, self.gemm_per_sample, *marks])[rows]
        _, first, like = np.unique(kinds, axis=0, return_index=True, return_inverse=True)
        return rows[first], np.asarray(like, np.int64).reshape(-1)

    def _flags(self, known: npt.NDArray[np.bool_] | None) -> npt.NDArray[np.bool_]:
        return np.zeros(len(self.runs), np.bool_) if known is None else known

    @property
    def item_bytes(self) -> Floats:
        """Bytes of an element of what each row calculates with."""
        return np.array([ITEM_BYTES[name] for name in self.dtypes])[self.dtype]

    def gemm_at(self, batch: int) -> Floats:
        """(groups, m, n, k) of each row's product at a local batch; zeros where it is none."""
        return self.gemm_fixed + batch * self.gemm_per_sample

    def bytes_at(self, batch: int, *, fused_attention: bool = False) -> Floats:
        """Bytes read and written by each kernel at a local batch, padding included."""
        sizes = self.stored.at(batch)[self.moved_tensor] * self.moved_times
        if fused_attention and self.attention is not None:
            sizes = np.where(self.attention.moved_scores, 0.0, sizes)
        return np.asarray(np.bincount(self.moved_by, sizes, len(self.runs)), np.float64)

    def transposed_bytes(self, batch: int) -> tuple[Floats, Floats]:
        """Bytes read and written, of each row, to bring operands and results of convolutions into the other layout.

        Matrix units take convolutions with channels last. Where images have them first a library's kernels transpose
        what is read, and what is written unless the kernel writes it so. Depthwise ones do without matrix units.
        """
        gemm = self.gemm_at(batch)
        transposed = self.is_convolution & ~(self.is_grouped & (gemm[:, 2] <= 1))
        results = gemm[:, 0] * gemm[:, 1] * gemm[:, 2] * self.item_bytes
        operands = np.maximum(self.bytes_at(batch) - results, 0.0)
        of_operands, of_results = (np.where(transposed, 2 * moved * self.runs, 0.0) for moved in (operands, results))
        return np.asarray(of_operands, np.float64), np.asarray(of_results, np.float64)


def kernel_table(workload: Workload, profile: Profile, updates: Updates, batch: int | None = None) -> KernelTable:
    """The kernels of a micro-step as rows, bodies of loops with how often they run.

    batch  at which they are found, where a library takes what is large (XLA:CPU); None is the batch of the trace
    """
    if batch is not None:
        batch = structure_batch(workload, profile, batch) if "ynnpack" in profile else None
    return _kernel_table(workload, profile, updates, batch)


@lru_cache(maxsize=256)
def _kernel_table(workload: Workload, profile: Profile, updates: Updates, batch: int | None) -> KernelTable:
    rows: list[tuple[Kernel, float]] = []
    # As written, sums of one layer stand together; orders that save memory do not keep them so.
    plan = schedule(workload, profile, Updates.TOGETHER if "memory-scheduler" in profile else updates, batch)
    _flatten(plan.kernels, 1.0, rows)
    shared = _shared_reads([kernel for kernel, _ in rows])
    moved = [
        (row, tensor, times)
        for row, (kernel, _) in enumerate(rows)
        for tensor, times in _traffic(plan.tensors, kernel)
        if (row, tensor) not in shared
    ]
    gemm = np.zeros((len(rows), 4)), np.zeros((len(rows), 4))
    for row, (kernel, _) in enumerate(rows):
        for column, size in enumerate(kernel.op.gemm):
            gemm[0][row, column], gemm[1][row, column] = size.fixed, size.per_sample
    attention = find_attention([kernel for kernel, _ in rows], plan.tensors, workload.ops)
    arithmetic = [_rate_dtype(plan.tensors, kernel) for kernel, _ in rows]
    dtypes = tuple(sorted(set(arithmetic)))
    return KernelTable(
        flops_fixed=np.array([kernel.flops.fixed for kernel, _ in rows], np.float64),
        flops_per_sample=np.array([kernel.flops.per_sample for kernel, _ in rows], np.float64),
        moved_by=np.array([row for row, _, _ in moved], np.int64),
        moved_tensor=np.array([tensor for _, tensor, _ in moved], np.int64),
        moved_times=np.array([times for _, _, times in moved], np.float64),
        stored=plan.stored,
        runs=np.array([runs for _, runs in rows], np.float64),
        gemm_fixed=gemm[0],
        gemm_per_sample=gemm[1],
        is_gemm=np.array([bool(kernel.op.gemm) for kernel, _ in rows], np.bool_),
        is_grouped=np.array([kernel.op.kind is Kind.CONV and _groups(kernel) > 1 for kernel, _ in rows], np.bool_),
        is_backward=np.array([kernel.op.phase is Phase.BACKWARD for kernel, _ in rows], np.bool_),
        dtype=np.array([dtypes.index(name) for name in arithmetic], np.int64),
        dtypes=dtypes,
        attention=_attention_rows(attention, rows, moved),
        minimal=np.array([moves_by_one(plan.tensors, kernel.op) for kernel, _ in rows], np.bool_),
        convolutions=np.array([kernel.op.kind is Kind.CONV for kernel, _ in rows], np.bool_),
        updates=np.array([kernel.op.phase is Phase.UPDATE for kernel, _ in rows], np.bool_),
        transposes=np.array([kernel.op.primitive == "transpose" for kernel, _ in rows], np.bool_),
        across=np.array([_reads_across(plan.tensors, kernel.op) for kernel, _ in rows], np.bool_),
        lines=np.array([is_along_a_line(plan.tensors, kernel.op) for kernel, _ in rows], np.bool_),
        dimensionality=np.array([dimensions_of(plan.tensors, kernel.op) for kernel, _ in rows], np.int64),
        enlargements=np.array([enlargement_of(plan.tensors, kernel.op) for kernel, _ in rows], np.float64),
        windows=np.array([window_of(plan.tensors, kernel.op) for kernel, _ in rows], np.float64),
        slow={
            "transposed_kernel_gradient": np.array(
                [is_transposed_kernel_gradient(plan.tensors, kernel.op) for kernel, _ in rows], np.bool_
            ),
            "looped_gradient": np.array([_is_looped_gradient(kernel, runs) for kernel, runs in rows], np.bool_),
            "random": np.array([kernel.op.kind is Kind.RANDOM for kernel, _ in rows], np.bool_),
            "pool_gradient": np.array([_is_pool_gradient(kernel, plan.tensors) == 2 for kernel, _ in rows], np.bool_),
            "pool_gradient_1d": np.array(
                [_is_pool_gradient(kernel, plan.tensors) == 1 for kernel, _ in rows], np.bool_
            ),
        },
    )


def _is_looped_gradient(kernel: Kernel, runs: float) -> bool:
    """Whether this is a convolution of the backward pass in a loop: its operands lie as no library takes them."""
    return kernel.op.kind is Kind.CONV and kernel.op.phase is Phase.BACKWARD and runs > 1


def _reads_across(tensors: Sequence[Tensor], op: Op) -> bool:
    """Whether this is a transpose, but for one that exchanges the first two of three dimensions: that copies rows."""
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
        fusible=found.of_library and not found.dropout,
    )


def _shared_reads(kernels: Sequence[Kernel]) -> set[tuple[int, int]]:
    """(row, tensor) of reads that cost nothing: independent reductions of a layer over one tensor are one kernel.

    XLA:GPU fuses siblings that share an operand (its multi-output fusion), and libraries' normalisations sum once.
    """
    shared: set[tuple[int, int]] = set()
    seen: dict[tuple[str, Phase, int, int], set[int]] = {}
    for row, kernel in enumerate(kernels):
        if kernel.op.kind is not Kind.REDUCE:
            continue
        for read in kernel.reads:
            made = seen.setdefault((kernel.op.layer, kernel.op.phase, kernel.op.region, read), set())
            if made and not made & set(kernel.reads):
                shared.add((row, read))
            made.update(kernel.writes)
    return shared


def _is_pool_gradient(kernel: Kernel, tensors: Sequence[Tensor]) -> int:
    """1 for the gradient of pooling along one dimension, 2 along more, 0 for another kernel."""
    if kernel.op.kind is not Kind.POOL_GRADIENT and kernel.op.primitive != POOL_SCATTER:
        return 0
    return 1 if len(tensors[kernel.writes[0]].shape) <= _BATCH_LENGTH_CHANNELS else 2


def _groups(kernel: Kernel) -> float:
    return kernel.op.gemm[0].fixed if kernel.op.gemm else 1.0


def _flatten(kernels: Sequence[Kernel], runs: float, rows: list[tuple[Kernel, float]]) -> None:
    for kernel in kernels:
        if kernel.body:
            _flatten(kernel.body, runs * kernel.op.repeat, rows)
        else:
            rows.append((kernel, runs))


def _traffic(tensors: Sequence[Tensor], kernel: Kernel) -> list[tuple[int, float]]:
    """(tensor, how often as many bytes as it has are moved)."""
    picked = dict(kernel.picked)
    reads = [picked.get(read, read) for read in kernel.reads]
    if kernel.op.kind is Kind.SCATTER:
        # In place: what is scattered is read, and as much of the target is read and written back.
        written = [tensors[write].shape for write in kernel.writes]
        scattered = [(read, 3.0) for read in reads if tensors[read].shape not in written]
        return scattered or [(read, 2.0) for read in reads]
    return [(end, 1.0) for end in (*reads, *kernel.writes)]


def _rate_dtype(tensors: Sequence[Tensor], kernel: Kernel) -> str:
    dtype = tensors[kernel.op.reads[0]].dtype if kernel.op.gemm and kernel.op.reads else "float32"
    return dtype if "float" in dtype else "float32"
