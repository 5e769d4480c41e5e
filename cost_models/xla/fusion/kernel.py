"""`Kernel`: one launch and the operations fused into it; also merges the kernels that update one variable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cost_models.workload.affine import Affine
from cost_models.workload.workload import Kind, Op, Phase, Workload


@dataclass(frozen=True, slots=True)
class Kernel:
    """One launch. `reads` and `writes` are tensors that exist in memory; loops carry the kernels of one iteration.

    flops     of everything fused in, recomputation included
    picked    (tensor read, tensor made of it): no more of the first is read than the second holds
    in_place  reads whose buffer the one result may reuse: as many bytes, read element by element
    """

    op: Op
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    flops: Affine
    fused: int = 1
    picked: tuple[tuple[int, int], ...] = ()
    body: tuple[Kernel, ...] = ()
    in_place: tuple[int, ...] = ()


def in_update(kernel: Kernel) -> bool:
    """Return whether a kernel belongs to the optimizer and the metrics."""
    return kernel.op.phase is Phase.UPDATE


def join_updates(workload: Workload, kernels: Sequence[Kernel]) -> list[Kernel]:
    """Return the kernels with the updates of one variable's state as one kernel: they read the same gradient."""
    joined: list[Kernel] = []
    home: dict[int, int] = {}
    made_at: dict[int, int] = {}
    for kernel in kernels:
        index = _joins_at(workload, kernel, home, made_at)
        if index is None:
            index = len(joined)
            joined.append(kernel)
        else:
            joined[index] = _as_one_launch(joined[index], kernel)
        made_at.update(dict.fromkeys(kernel.writes, index))
        if _is_elementwise_update(workload, kernel):
            shape = workload.tensors[kernel.writes[0]].shape
            ends = (end for end in (*kernel.reads, *kernel.writes) if workload.tensors[end].shape == shape)
            home.update(dict.fromkeys(ends, index))
    return joined


def _joins_at(workload: Workload, kernel: Kernel, home: dict[int, int], made_at: dict[int, int]) -> int | None:
    """Return the index of the kernel that an update becomes part of, None if it stays a kernel of its own."""
    if not _is_elementwise_update(workload, kernel):
        return None
    shape = workload.tensors[kernel.writes[0]].shape
    same = (read for read in kernel.reads if workload.tensors[read].shape == shape)
    index = next((home[read] for read in same if read in home), None)
    if index is None or any(made_at.get(read, -1) > index for read in kernel.reads):
        return None
    return index


def _is_elementwise_update(workload: Workload, kernel: Kernel) -> bool:
    shape = workload.tensors[kernel.writes[0]].shape
    return in_update(kernel) and kernel.op.kind is Kind.ELEMENTWISE and len(shape) > 0


def _as_one_launch(one: Kernel, other: Kernel) -> Kernel:
    """Return two kernels as one launch: what the first writes, the second need not read."""
    reads = dict.fromkeys((*one.reads, *(read for read in other.reads if read not in one.writes)))
    return replace(
        one,
        reads=tuple(reads),
        writes=(*one.writes, *other.writes),
        flops=one.flops + other.flops,
        fused=one.fused + other.fused,
        picked=(*one.picked, *other.picked),
    )
