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
from cost_models.xla.dataflow import Graph
from cost_models.xla.fusion.column_reduction import GATED, is_narrow, leaves_idle

_LONG_ROW = 4096  # elements of a channel of one image (A100: joined features of 2,304 were kept, of 4,096 were not)
_SHORT_CHAIN = 4  # operations from an activation's costly part to its result


def kept(workload: Workload, graph: Graph, batch: int) -> Iterator[int]:
    """Values of one body of operations that are in memory for that reason, at a local batch."""
    for op in graph.ops:
        if op.kind is Kind.EXPENSIVE and graph.target.keeps_long_operands:
            yield from _into_long_chain(workload, graph, op)
        elif op.primitive == "concatenate" and graph.target.keeps_joined and not is_narrow(workload):
            readers = graph.readers.get(op.writes[0], ())
            if len(readers) > 1 and any(_sums_short_rows(workload, graph.ops[one]) for one in readers):
                yield op.writes[0]
        elif op.kind is Kind.POOL and graph.target.costly_to_pool:
            yield from (read for read in map(graph.of, op.reads[:1]) if _is_costly(graph, read))
        elif op.primitive == "mul" and graph.target.keeps_gated and is_narrow(workload):
            readers = graph.readers.get(op.writes[0], ())
            summed = op.phase is Phase.FORWARD and any(_is_summed(workload, graph, one, batch) for one in readers)
            if len(readers) > 1 and summed and "logistic" in (_made_by(graph, read) for read in op.reads):
                yield op.writes[0]


def _is_costly(graph: Graph, tensor: int) -> bool:
    """Whether one of the last few operations that make this is among those that are written before pooling."""
    pending = [tensor]
    for _ in range(_SHORT_CHAIN):
        made = [graph.ops[graph.producer[one]] for one in pending if one in graph.producer]
        made = [op for op in made if op.kind is Kind.ELEMENTWISE]
        if any(op.primitive in graph.target.costly_to_pool for op in made):
            return True
        pending = [graph.of(read) for op in made for read in op.reads]
    return False


def _into_long_chain(workload: Workload, graph: Graph, op: Op) -> Iterator[int]:
    """The argument where it is narrower than the result and something else reads it."""
    read = graph.of(op.reads[0])
    made = graph.producer.get(read)
    widens = workload.tensors[read].item_bytes < workload.tensors[op.writes[0]].item_bytes
    fusible = made is not None and graph.ops[made].kind in graph.target.fusible
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
    return any(leaves_idle(workload, graph.ops[one], graph.target, batch, GATED) for one in after)


def _made_by(graph: Graph, tensor: int) -> str:
    """The primitive that makes this, conversions aside."""
    source = graph.producer.get(graph.of(tensor))
    while source is not None and graph.ops[source].primitive == CONVERT:
        source = graph.producer.get(graph.of(graph.ops[source].reads[0]))
    return "" if source is None else graph.ops[source].primitive
