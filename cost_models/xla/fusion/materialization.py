"""Decides which costly values XLA:GPU writes to memory rather than recomputing them in each reader."""

from __future__ import annotations

from collections.abc import Iterator

from cost_models.workload.workload import CONVERT, Kind, Phase, Workload
from cost_models.xla.dataflow import Graph, before_conversions, is_narrow
from cost_models.xla.fusion.column_reduction import GATED, leaves_idle
from cost_models.xla.rules import rule

_MOST_OPERATIONS = 4  # from the costly part of an activation to its result


@rule("costly-pooling-operands", source="programs compiled for H100: ELU before pooling")
def costly_pooling_operands(
    workload: Workload, graph: Graph, batch: int, *, primitives: frozenset[str]
) -> Iterator[int]:
    """Yield operands of pooling that are made with one of these primitives: each window would compute them anew."""
    for op in graph.ops:
        if op.kind is Kind.POOL:
            yield from (read for read in map(graph.of, op.reads[:1]) if _is_made_with(graph, read, primitives))


def _is_made_with(graph: Graph, tensor: int, primitives: frozenset[str]) -> bool:
    """Return whether one of the last few elementwise operations that make a tensor is one of these primitives."""
    pending = [tensor]
    for _ in range(_MOST_OPERATIONS):
        makers = [maker for one in pending if (maker := graph.maker(one)) is not None]
        makers = [maker for maker in makers if maker.kind is Kind.ELEMENTWISE]
        if any(maker.primitive in primitives for maker in makers):
            return True
        pending = [graph.of(read) for maker in makers for read in maker.reads]
    return False


@rule("gated-products", source="programs compiled for A100: squeeze-and-excitation")
def gated_products(workload: Workload, graph: Graph, batch: int) -> Iterator[int]:
    """Yield products with a logistic function (swish) in half precision that sums on few blocks read."""
    for op in graph.ops if is_narrow(workload) else ():
        if op.primitive != "mul" or op.phase is not Phase.FORWARD:
            continue
        readers = graph.readers.get(op.writes[0], ())
        if len(readers) > 1 and any(_is_summed(workload, graph, one, batch) for one in readers):
            makers = (before_conversions(graph, read) for read in op.reads)
            if any(maker is not None and maker.primitive == "logistic" for maker in makers):
                yield op.writes[0]


def _is_summed(workload: Workload, graph: Graph, reader: int, batch: int) -> bool:
    """Return whether an operation is a sum that leaves the device idle, or converts the operand of such a sum."""
    op = graph.ops[reader]
    after = graph.readers.get(op.writes[0], ()) if op.primitive == CONVERT else (reader,)
    return any(leaves_idle(workload, graph.ops[one], graph.profile, batch, GATED) for one in after)
