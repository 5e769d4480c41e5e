"""Reads compiled HLO text into a Workload, so that the same roofline prices traced and compiled programs.

Every executed instruction is an operation, in the order of the schedule; fusion is already done. Its cost is in
`Op.compiled` and in its FLOPs. An instruction or library call without a rule is priced by its bytes and listed in
`unknown_ops`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from cost_models.errors import WorkloadError
from cost_models.hlo.collectives import Lines
from cost_models.hlo.instruction_cost import branches_of
from cost_models.hlo.parser import Computation, Instruction, Module, parse
from cost_models.hlo.program import Numbers, Program, flat
from cost_models.hlo.while_loops import trip_count
from cost_models.workload.workload import Op, Role, UnknownOp, Variable, Workload

_FOUND_IN_TEXT = "as the compiler scheduled it"


@dataclass(frozen=True, slots=True)
class CollectiveCount:
    """Collectives of one kind along one axis in one micro-step; those in loops count once per iteration.

    count   launches (a launch may carry several arrays)
    bytes   payload of the full arrays (`parallel/collectives.py`) of all launches
    arrays  arrays of all launches
    """

    kind: str
    axis: str
    devices: int
    count: int
    bytes: int
    arrays: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for messages and `--format json`."""
        return asdict(self)


def workload_of(
    text: str | Module,
    *,
    axes: Mapping[str, int],
    local_batch: int,
    precision: str,
    remat: str,
    attention: str = "auto",
    backend: str = "jax",
) -> Workload:
    """Return one micro-step on one device as its compiler scheduled it.

    text    text of `jax.jit(...).lower(...).compile().as_text()`, for a TPU, a GPU or a CPU
    axes    sizes of the mesh that it was compiled for, in order, as {"data": 4, "model": 2}; {} for one device

    The other arguments describe the configuration; sizes hold at `local_batch` alone. WorkloadError for a text that is
    not compiled HLO or is damaged, and for a mesh of another size.
    """
    with _readable():
        module = _module(text)
        program = Program(module, Lines(axes, module.devices))
        taken, ops, result = program.entry()
    return Workload(
        local_batch=local_batch,
        precision=precision,
        remat=remat,
        attention=attention,
        backend=backend,
        tensors=tuple(program.tensors),
        ops=tuple(ops),
        variables=_variables(module, taken, list(flat(result))),
        inputs=tuple(flat(tuple(taken))),
        outputs=tuple(flat(result)),
        batch_exact=True,
        unknown_ops=tuple(UnknownOp(name, count, reason) for (name, reason), count in sorted(program.unknown.items())),
        notes=(f"holds at a local batch of {local_batch} alone: {_FOUND_IN_TEXT}",),
    )


def collectives(program: str | Module | Workload, axes: Mapping[str, int]) -> tuple[CollectiveCount, ...]:
    """Return the collectives of one micro-step by kind and axis. Errors as `workload_of`."""
    if isinstance(program, Workload):
        ops: Sequence[Op] = program.ops
    else:
        with _readable():
            module = _module(program)
            ops = Program(module, Lines(axes, module.devices)).entry()[1]
    found: dict[tuple[str, str, int], Counter[str]] = {}
    _collect(ops, 1, found)
    return tuple(
        CollectiveCount(*key, totals["count"], totals["bytes"], totals["arrays"])
        for key, totals in sorted(found.items())
    )


def estimated_cycles(text: str | Module) -> int | None:
    """Return XLA:TPU's own estimate of the micro-step in clock cycles, with loops by their trip counts.

    It covers instructions with an estimate, which collectives and copies between memories have not. None where no
    instruction has one.
    """
    with _readable():
        module = _module(text)
        return _cycles(module.entry, module)


@contextmanager
def _readable() -> Iterator[None]:
    """Turn any other error of reading into a WorkloadError: the text is damaged."""
    try:
        yield
    except RecursionError:
        raise WorkloadError("the compiled text cannot be read: a computation in it calls itself") from None
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise WorkloadError(
            f"the compiled text cannot be read ({type(error).__name__}: {error}); give all of compile().as_text()"
        ) from None


def _module(text: str | Module) -> Module:
    return text if isinstance(text, Module) else parse(text)


def _variables(module: Module, taken: Sequence[Numbers], results: Sequence[int]) -> tuple[Variable, ...]:
    """Return the donated parameters whose buffer an output reuses. Their roles are not in the text."""
    parameters = module.entry.parameters
    return tuple(
        Variable(parameters[number].op_name or parameters[number].name, Role.STATE, tensor, results[place])
        for place, number in module.aliases
        if place < len(results) and number < len(taken) and isinstance(tensor := taken[number], int)
    )


def _collect(ops: Sequence[Op], runs: int, found: dict[tuple[str, str, int], Counter[str]]) -> None:
    for op in ops:
        _collect(op.body, runs * op.repeat, found)
        exchange = op.compiled.exchange if op.compiled else None
        if exchange is not None:
            totals = found.setdefault((exchange.kind, exchange.axis, exchange.devices), Counter())
            totals.update(count=runs, bytes=runs * exchange.payload_bytes, arrays=runs * exchange.arrays)


def _cycles(body: Computation, module: Module) -> int | None:
    known = [found for one in body.instructions if (found := _own_cycles(one, body, module)) is not None]
    return sum(known) if known else None


def _own_cycles(instruction: Instruction, inside: Computation, module: Module) -> int | None:
    if instruction.opcode == "while":
        once = _cycles(module.called(instruction.attributes.get("body", "")), module)
        runs = trip_count(instruction, inside, module)
        return None if once is None else once * (1 if runs is None else runs)
    if instruction.opcode == "conditional":
        branches = (_cycles(branch, module) for branch in branches_of(instruction, module))
        return max((cycles for cycles in branches if cycles is not None), default=None)
    if instruction.opcode == "call":
        return _cycles(module.called(instruction.called), module)
    config = instruction.backend_config.get("window_config")
    stated = config.get("estimated_cycles") if isinstance(config, Mapping) else None
    return int(stated) if stated is not None and str(stated).isdigit() else None
