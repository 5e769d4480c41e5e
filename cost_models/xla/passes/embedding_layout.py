"""Adds the copies that XLA:TPU makes of embedding tables with narrow rows, for gathers and their gradients.

XLA:TPU gathers and scatters whole rows, which lie across the lanes of a tile. A table of narrow rows is an argument
with its rows down the tiles, which wastes nothing. So it is copied before rows are gathered, in the dtype that is
gathered. Its gradient is scattered into whole rows, and copied back before it is used. A table stays compact if its
copy does not fit the memory on the chip: 300,000 rows of 64 gathered in bfloat16 were copied, a million of 16 were not.
The operand of a scatter into a compact table is a list of rows across the tiles; before, several rows of a sample lie
across the lanes. Where the update sums over rows and columns of the gradient (Adafactor), it works on whole rows, and
its results are copied back.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from cost_models.workload.affine import Affine
from cost_models.workload.workload import CONVERT, Kind, Op, Phase, Role, Tensor, Workload
from cost_models.xla.profile import Profile
from cost_models.xla.rules import rule


@rule("embedding-layout", source="programs compiled for TPU v5e: tables of narrow rows")
def embedding_layout(workload: Workload, profile: Profile, local_batch: int) -> Workload:
    """Return the workload with copies of embedding tables whose rows are narrower than a tile."""
    lanes, rows, room = profile.tile_lanes, profile.tile_rows, profile.on_chip_bytes
    narrow = {
        v.tensor: v.tensor
        for v in workload.variables
        if v.role is Role.TRAINABLE and _is_narrow(workload.tensors[v.tensor], lanes, rows)
    }
    if not narrow:
        return workload
    tables: set[int] = set()
    for op in workload.ops:
        _follow(op, narrow)
        if op.kind is Kind.GATHER and op.reads[0] in narrow:
            table = narrow[op.reads[0]]
            copy = _in_rows(replace(workload.tensors[table], dtype=workload.tensors[op.writes[0]].dtype), lanes)
            tables.update({table} if copy.bytes.fixed <= room else ())
    gathered = {op.reads[0] for op in workload.ops if op.kind is Kind.GATHER}
    compact = {table for name, table in narrow.items() if name in gathered}
    return _Tables(workload, lanes, tables, compact - tables).rewritten() if compact else workload


def _follow(op: Op, named: dict[int, int]) -> None:
    """Add a table's other names and its conversions to `named`."""
    if op.reads and op.reads[0] in named and (op.kind is Kind.VIEW or op.primitive == CONVERT):
        named[op.writes[0]] = named[op.reads[0]]


def _in_rows(tensor: Tensor, lanes: int) -> Tensor:
    *outer, width = tensor.shape
    return replace(tensor, shape=(*outer, Affine(_up(round(width.fixed), lanes))))


def _is_narrow(tensor: Tensor, lanes: int, rows: int) -> bool:
    """Return whether a matrix wastes less memory with its columns across the lanes."""
    if len(tensor.shape) != 2 or not tensor.elements.constant:
        return False
    count, width = (round(dim.fixed) for dim in tensor.shape)
    return _up(count, lanes) * _up(width, rows) < _up(count, rows) * _up(width, lanes)


def _up(size: int, step: int) -> int:
    return math.ceil(size / step) * step


