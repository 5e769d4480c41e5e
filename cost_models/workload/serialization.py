"""Serializes a `Workload` to plain JSON values, and validates and reads such values.

msgspec checks plain values (types, required and unknown keys, counts) and converts them to the records below. The other
checks are those that types cannot express. Cost models index values by position, so a workload that no trace writes (an
operation without a result, a GEMM with one operand, an operation that reads a later result) is refused here.
"""

from __future__ import annotations

import gc
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, structs

from cost_models.errors import SchemaError, WorkloadError
from cost_models.validation import converted, quoted, raised_as
from cost_models.workload.affine import LARGEST, Affine
from cost_models.workload.compiled_op import Compiled, CompiledCollective
from cost_models.workload.workload import Kind, Op, OtherBatch, Phase, Role, Tensor, UnknownOp, Variable, Workload

SCHEMA = 1
LARGEST_BYTES = 2**60
LARGEST_FLOPS = 1e27
DEEPEST = 32
"""Bodies within bodies."""

Count = Annotated[int, Meta(ge=0, lt=2**53)]
Positive = Annotated[int, Meta(ge=1, lt=2**53)]
Size = int | float | tuple[int | float, int | float]
"""A number where the local batch does not matter, else (fixed, per_sample)."""

_GEMM_SIZES = 4
_MIN_READS: Mapping[Kind, int] = {
    **dict.fromkeys(Kind, 0),
    **dict.fromkeys((Kind.POOL, Kind.SCATTER, Kind.SORT, Kind.CUMULATIVE, Kind.MOVE, Kind.VIEW, Kind.COPY), 1),
    **dict.fromkeys((Kind.DOT, Kind.CONV, Kind.GATHER, Kind.POOL_GRADIENT), 2),
    Kind.ATTENTION: 3,
    Kind.LSTM: 5,
}
_WITH_GEMM = frozenset({Kind.DOT, Kind.CONV, Kind.ATTENTION, Kind.LSTM})
_EQUAL_RANK_KINDS: Mapping[Kind, int] = {Kind.CONV: 2, Kind.POOL_GRADIENT: 2, Kind.POOL: 1}
_EQUAL_RANK_PRIMITIVES: Mapping[str, int] = {"pad": 1, "pad_unevenly": 1, "rev": 1, "slice": 1}
"""Operations whose results and first operands have equally many dimensions: the number of those operands."""


class _Record(Struct, forbid_unknown_fields=True):
    """Plain values under keys, as they are stored."""


class _ExchangeRecord(_Record):
    kind: str
    axis: str
    devices: Positive
    stride: Positive
    payload_bytes: Count
    arrays: Positive


class _CompiledRecord(_Record):
    moved_bytes: Count
    product_flops: Count
    dtype: str
    exchange: _ExchangeRecord | None
    covers: Count
    launches: Count


class _OpRecord(_Record):
    kind: Kind
    primitive: str
    phase: Phase
    reads: tuple[Count, ...]
    writes: tuple[Count, ...]
    flops: Size = 0
    gemm: tuple[Size, ...] = ()
    repeat: Positive = 1
    results: tuple[Count, ...] = ()
    body: tuple[_OpRecord, ...] = ()
    layer: str = ""
    region: Count = 0
    compiled: _CompiledRecord | UnsetType = UNSET


class _UnknownOpRecord(_Record):
    primitive: str
    count: Count
    reason: str = UnknownOp.reason


class _OtherBatchRecord(_Record):
    step: _WorkloadRecord
    rows: Positive
    usual: Positive | None = None


class _WorkloadRecord(_Record):
    schema: Literal[1]
    local_batch: Positive
    batch_exact: bool
    precision: str
    remat: str
    backend: str
    dispatches: Count
    optimizer: str
    tensors: tuple[tuple[str, tuple[Size, ...]], ...]
    ops: tuple[_OpRecord, ...]
    variables: tuple[tuple[str, Role, Count, Count], ...]
    inputs: tuple[Count, ...]
    outputs: tuple[Count, ...]
    unknown_ops: tuple[_UnknownOpRecord, ...]
    notes: tuple[str, ...]
    largest: _OtherBatchRecord | None = None
    validation: _OtherBatchRecord | None = None
    attention: str = "auto"
    answers: tuple[tuple[str, bool], ...] = ()


def workload_from_dict(data: object) -> Workload:
    """Return the workload that `workload_to_dict` wrote.

    Raises:
        WorkloadError: another schema, a missing or unknown key, or values that `workload_to_dict` never writes. The
            message names the path of the value.
    """
    if not isinstance(data, Mapping):
        raise WorkloadError(f"a workload is a mapping, and this is {quoted(data)}; trace the model again")
    if isinstance(data.get("schema"), bool) or data.get("schema") != SCHEMA:
        raise WorkloadError(f"a workload of schema {quoted(data.get('schema'))}; this version reads schema {SCHEMA}")
    with raised_as(WorkloadError, "a workload that cannot be read: ", "; trace the model again"), _collection_paused():
        return _workload(converted(data, _WorkloadRecord, "workload"))


