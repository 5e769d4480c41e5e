"""Decides which operands of a column reduction XLA:GPU writes to memory first, because it has too few blocks.

XLA gives a block 32 columns, and splits a reduction of more than 4,096 elements in two, each about the square root
long (its tree reduction). If a reduction runs on too few blocks to fill the device, its operands are computed before
it, by a kernel that does fill the device: narrow values, which are converted first, sooner than values in float32. The
value that is written is the nearest in the chain to the reduction with which another operation computes, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from cost_models.workload.affine import Affine
from cost_models.workload.workload import CONVERT, Kind, Op, Phase, Workload
from cost_models.xla.dataflow import Graph, is_narrow
from cost_models.xla.profile import Profile
from cost_models.xla.rules import rule
from cost_models.xla.tiling import convolutional_shapes

GATED = 2.0
"""A logistic function takes so much longer than a normalization (A100: 512 blocks were too few, 640 were not)."""
_BLOCK_COLUMNS = 32
_UNSPLIT = 4096  # elements that one reduction sums (ReductionDimensionRaceFreeBound)
_GROUP_RANK = 2  # dimensions of sums of groups: samples and groups
_WIDE_ROW = 128  # channels (A100, groups in half precision: of 16 samples 128 were computed apart, 96 were not)
_LONG_COLUMN = 1536  # rows (A100, float32: columns of 1,024 rows were not computed apart, of 1,536 they were)
_FEW_SAMPLES = 8  # the same: of 8 samples 64 channels were computed apart, of 16 they were not
_Case = tuple[int, float, bool]
_CASES = ((1.0, False), (GATED, False), (1.0, True))


class LeastBlocks(NamedTuple):
    """The least blocks that fill a device: in half precision, in float32, and for chains of operations in float32."""

    narrow: int
    wide: int
    chained: int


def column_batch(workload: Workload, profile: Profile, batch: int) -> int | None:
    """Return the batch nearest to that of the trace at which the same reductions leave the device idle as at `batch`.

    These reductions become fewer as the batch grows.
    """
    own = workload.local_batch
    if batch == own or not _column_reductions(workload):
        return None
    wanted = _idle(workload, profile, batch)
    if _idle(workload, profile, own) == wanted:
        return None
    near, far = own, batch
    while abs(far - near) > 1:  # `far` has the wanted reductions, `near` has others
        middle = (near + far) // 2
        near, far = (near, middle) if _idle(workload, profile, middle) == wanted else (middle, far)
    return far


@rule(
    "column-reduction",
    source="programs compiled for A100 and H100; TreeReductionRewriter",
    structure_batch=column_batch,
)
def column_reduction(
    workload: Workload, op: Op, batch: int, times: float, chained: bool, *, least: LeastBlocks
) -> bool:
    """Return whether a reduction over columns runs on too few blocks.

    times    how much longer its operands take to compute than usual: as many more blocks are too few
    chained  whether more than one operation makes its operand
    """
    if not _sums_columns(workload, op):
        return False
    if is_narrow(workload):
        return _blocks(workload, op, batch) < times * least.narrow
    if workload.tensors[op.reads[0]].shape in _image_shapes(workload):
        return False  # cuDNN has the channels of images first in float32
    return _blocks(workload, op, batch) < times * (least.chained if chained else least.wide)


@rule("cached-column-reduction", source="programs compiled for A100", structure_batch=column_batch)
def cached_column_reduction(workload: Workload, op: Op, batch: int, *, blocks: int, cache_bytes: int) -> bool:
    """Return whether a reduction is over few long columns in float32 that fit the caches of all cores.

    A part of a chain before it may be written: it counts as a chain all the same.
    """
    if not _sums_columns(workload, op) or is_narrow(workload):
        return False
    read, made = (workload.tensors[end] for end in (op.reads[0], op.writes[0]))
    rows = read.elements.at(batch) / max(made.elements.at(batch), 1.0)
    cached = read.bytes.at(batch) < cache_bytes
    return rows >= _LONG_COLUMN and cached and _blocks(workload, op, batch) <= blocks


@rule("grouped-column-reduction", source="programs compiled for A100", structure_batch=column_batch)
def grouped_column_reduction(workload: Workload, op: Op, batch: int, *, blocks: int) -> bool:
    """Return whether a reduction sums groups of channels of narrow images on too few blocks.

    For many narrow samples the gradient writes the operands.
    """
    source = workload.tensors[op.reads[0]].shape
    samples, channels = source[0].at(batch), source[-1].at(batch) * source[-2].at(batch)
    few = channels >= _WIDE_ROW or samples <= _FEW_SAMPLES
    return is_narrow(workload) and few and samples * math.ceil(channels / _BLOCK_COLUMNS) < blocks


def leaves_idle(
    workload: Workload, op: Op, profile: Profile, batch: int, times: float = 1.0, chained: bool = False
) -> bool:
    """Return whether an operation is a reduction of the forward pass that does not fill the device at a local batch.

    Values that the backward pass computes before a reduction are soon freed. Arguments: see `column_reduction`.
    """
    if _sums_groups(workload, op):
        grouped = profile.rules.get("grouped-column-reduction")
        return not chained and grouped is not None and bool(grouped(workload, op, batch))
    plain = profile.rules.get("column-reduction")
    return plain is not None and bool(plain(workload, op, batch, times, chained))


def _lies_in_caches(workload: Workload, op: Op, profile: Profile, batch: int) -> bool:
    cached = profile.rules.get("cached-column-reduction")
    return cached is not None and bool(cached(workload, op, batch))


@lru_cache(maxsize=64)
def _column_reductions(workload: Workload) -> tuple[Op, ...]:
    return tuple(op for op in workload.ops if _sums_columns(workload, op) or _sums_groups(workload, op))


@lru_cache(maxsize=64)
def _image_shapes(workload: Workload) -> frozenset[tuple[Affine, ...]]:
    return frozenset(convolutional_shapes(workload))


def _idle(workload: Workload, profile: Profile, batch: int) -> frozenset[_Case]:
    reductions = tuple(enumerate(_column_reductions(workload)))
    idle = (
        (number, times, chained)
        for number, op in reductions
        for times, chained in _CASES
        if leaves_idle(workload, op, profile, batch, times, chained)
    )
    cached = ((number, 0.0, True) for number, op in reductions if _lies_in_caches(workload, op, profile, batch))
    return frozenset((*idle, *cached))


def _sums_columns(workload: Workload, op: Op) -> bool:
    """Return whether a reduction of the forward pass keeps the last dimension, and not the first dimensions alone."""
    if op.kind is not Kind.REDUCE or op.phase is not Phase.FORWARD or not op.reads:
        return False
    source, made = workload.tensors[op.reads[0]].shape, workload.tensors[op.writes[0]].shape
    return bool(made) and bool(source) and source[-1] == made[-1] and source[: len(made)] != made


def _sums_groups(workload: Workload, op: Op) -> bool:
    """Return whether a reduction of the forward pass makes one value a sample and group of channels of images.

    Where channels come last, XLA makes two reductions of it: over columns, which keeps all channels, and then within
    the groups.
    """
    if op.kind is not Kind.REDUCE or op.phase is not Phase.FORWARD or not op.reads:
        return False
    source, made = workload.tensors[op.reads[0]].shape, workload.tensors[op.writes[0]].shape
    return len(made) == _GROUP_RANK and len(source) > len(made) + 1 and made == (source[0], source[-2])


def _blocks(workload: Workload, op: Op, batch: int) -> float:
    """Return the blocks on which a reduction over columns runs."""
    source, made = workload.tensors[op.reads[0]].shape, workload.tensors[op.writes[0]].shape
    results = _elements(made, batch)
    rows = _elements(source, batch) / max(results, 1.0)
    width = made[-1].at(batch)
    blocks = results / max(width, 1.0) * math.ceil(width / _BLOCK_COLUMNS)
    return math.inf if rows > _UNSPLIT else blocks


def _elements(shape: Sequence[Affine], batch: int) -> float:
    return math.prod(dim.at(batch) for dim in shape)


class ColumnInputs:
    """The values before reductions over columns in one body of operations, at a local batch.

    fusible  flags the operations that need not write their results
    """

    def __init__(self, workload: Workload, graph: Graph, batch: int, fusible: Sequence[bool]) -> None:
        self.workload, self.graph, self.batch, self.fusible = workload, graph, batch, fusible
        self.size = [size.at(batch) for size in workload.sizes]

    def written(self) -> frozenset[int]:
        """Return the tensors that are written for this reason, as far as nothing else decides."""
        found: set[int] = set()
        for index, op in enumerate(self.graph.ops):
            where = self.workload, op, self.graph.profile, self.batch
            if leaves_idle(*where):
                found.update(self._nearest_shared(index))
            elif leaves_idle(*where, chained=True):
                ends = set() if _lies_in_caches(*where) else found
                near = self._nearest_shared(index)
                found.update(one for one in near if self._follows_bias(one) or self._is_chained(one, ends))
        return frozenset(found)

    def _is_chained(self, tensor: int, ends: set[int]) -> bool:
        """Return whether more than one operation on as many elements makes a tensor of tensors in memory or `ends`."""
        count, pending = 0, [tensor]
        while pending and count < 2:
            source = self.graph.producer.get(read := pending.pop())
            if source is not None and self.fusible[source] and (read == tensor or read not in ends):
                op = self.graph.ops[source]
                count += op.kind is Kind.ELEMENTWISE and op.primitive != CONVERT and not self._is_bias(op)
                pending += [one for one in self.graph.reads[source] if self.size[one] >= self.size[tensor]]
        return count > 1

    def _follows_bias(self, tensor: int) -> bool:
        """Return whether a tensor is an activation of a product with its bias: readers would read the bias, too."""
        op = self.graph.ops[self.graph.producer[tensor]]
        before = (self.graph.maker(read) for read in op.reads)
        return len(op.reads) == 1 and any(one is not None and self._is_bias(one) for one in before)

    def _is_bias(self, op: Op) -> bool:
        """Return whether an operation adds to the result of a product, which computes the sum itself."""
        makers = (self.graph.maker(read) for read in op.reads)
        return op.primitive == "add" and any(one is not None and one.kind is Kind.DOT for one in makers)

    def _nearest_shared(self, reduction: int) -> Iterator[int]:
        pending = [reduction]
        while pending:
            at = pending.pop()
            for read in self.graph.reads[at]:
                source = self.graph.producer.get(read)
                smaller = self.size[read] < self.size[self.graph.reads[reduction][0]]
                if source is None or not self.fusible[source] or smaller:
                    continue
                if self._is_shared(read, at) and self.graph.ops[source].primitive != CONVERT:
                    yield read
                else:
                    pending.append(source)

    def _is_shared(self, tensor: int, reader: int) -> bool:
        """Return whether an operation beside this reader computes with a tensor.

        Conversions whose results are written are computed along with it.
        """
        others = (self.graph.ops[other] for other in self.graph.readers[tensor] if other != reader)
        return any(other.primitive != CONVERT or self._is_read_in_kernels(other.writes[0]) for other in others)

    def _is_read_in_kernels(self, tensor: int) -> bool:
        """Return whether several operations read a tensor, and none of them from memory."""
        readers = self.graph.readers.get(tensor, ())
        return len(readers) > 1 and all(self.fusible[reader] for reader in readers)