@dataclass
class _Tables:
    """Rewrites the operations on tables.

    tables    tables that are copied; `compact` are the others
    copies    the copy of a table, by table and dtype
    factored  shapes that are updated in whole rows
    rows      the result in whole rows, by compact result
    """

    workload: Workload
    lanes: int
    tables: set[int]
    compact: set[int]
    tensors: list[Tensor] = field(default_factory=list)
    named: dict[int, int] = field(default_factory=dict)
    copies: dict[tuple[int, str], int] = field(default_factory=dict)
    factored: set[tuple[Affine, ...]] = field(default_factory=set)
    rows: dict[int, int] = field(default_factory=dict)

    def rewritten(self) -> Workload:
        self.tensors = list(self.workload.tensors)
        self.named = {table: table for table in self.tables}
        shapes = {self.tensors[table].shape for table in self.tables}
        compact = {self.tensors[table].shape for table in self.compact} - shapes
        zeros = self._zeros()
        self.factored = shapes & {
            self.tensors[op.reads[0]].shape
            for op in self.workload.ops
            if op.phase is Phase.UPDATE and op.kind is Kind.REDUCE and len(self.tensors[op.writes[0]].shape) == 1
        }
        ops: list[Op] = []
        for op in self.workload.ops:
            _follow(op, self.named)
            if op.kind is Kind.GATHER and op.reads[0] in self.named:
                ops.extend(self._gather(op))
            elif op.kind is Kind.SCATTER and op.phase is Phase.BACKWARD and self.tensors[op.writes[0]].shape in shapes:
                ops.extend(self._scatter(op, zeros))
            elif op.kind is Kind.SCATTER and op.phase is Phase.BACKWARD and self.tensors[op.writes[0]].shape in compact:
                ops.extend(self._scatter_compact(op, zeros))
            elif op.phase is Phase.UPDATE and self.tensors[op.writes[0]].shape in self.factored:
                ops.extend(self._update(op))
            else:
                ops.append(op)
        return replace(self.workload, tensors=tuple(self.tensors), ops=tuple(ops))

    def _gather(self, op: Op) -> Iterator[Op]:
        table, dtype = self.named[op.reads[0]], self.tensors[op.writes[0]].dtype
        yield from self._copied(table, dtype, op)
        yield replace(op, reads=(self.copies[table, dtype], *op.reads[1:]))

    def _copied(self, table: int, dtype: str, op: Op) -> Iterator[Op]:
        """Yield the copy of a table; one copy serves all readers of one dtype."""
        if (table, dtype) not in self.copies:
            made = self.copies[table, dtype] = self._in_rows(replace(self.tensors[table], dtype=dtype))
            yield Op(Kind.COPY, "copy", (table,), (made,), phase=op.phase, layer=op.layer)

    def _scatter(self, op: Op, zeros: set[int]) -> Iterator[Op]:
        """Yield a scatter of whole rows; the zeros that it scatters into need not exist before."""
        made, added = op.writes[0], op.reads[-1]
        apart = self._in_rows(self.tensors[added])
        yield Op(Kind.COPY, "copy", (added,), (apart,), phase=op.phase, layer=op.layer)
        rows = self._in_rows(self.tensors[made])
        reads = tuple(read for read in op.reads[:-1] if read not in zeros)
        if self.tensors[made].shape in self.factored:
            self.tensors[made] = self.tensors[rows]
            yield replace(op, reads=(*reads, apart))
            return
        yield replace(op, reads=(*reads, apart), writes=(rows,))
        yield Op(Kind.COPY, "copy", (rows,), (made,), phase=op.phase, layer=op.layer)

    def _scatter_compact(self, op: Op, zeros: set[int]) -> Iterator[Op]:
        """Yield a scatter of a list of rows; before, a row or several rows are across the lanes to waste less."""
        own = self.tensors[op.reads[-1]]
        self.tensors.append(own)
        listed = len(self.tensors) - 1
        if len(own.shape) > 2 and all(dim.constant for dim in own.shape[1:]):
            count, width = (round(dim.fixed) for dim in own.shape[-2:])
            several = Affine(_up(count, self.lanes)), own.shape[-1]
            one = own.shape[-2], Affine(_up(width, self.lanes))
            least = min(several, one, key=lambda pair: pair[0].fixed * pair[1].fixed)
            self.tensors[op.reads[-1]] = replace(own, shape=(*own.shape[:-2], *least))
        yield Op(Kind.COPY, "copy", op.reads[-1:], (listed,), phase=op.phase, layer=op.layer)
        yield replace(op, reads=(*(read for read in op.reads[:-1] if read not in zeros), listed))

    def _update(self, op: Op) -> Iterator[Op]:
        """Yield an update in whole rows, and the copy of new state into the compact buffer of the old state."""
        made = op.writes[0]
        for table in self.tables.intersection(op.reads):
            yield from self._copied(table, self.tensors[table].dtype, op)
        reads = tuple(self.rows.get(read, self.copies.get((read, self.tensors[read].dtype), read)) for read in op.reads)
        rows = self._in_rows(self.tensors[made])
        if made not in {v.result for v in self.workload.variables}:
            self.tensors[made] = self.tensors[rows]
            yield replace(op, reads=reads)
            return
        yield replace(op, reads=reads, writes=(rows,))
        self.rows[made] = rows
        yield Op(Kind.COPY, "copy", (rows,), (made,), phase=op.phase, layer=op.layer)

    def _zeros(self) -> set[int]:
        return {op.writes[0] for op in self.workload.ops if op.kind is Kind.BROADCAST and not op.reads}

    def _in_rows(self, tensor: Tensor) -> int:
        self.tensors.append(_in_rows(tensor, self.lanes))
        return len(self.tensors) - 1
