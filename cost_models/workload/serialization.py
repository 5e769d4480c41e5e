"""What a workload file may say: plain values -> a Workload, every value checked once, where it comes in.

Pricing looks values up by position, so what a trace never writes (an operation without a result, a product of a matrix
and nothing, an operation that reads what a later one makes) is refused here rather than met there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any, TypeVar

from cost_models.errors import SchemaError, WorkloadError
from cost_models.validation import Reader, flag, optional, quoted, raised_as, read_mapping, several, text
from cost_models.workload.affine import Affine
from cost_models.workload.compiled_op import Compiled, Exchange
from cost_models.workload.workload import SCHEMA, Kind, Op, Phase, Role, Tensor, UnknownOp, Variable, Workload, walk

LARGEST_COUNT = 2**53
"""Whole numbers from here on are no numbers of anything in a training step."""
LARGEST_BYTES = 2**60
LARGEST_FLOPS = 1e27
DEEPEST = 32
"""Bodies within bodies."""

Member = TypeVar("Member", bound=StrEnum)

_GEMM = 4
_SAME_RANK = frozenset({"pad", "pad_unevenly", "rev", "slice"})
_LEAST_READS: Mapping[Kind, int] = {
    **dict.fromkeys((Kind.DOT, Kind.CONV, Kind.GATHER, Kind.POOL_GRADIENT), 2),
    **dict.fromkeys((Kind.POOL, Kind.SCATTER, Kind.SORT, Kind.CUMULATIVE, Kind.MOVE, Kind.VIEW, Kind.COPY), 1),
}


def read(data: object) -> Workload:
    """The inverse of `Workload.to_dict`. WorkloadError for anything that it does not write."""
    if not isinstance(data, Mapping):
        raise WorkloadError(f"a workload is a mapping, and this is {quoted(data)}; trace the model again")
    if isinstance(data.get("schema"), bool) or data.get("schema") != SCHEMA:
        raise WorkloadError(f"a workload of schema {quoted(data.get('schema'))}; this version reads schema {SCHEMA}")
    with raised_as(WorkloadError, "a workload that cannot be read: ", "; trace the model again"):
        values = read_mapping(data, "workload", _WORKLOAD, required=tuple(_WORKLOAD))
        del values["schema"]
        workload = Workload(**values)
        _check_tensors(workload)
        _check_references(workload)
        _check_ops(workload, workload.ops)
        _check_work(workload)
    return workload


def count(value: object, where: str) -> int:
    """How many of something: a whole number that is written as one."""
    if type(value) is not int or not 0 <= value < LARGEST_COUNT:
        raise SchemaError(f"{where} is {quoted(value)}; expected a whole number")
    return value


def _counted(value: object, where: str) -> int:
    if count(value, where) < 1:
        raise SchemaError(f"{where} is {value}; expected a whole number of at least 1")
    return count(value, where)


def _size(value: object, where: str) -> Affine:
    try:
        return Affine.from_plain(value)
    except WorkloadError:
        raise SchemaError(f"{where} is {quoted(value)}; expected a number, or [fixed, per_sample]") from None


def _member(kind: type[Member]) -> Callable[[object, str], Member]:
    """A reader of the words of an enumeration."""
    known = {one.value: one for one in kind}

    def read_member(value: object, where: str) -> Member:
        found = known.get(value) if isinstance(value, str) else None
        if found is None:
            raise SchemaError(f"{where} is {quoted(value)}; expected one of {', '.join(known)}")
        return found

    return read_member


def _row(*readers: Reader) -> Callable[[object, str], tuple[Any, ...]]:
    """A reader of lists that have one value for each of these readers."""

    def read_row(value: object, where: str) -> tuple[Any, ...]:
        if not isinstance(value, (list, tuple)) or len(value) != len(readers):
            raise SchemaError(f"{where} is {quoted(value)}; expected a list of {len(readers)}")
        return tuple(
            reader(item, f"{where}[{at}]") for at, (reader, item) in enumerate(zip(readers, value, strict=True))
        )

    return read_row


def _tensor(value: object, where: str) -> Tensor:
    return Tensor(*_row(text, several(_size))(value, where))


def _variable(value: object, where: str) -> Variable:
    return Variable(*_row(text, _member(Role), count, count)(value, where))


def _unknown_op(value: object, where: str) -> UnknownOp:
    readers: dict[str, Reader] = {"primitive": text, "count": count, "reason": text}
    return UnknownOp(**read_mapping(value, where, readers, required=("primitive", "count")))


def _exchange(value: object, where: str) -> Exchange:
    return Exchange(**read_mapping(value, where, _EXCHANGE, required=tuple(_EXCHANGE)))


def _compiled(value: object, where: str) -> Compiled:
    return Compiled(**read_mapping(value, where, _COMPILED, required=tuple(_COMPILED)))


def _op(value: object, where: str) -> Op:
    if where.count(".body") > DEEPEST:
        raise SchemaError(f"{where} lies in more than {DEEPEST} bodies; expected fewer")
    return Op(**read_mapping(value, where, _OP, required=("kind", "primitive", "phase", "reads", "writes")))


_EXCHANGE: dict[str, Reader] = {
    "kind": text,
    "axis": text,
    "devices": _counted,
    "stride": _counted,
    "payload_bytes": count,
    "arrays": _counted,
}
_COMPILED: dict[str, Reader] = {
    "moved_bytes": count,
    "product_flops": count,
    "dtype": text,
    "exchange": optional(_exchange),
    "covers": count,
    "launches": count,
}
_OP: dict[str, Reader] = {
    "kind": _member(Kind),
    "primitive": text,
    "phase": _member(Phase),
    "reads": several(count),
    "writes": several(count),
    "flops": _size,
    "gemm": several(_size),
    "repeat": _counted,
    "results": several(count),
    "body": several(_op),
    "layer": text,
    "region": count,
    "compiled": _compiled,
}
_WORKLOAD: dict[str, Reader] = {
    "schema": count,
    "local_batch": _counted,
    "batch_exact": flag,
    "precision": text,
    "remat": text,
    "backend": text,
    "dispatches": count,
    "optimizer": text,
    "tensors": several(_tensor),
    "ops": several(_op),
    "variables": several(_variable),
    "inputs": several(count),
    "outputs": several(count),
    "unknown_ops": several(_unknown_op),
    "notes": several(text),
}


def _check_tensors(workload: Workload) -> None:
    """Dimensions are whole and not negative at the batch of the trace, and all of them together could be somewhere."""
    batch, total = workload.local_batch, 0.0
    for number, tensor in enumerate(workload.tensors):
        if any(size < 0 or size != round(size) for size in (round(dim.at(batch), 6) for dim in tensor.shape)):
            shape = ", ".join(str(dim.to_plain()) for dim in tensor.shape)
            raise SchemaError(
                f"tensors[{number}] has the shape ({shape}); expected whole numbers at a local batch of {batch}"
            )
        total += tensor.bytes.at(batch)
    if not total < LARGEST_BYTES:
        raise SchemaError(f"its tensors take {total:.3g} bytes; expected less than {LARGEST_BYTES:.3g}")


def _check_references(workload: Workload) -> None:
    known = len(workload.tensors)
    used = [*workload.inputs, *workload.outputs, *(end for v in workload.variables for end in (v.tensor, v.result))]
    used += [end for op in walk(workload.ops) for end in (*op.reads, *op.writes, *op.results)]
    if used and max(used) >= known:
        raise SchemaError(f"it names tensor {max(used)}, but has {known}")


def _check_ops(workload: Workload, ops: Iterable[Op]) -> None:
    """Every operation of a body has what its kind needs, and reads nothing that itself or a later one makes."""
    made_at: dict[int, int] = {}
    for at, op in enumerate(ops):
        for write in op.writes:
            made_at.setdefault(write, at)
    for at, op in enumerate(ops):
        late = next((read for read in op.reads if made_at.get(read, -1) >= at), None)
        if late is not None:
            raise SchemaError(f"{_named(op)} reads tensor {late}, which is made later; expected the program's order")
        if op.compiled is None:
            _check_operands(workload, op)
        _check_ops(workload, op.body)


def _check_operands(workload: Workload, op: Op) -> None:
    least = _LEAST_READS.get(op.kind, 0)
    if len(op.reads) < least or not op.writes:
        raise SchemaError(
            f"{_named(op)} reads {len(op.reads)} tensors and writes {len(op.writes)}; expected at least {least} and 1"
        )
    if len(op.gemm) != _GEMM * op.kind.is_product:
        raise SchemaError(
            f"{_named(op)} has {len(op.gemm)} sizes of a matrix product; expected {_GEMM * op.kind.is_product}"
        )
    ends = _of_one_rank(op)
    if len({len(workload.tensors[end].shape) for end in ends}) > 1:
        shapes = " and ".join(str(len(workload.tensors[end].shape)) for end in ends)
        raise SchemaError(f"{_named(op)} has operands of {shapes} dimensions; expected as many in each")


def _of_one_rank(op: Op) -> tuple[int, ...]:
    """The operands and results of an operation that have equally many dimensions."""
    if op.kind in (Kind.CONV, Kind.POOL_GRADIENT):
        return (*op.reads[:2], *op.writes)
    if op.kind is Kind.POOL or op.primitive in _SAME_RANK:
        return (*op.reads[:1], *op.writes)
    return ()


def _check_work(workload: Workload) -> None:
    """Work is not negative at the batch of the trace, and a machine could do it."""
    batch = workload.local_batch
    for op in walk(workload.ops):
        if min((size.at(batch) for size in (op.flops, *op.gemm)), default=0) < 0:
            raise SchemaError(f"{_named(op)} does a negative number of operations; expected none or more")
    if not workload.flops.at(batch) < LARGEST_FLOPS:
        raise SchemaError(
            f"it takes {workload.flops.at(batch):.3g} floating-point operations; expected less than {LARGEST_FLOPS:g}"
        )


def _named(op: Op) -> str:
    return f"{op.primitive} of {op.layer}" if op.layer else op.primitive
