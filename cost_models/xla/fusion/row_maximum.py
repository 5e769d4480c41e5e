"""Rows from which their maximum is taken, as a softmax does: XLA:TPU finds the maximum, takes it off, and sums the
exponentials in one kernel, as long as a row fits (its reduce-window fusion). That kernel writes the differences, and
what follows is computed of these.

A product that makes shorter rows is part of that kernel, so that the differences take the place of its result. Of
longer ones, and on v6e of all in float32, both are in memory while that kernel runs.
"""

from __future__ import annotations

from collections.abc import Iterator

from cost_models.workload.workload import CONVERT, Kind, Op, Workload
from cost_models.xla.dataflow import Graph
from cost_models.xla.rules import rule

_WIDE = "float32"
_SHORT_CHAIN = 4  # operations between a maximum and what it is taken from: it is repeated, and compared with -inf


@rule("row-maximum", source="programs compiled for TPU v5e and v6e: reduce-window fusion of softmax")
def row_maximum(
    workload: Workload, graph: Graph, batch: int, *, longest: int, longest_of_product: int, wide_apart: bool = False
) -> Iterator[int]:
    """Yield rows less their maximum that are written beside the rows, at a local batch.

    longest             elements of a row from which its maximum is taken in the kernel that finds it
    longest_of_product  the same where a product that makes the row is part of that kernel
    wide_apart          products of rows in float32 are never part of it
    """
    apart = wide_apart and workload.precision == _WIDE
    shortest = 1 if apart else longest_of_product
    for op in graph.ops:
        if op.primitive == "sub" and len(op.reads) == 2 and _takes_maximum(workload, graph, op):
            elements = workload.tensors[op.reads[0]].shape[-1].at(batch)
            if shortest < elements <= longest:
                yield op.writes[0]


def _takes_maximum(workload: Workload, graph: Graph, op: Op) -> bool:
    """Whether this takes its maximum from each row of what no conversion made."""
    rows, tensor = workload.tensors[op.reads[0]], op.reads[1]
    source = _made_by(graph, op.reads[0])
    if source is None or source.primitive == CONVERT or rows.dtype != _WIDE or not rows.shape:
        return False
    for _ in range(_SHORT_CHAIN):
        source = _made_by(graph, tensor)
        if source is None or not source.reads:
            return False
        if source.kind is Kind.REDUCE:
            of_rows = graph.of(source.reads[0]) == graph.of(op.reads[0])
            by_row = workload.tensors[source.writes[0]].shape == rows.shape[:-1]
            return source.primitive == "reduce_max" and of_rows and by_row
        if source.kind is not Kind.BROADCAST and source.primitive != "max":
            return False
        tensor = source.reads[0]
    return False


def _made_by(graph: Graph, tensor: int) -> Op | None:
    source = graph.producer.get(graph.of(tensor))
    return None if source is None else graph.ops[source]
