"""Finds attention among the kernels of a step that other software than the traced one runs as one fused kernel.

A step that was traced for a device has attention in one kernel where Keras chooses it (`Kind.ATTENTION`). Other stacks
fuse what their code spells out. It is found by its structure, in any code: two products with the batch among their
groups (queries by keys, weights by values), and between them only operations that keep the number of elements.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from cost_models.workload.workload import Kind, Op, Tensor, walk
from cost_models.xla.fusion.kernel import Kernel

_COMPARISONS = frozenset({"ge", "gt", "le", "lt"})
_COUNTS = frozenset({"iota", "cumsum"})
_LOOKS = 64


@dataclass(frozen=True)
class Attention:
    """The tensors and kernels of attention in a step.

    scores   tensors of (query, key) pairs: fused kernels keep them in registers
    products kernels (by position) that make or read scores
    vector   kernels that do nothing but work on scores: softmax, masks, their gradients
    causal   whether keys after the query are masked out: half of the pairs need no work
    """

    scores: frozenset[int]
    products: frozenset[int]
    vector: frozenset[int]
    causal: bool


def find_attention(kernels: Sequence[Kernel], tensors: Sequence[Tensor], ops: tuple[Op, ...]) -> Attention:
    """Return the attention in a flat sequence of kernels; its sets are empty where there is none."""
    batched = [index for index, kernel in enumerate(kernels) if _batched_product(kernel)]
    made = {write: index for index in batched for write in kernels[index].writes}
    scores = _between(kernels, tensors, made, batched)
    products = frozenset(index for index in batched if scores & {*kernels[index].reads, *kernels[index].writes})
    masks = _masks(tensors, scores)
    hidden = scores | masks
    vector = frozenset(
        index
        for index, kernel in enumerate(kernels)
        if index not in products and not kernel.body and hidden & {*kernel.reads, *kernel.writes}
    )
    return Attention(
        frozenset(hidden),
        products,
        vector,
        causal=bool(scores) and _is_causal(ops, tensors, scores),
    )


def _batched_product(kernel: Kernel) -> bool:
    return kernel.op.kind is Kind.DOT and bool(kernel.op.gemm) and not kernel.op.gemm[0].constant


def _between(
    kernels: Sequence[Kernel], tensors: Sequence[Tensor], made: Mapping[int, int], batched: Sequence[int]
) -> set[int]:
    """Tensors on a way from a batched product to a batched product on which the number of elements stays."""
    reached: dict[int, set[int]] = {tensor: set() for tensor in made}
    for kernel in kernels:
        if kernel.op.kind is Kind.DOT:
            continue
        sources = [read for read in kernel.reads if read in reached]
        for write in kernel.writes:
            same = {read for read in sources if tensors[read].elements == tensors[write].elements}
            if same and write not in made:
                reached.setdefault(write, set()).update(same)
    scores: set[int] = set()
    pending = [read for index in batched for read in kernels[index].reads if read in reached]
    while pending:
        tensor = pending.pop()
        if tensor not in scores:
            scores.add(tensor)
            pending.extend(reached[tensor])
    return scores


def _masks(tensors: Sequence[Tensor], scores: Iterable[int]) -> set[int]:
    """Truth values for each pair: of the scores' own shape, or of their last two dimensions."""
    shapes = {tuple(dim for dim in tensors[score].shape if dim.fixed != 1 or dim.per_sample) for score in scores}
    ends = {shape[-2:] for shape in shapes}
    return {
        index
        for index, tensor in enumerate(tensors)
        if tensor.dtype == "bool" and tuple(d for d in tensor.shape if d.fixed != 1 or d.per_sample)[-2:] in ends
    }


def _is_causal(ops: tuple[Op, ...], tensors: Sequence[Tensor], scores: Iterable[int]) -> bool:
    sizes = {tensors[score].elements for score in scores}
    every = walk(ops)
    producers = {write: op for op in every for write in op.writes}
    chosen = (op for op in every if op.primitive == "select_n" and tensors[op.writes[0]].elements in sizes)
    return any(_compares_positions(op.reads[0], producers) for op in chosen)


def _compares_positions(predicate: int, producers: Mapping[int, Op]) -> bool:
    """Whether a predicate comes from comparing counting numbers with each other."""
    return any(
        op.primitive in _COMPARISONS and all(_counts(read, producers) for read in op.reads)
        for op in _upstream(predicate, producers)
    )


def _counts(tensor: int, producers: Mapping[int, Op]) -> bool:
    return any(op.primitive in _COUNTS for op in _upstream(tensor, producers))


def _upstream(tensor: int, producers: Mapping[int, Op]) -> Iterator[Op]:
    seen: set[int] = set()
    pending = [tensor]
    while pending and len(seen) < _LOOKS:
        here = pending.pop()
        if here in seen or here not in producers:
            continue
        seen.add(here)
        op = producers[here]
        yield op
        pending.extend(op.reads)