def _workload(record: _WorkloadRecord) -> Workload:
    _check_references(record)
    reader = _Reader(record.local_batch)
    tensors = reader.tensors(record.tensors)
    workload = Workload(
        local_batch=record.local_batch,
        precision=record.precision,
        remat=record.remat,
        backend=record.backend,
        tensors=tensors,
        ops=reader.ops(record.ops, [len(tensor.shape) for tensor in tensors]),
        variables=tuple(Variable(*row) for row in record.variables),
        inputs=record.inputs,
        outputs=record.outputs,
        dispatches=record.dispatches,
        batch_exact=record.batch_exact,
        optimizer=record.optimizer,
        unknown_ops=tuple(UnknownOp(op.primitive, op.count, op.reason) for op in record.unknown_ops),
        notes=record.notes,
        largest=_other_batch(record.largest),
        validation=_other_batch(record.validation),
        attention=record.attention,
        answers=record.answers,
    )
    _check_totals(workload)
    return workload


def _other_batch(record: _OtherBatchRecord | None) -> OtherBatch | None:
    return None if record is None else OtherBatch(_workload(record.step), record.rows, record.usual)


def workload_to_dict(workload: Workload) -> dict[str, Any]:
    """Return a workload as plain values, for files and for messages between processes."""
    others = {"largest": workload.largest, "validation": workload.validation}
    return {
        **{name: _other_to_dict(other) for name, other in others.items() if other is not None},
        **({} if workload.attention == "auto" else {"attention": workload.attention}),
        **({"answers": [list(one) for one in workload.answers]} if workload.answers else {}),
        "schema": SCHEMA,
        "local_batch": workload.local_batch,
        "batch_exact": workload.batch_exact,
        "precision": workload.precision,
        "remat": workload.remat,
        "backend": workload.backend,
        "dispatches": workload.dispatches,
        "optimizer": workload.optimizer,
        "tensors": [[tensor.dtype, [dim.to_plain() for dim in tensor.shape]] for tensor in workload.tensors],
        "ops": [_op_to_dict(op) for op in workload.ops],
        "variables": [[v.path, v.role.value, v.tensor, v.result] for v in workload.variables],
        "inputs": list(workload.inputs),
        "outputs": list(workload.outputs),
        "unknown_ops": [op.to_dict() for op in workload.unknown_ops],
        "notes": list(workload.notes),
    }


def _other_to_dict(other: OtherBatch) -> dict[str, Any]:
    return {"step": workload_to_dict(other.step), "rows": other.rows, "usual": other.usual}


