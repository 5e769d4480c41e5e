"""What XLA keeps on GPUs because it is long to compute, though several could compute it anew.

- the narrow argument of a long chain (erfc), which is converted up: kept beside the chain's result;
- a product with a logistic function (swish) that a sum on few blocks reads, as squeeze-and-excitation does;
- features that are joined, where sums over short rows of them read them: in float32, whose images have channels first;
- what pooling would compute for every window anew.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from cost_models.workload.workload import CONVERT, Kind, Op, Phase, Workload
from cost_models.xla.dataflow import Graph, is_narrow
from cost_models.xla.fusion.column_reduction import GATED, leaves_idle
from cost_models.xla.rules import rule

_LONG_ROW = 4096  # elements of a channel of one image (A100: joined features of 2,304 were kept, of 4,096 were not)
_SHORT_CHAIN = 4  # operations from an activation's costly part to its result


@rule("long-chain-operands", source="programs compiled for A100: exact GELU")
def long_chain_operands(workload: Workload, graph: Graph, batch: int) -> Iterator[int]:
    """Yield narrow operands of long chains that something else reads."""
    for op in graph.ops:
        if op.kind is Kind.EXPENSIVE:
            yield from _into_long_chain(workload, graph, op)


@rule("joined-features", source="programs compiled for A100: DenseNet in float32")
def joined_features(workload: Workload, graph: Graph, batch: int) -> Iterator[int]:
    """Yield joined features in float32 whose channels are summed over short rows."""
    for op in graph.ops if not is_narrow(workload) else ():
        if op.primitive == "concatenate":
            readers = graph.readers.get(op.writes[0], ())
            if len(readers) > 1 and any(_sums_short_rows(workload, graph.ops[one]) for one in readers):
                yield op.writes[0]


@rule("costly-pooling-operands", source="programs compiled for H100: ELU before pooling")
def costly_pooling_operands(
    workload: Workload, graph: Graph, batch: int, *, primitives: frozenset[str]
) -> Iterator[int]:
    """Yield operands of pooling that are made with one of these primitives."""
    for op in graph.ops:
        if op.kind is Kind.POOL:
            yield from (read for read in map(graph.of, op.reads[:1]) if _is_costly(graph, read, primitives))


@rule("gated-products", source="programs compiled for A100: squeeze-and-excitation")
def gated_products(workload: Workload, graph: Graph, batch: int) -> Iterator[int]:
    """Yield products with a logistic function in half precision that sums on few blocks read."""
    for op in graph.ops if is_narrow(workload) else ():
        if op.primitive == "mul":
            readers = graph.readers.get(op.writes[0], ())
            summed = op.phase is Phase.FORWARD and any(_is_summed(workload, graph, one, batch) for one in readers)
            if len(readers) > 1 and summed and "logistic" in (_made_by(graph, read) for read in op.reads):
                yield op.writes[0]


def _is_costly(graph: Graph, tensor: int, primitives: frozenset[str]) -> bool:
    """Whether one of the last few operations that make this is among those that are written before pooling."""
    pending = [tensor]
    for _ in range(_SHORT_CHAIN):
        made = [graph.ops[graph.producer[one]] for one in pending if one in graph.producer]
        made = [op for op in made if op.kind is Kind.ELEMENTWISE]
        if any(op.primitive in primitives for op in made):
            return True
        pending = [graph.of(read) for op in made for read in op.reads]
    return False


def _into_long_chain(workload: Workload, graph: Graph, op: Op) -> Iterator[int]:
    """The argument where it is narrower than the result and something else reads it."""
    read = graph.of(op.reads[0])
    made = graph.producer.get(read)
    widens = workload.tensors[read].item_bytes < workload.tensors[op.writes[0]].item_bytes
    fusible = made is not None and graph.ops[made].kind in graph.profile.fusible
    if widens and fusible and len(graph.readers[read]) > 1:
        yield read


def _sums_short_rows(workload: Workload, op: Op) -> bool:
    """Whether this is a sum of the forward pass over samples and sides of images, which keeps their channels."""
    if op.kind is not Kind.REDUCE or op.phase is not Phase.FORWARD:
        return False
    source, made = workload.tensors[op.reads[0]].shape, workload.tensors[op.writes[0]].shape
    sides = source[1:-1]
    images = len(source) > len(made) + 1 and made == source[-1:] and all(side.constant for side in sides)
    return images and math.prod(side.fixed for side in sides) < _LONG_ROW


def _is_summed(workload: Workload, graph: Graph, reader: int, batch: int) -> bool:
    """Whether this operation is a sum that leaves the device idle, or converts what such a sum reads."""
    op = graph.ops[reader]
    after = graph.readers.get(op.writes[0], ()) if op.primitive == CONVERT else (reader,)
    return any(leaves_idle(workload, graph.ops[one], graph.profile, batch, GATED) for one in after)


def _made_by(graph: Graph, tensor: int) -> str:
    """The primitive that makes this, conversions aside."""
    source = graph.producer.get(graph.of(tensor))
    while source is not None and graph.ops[source].primitive == CONVERT:
        source = graph.producer.get(graph.of(graph.ops[source].reads[0]))
    return "" if source is None else graph.ops[source].primitive
