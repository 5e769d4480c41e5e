"""Workload -> Workload: of a ReLU that follows a product XLA:TPU keeps the sign as bits, one word for all samples of a
place, as long as a word has a bit for each sample. Nothing but products reads the rest then, so that it is kept as
these round it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cost_models.workload.workload import Kind, Op, Phase, Tensor, Workload
from cost_models.xla.dataflow import MOST_SAMPLES, Graph, packed_batch
from cost_models.xla.profile import Profile
from cost_models.xla.rules import rule

_WIDE = "float32"
_CLIPS = frozenset({"max", "min"})
_COMPARES = frozenset({"gt", "ge", "lt", "le"})
_FEATURES = 2  # dimensions beside the samples' own: a matrix of samples and features is not packed
_SHORT_CHAIN = 4  # operations from a product to the ReLU


@rule("relu-mask-packing", source="programs compiled for TPU v4, v5e and v5p", structure_batch=packed_batch)
def relu_mask_packing(workload: Workload, profile: Profile, local_batch: int) -> Workload:
    """Return the workload with the operands of packed ReLUs in the dtype of products."""
    dtype = profile.product_dtype
    if dtype is None or local_batch > MOST_SAMPLES:
        return workload
    lasting = {end for v in workload.variables for end in (v.tensor, v.result)} | {*workload.outputs}
    graph = Graph(workload.ops, frozenset(lasting), profile)
    found = set(_kept_for_signs(workload, graph))
    if not found:
        return workload
    tensors = (
        replace(tensor, dtype=dtype) if graph.of(number) in found else tensor
        for number, tensor in enumerate(workload.tensors)
    )
    return replace(workload, tensors=tuple(tensors))


def _kept_for_signs(workload: Workload, graph: Graph) -> Iterator[int]:
    """What forward ReLUs of products read that nothing needs in full."""
    for op in graph.ops:
        if op.primitive in _CLIPS and op.phase is Phase.FORWARD and op.reads:  # none: of two constants
            read = graph.of(op.reads[0])
            asked = all(_asks_sign(graph, reader) for reader in graph.readers[read])
            if asked and _is_packed(workload.tensors[read]) and _is_of_product(graph, read):
                yield read


def _is_packed(tensor: Tensor) -> bool:
    return tensor.dtype == _WIDE and len(tensor.shape) > _FEATURES and not tensor.elements.constant


def _is_of_product(graph: Graph, tensor: int) -> bool:
    """Whether a product makes this, with a few elementwise operations after it."""
    for _ in range(_SHORT_CHAIN):
        source = graph.producer.get(graph.of(tensor))
        if source is None:
            return False
        op = graph.ops[source]
        if op.kind is not Kind.ELEMENTWISE or not op.reads:
            return op.kind is Kind.DOT
        tensor = op.reads[0]
    return False


def _asks_sign(graph: Graph, reader: int) -> bool:
    """Whether this compares, or clips what products alone read."""
    op: Op = graph.ops[reader]
    if op.primitive in _COMPARES:
        return True
    readers = graph.readers.get(op.writes[0], ())
    return op.primitive in _CLIPS and bool(readers) and all(graph.ops[one].kind is Kind.DOT for one in readers)