def workload_digest(workload: Workload) -> str:
    """Return the SHA-256 of the canonical JSON, in hexadecimal: the same for equal workloads in every process."""
    text = json.dumps(workload_to_dict(workload), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _op_to_dict(op: Op) -> dict[str, Any]:
    """Leave defaults out: a training step has thousands of operations."""
    plain: dict[str, Any] = {"kind": op.kind.value, "primitive": op.primitive, "phase": op.phase.value}
    plain |= {"reads": list(op.reads), "writes": list(op.writes)}
    if op.flops != Affine():
        plain["flops"] = op.flops.to_plain()
    if op.gemm:
        plain["gemm"] = [part.to_plain() for part in op.gemm]
    if op.body:
        plain |= {"repeat": op.repeat, "results": list(op.results), "body": [_op_to_dict(inner) for inner in op.body]}
    if op.layer:
        plain["layer"] = op.layer
    if op.region:
        plain["region"] = op.region
    if op.compiled is not None:
        plain["compiled"] = op.compiled.to_dict()
    return plain


@contextmanager
def _collection_paused() -> Iterator[None]:
    """Pause garbage collection: it would visit several hundred thousand new objects many times, and free none."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Reader:
    """Builds tensors and operations from records.

    A training step repeats its sizes and shapes, so each distinct one is built and checked once.
    """

    def __init__(self, local_batch: int) -> None:
        self.local_batch = local_batch
        self._sizes: dict[Size, Affine] = {}
        self._amounts: dict[Size, Affine] = {}

    def tensors(self, records: Sequence[tuple[str, tuple[Size, ...]]]) -> tuple[Tensor, ...]:
        distinct: dict[tuple[str, tuple[Size, ...]], Tensor] = {}
        for number, record in enumerate(records):
            if record not in distinct:
                with raised_as(SchemaError, f"workload.tensors[{number}] "):
                    distinct[record] = self._tensor(*record)
        return tuple(distinct[record] for record in records)

    def ops(self, records: Sequence[_OpRecord], ranks: Sequence[int], depth: int = 0) -> tuple[Op, ...]:
        """Build the operations of one body; `ranks` counts the dimensions of every tensor."""
        if depth > DEEPEST:
            raise SchemaError(f"an operation lies in more than {DEEPEST} bodies; expected fewer")
        _check_order(records)
        return tuple([self._op(record, ranks, depth) for record in records])

    def _op(self, record: _OpRecord, ranks: Sequence[int], depth: int) -> Op:
        compiled = None
        if isinstance(record.compiled, UnsetType):
            _check_operands(record, ranks)
        else:
            compiled = _compiled(record.compiled)
        return Op(
            record.kind,
            record.primitive,
            record.reads,
            record.writes,
            self._amounts.get(record.flops) or self._amount(record.flops, record),
            tuple([self._amount(size, record) for size in record.gemm]) if record.gemm else (),
            record.repeat,
            self.ops(record.body, ranks, depth + 1) if record.body else (),
            record.results,
            record.phase,
            record.layer,
            record.region,
            compiled,
        )

    def _tensor(self, dtype: str, dims: tuple[Size, ...]) -> Tensor:
        tensor = Tensor(dtype, tuple([self._size(dim) for dim in dims]))
        at_batch = [round(dim.at(self.local_batch), 6) for dim in tensor.shape]
        if any(size < 0 or size != round(size) for size in at_batch):
            shape = ", ".join(str(dim.to_plain()) for dim in tensor.shape)
            raise SchemaError(f"has the shape ({shape}); expected whole numbers at a local batch of {self.local_batch}")
        return tensor

    def _size(self, plain: Size) -> Affine:
        found = self._sizes.get(plain)
        if found is None:
            parts = plain if isinstance(plain, tuple) else (plain,)
            if not all(abs(part) < LARGEST for part in parts):
                raise SchemaError(f"has the size {quoted(plain)}; expected a number, or [fixed, per_sample]")
            found = self._sizes[plain] = Affine(*parts)
        return found

    def _amount(self, plain: Size, op: _OpRecord) -> Affine:
        """A size that is not negative at the batch of the trace."""
        found = self._amounts.get(plain)
        if found is None:
            with raised_as(SchemaError, f"{_named(op)} "):
                found = self._size(plain)
            if found.at(self.local_batch) < 0:
                raise SchemaError(f"{_named(op)} does a negative number of operations; expected none or more")
            self._amounts[plain] = found
        return found


def _compiled(record: _CompiledRecord) -> Compiled:
    sent = record.exchange
    exchange = None if sent is None else CompiledCollective(**structs.asdict(sent))
    return Compiled(**structs.asdict(record) | {"exchange": exchange})


def _check_order(records: Sequence[_OpRecord]) -> None:
    """Every operation reads what operations before it made."""
    made_at: dict[int, int] = {}
    for index, op in enumerate(records):
        for write in op.writes:
            made_at.setdefault(write, index)
    for index, op in enumerate(records):
        for read in op.reads:
            if made_at.get(read, -1) >= index:
                raise SchemaError(
                    f"{_named(op)} reads tensor {read}, which is made later; expected the program's order"
                )


def _check_references(record: _WorkloadRecord) -> None:
    """Every position is one of a tensor."""
    ops = _all(record.ops)
    columns: list[Callable[[_OpRecord], tuple[int, ...]]] = [lambda op: op.reads, lambda op: op.writes]
    columns.append(lambda op: op.results)
    largest = [max(chain.from_iterable(map(column, ops)), default=-1) for column in columns]
    largest += [max(positions, default=-1) for positions in (record.inputs, record.outputs)]
    largest += [max(tensor, result) for _, _, tensor, result in record.variables]
    if max(largest) >= len(record.tensors):
        raise SchemaError(f"it names tensor {max(largest)}, but has {len(record.tensors)}")


def _all(records: Iterable[_OpRecord]) -> list[_OpRecord]:
    found = list(records)
    for record in found:  # which grows
        if record.body:
            found.extend(record.body)
    return found


def _check_operands(op: _OpRecord, ranks: Sequence[int]) -> None:
    kind, least = op.kind, _MIN_READS[op.kind]
    if len(op.reads) < least or not op.writes:
        raise SchemaError(
            f"{_named(op)} reads {len(op.reads)} tensors and writes {len(op.writes)}; expected at least {least} and 1"
        )
    sizes = _GEMM_SIZES if kind in _WITH_GEMM else 0
    if len(op.gemm) != sizes:
        raise SchemaError(f"{_named(op)} has {len(op.gemm)} sizes of a matrix product; expected {sizes}")
    operands = _EQUAL_RANK_KINDS.get(kind) or _EQUAL_RANK_PRIMITIVES.get(op.primitive)
    if operands:
        found = [ranks[end] for end in (*op.reads[:operands], *op.writes)]
        if len(set(found)) > 1:
            dimensions = " and ".join(map(str, found))
            raise SchemaError(f"{_named(op)} has operands of {dimensions} dimensions; expected as many in each")


def _check_totals(workload: Workload) -> None:
    """Bytes and FLOPs at the batch of the trace are less than any machine has."""
    local_batch = workload.local_batch
    total = sum(size.at(local_batch) for size in workload.sizes)
    if not total < LARGEST_BYTES:
        raise SchemaError(f"its tensors take {total:.3g} bytes; expected less than {LARGEST_BYTES:.3g}")
    flops = workload.flops.at(local_batch)
    if not flops < LARGEST_FLOPS:
        raise SchemaError(f"it takes {flops:.3g} floating-point operations; expected less than {LARGEST_FLOPS:g}")


def _named(op: _OpRecord) -> str:
    return f"{op.primitive} of {op.layer}" if op.layer else op.primitive
