"""Expands the gradient of max-pooling (select-and-scatter) as XLA does on GPUs and CPUs.

There is no kernel for it. XLA finds the position of every maximum anew (a window operation with one index a dimension
as further results) and scatters the incoming gradient into zeros. Zeros of one shape are one array for the whole step,
the zeros that a ReLU of that shape compares with included, and so they exist from the first such ReLU on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from cost_models.workload.affine import Affine
from cost_models.workload.workload import POOL_SCATTER, Kind, Op, Phase, Tensor, Workload
from cost_models.xla.dataflow import ZEROS_FOR_POOLING
from cost_models.xla.profile import Profile
from cost_models.xla.rules import rule

_AGAINST_ZERO = frozenset({"max", "gt", "ge"})  # with a constant: ReLU, ELU, LeakyReLU and their like
_ADDITIONS = frozenset({"add", "add_any"})
_Shape = tuple[str, tuple[Affine, ...]]


@rule("select-and-scatter", source="SelectAndScatterExpander")
def select_and_scatter(
    workload: Workload, profile: Profile, local_batch: int, *, writes_iota: bool = False
) -> Workload:
    """Return the workload with positions, zeros and a scatter in place of each gradient of max-pooling.

    writes_iota  constants of counting numbers are written to memory
    """
    if not any(op.kind is Kind.POOL_GRADIENT for op in workload.ops):
        return workload
    return _Pooling(workload, writes_iota).lowered()


@dataclass
class _Pooling:
    """Replaces each gradient of pooling by positions, zeros and a scatter."""

    workload: Workload
    writes_iota: bool
    tensors: list[Tensor] = field(default_factory=list)
    before: dict[int, list[Op]] = field(default_factory=dict)
    zeros: dict[_Shape, int] = field(default_factory=dict)

    def lowered(self) -> Workload:
        self.tensors = list(self.workload.tensors)
        ops = self.workload.ops
        made_by = {write: index for index, op in enumerate(ops) for write in op.writes}
        readers: dict[int, list[int]] = {}
        for index, op in enumerate(ops):
            for read in op.reads:
                readers.setdefault(read, []).append(index)
        for index, op in enumerate(ops):
            if op.kind is Kind.POOL_GRADIENT:
                only = readers.get(op.writes[0], [])
                into_sum = [ops[reader].primitive in _ADDITIONS for reader in only] == [True]
                relu = op.reads[1] in made_by and ops[made_by[op.reads[1]]].primitive == "max"
                self._replace(index, op, into_sum=into_sum, of_relu=made_by.get(op.reads[1]) if relu else None)
        return replace(self.workload, tensors=tuple(self.tensors), ops=tuple(self._ops()))

    def _replace(self, index: int, op: Op, *, into_sum: bool, of_relu: int | None) -> None:
        """Replace a gradient of pooling by positions and a scatter.

        The scatter adds into the tensor that its result is only added to, else into zeros.
        """
        incoming, operand = op.reads[:2]
        found = self._positions(op, incoming, operand)
        target: tuple[int, ...] = ()
        if not into_sum:
            zeros = self._zeros(self.tensors[op.writes[0]], index)
            target = (self._copy(index if of_relu is None else of_relu, zeros),) if self._shared(zeros) else (zeros,)
        scatter = replace(op, kind=Kind.SCATTER, primitive=POOL_SCATTER, reads=(*target, incoming, *found.writes))
        self.before.setdefault(index, []).extend([found, scatter])

    def _positions(self, op: Op, incoming: int, operand: int) -> Op:
        pooled, source = self.tensors[incoming], self.tensors[operand]
        writes = [self._new(Tensor(source.dtype, pooled.shape))]
        writes += [self._new(Tensor("int32", pooled.shape)) for _ in pooled.shape]
        reads = (operand, *(self._iota(source.shape) for _ in source.shape if self.writes_iota))
        return replace(op, kind=Kind.POOL, primitive="reduce_window", reads=reads, writes=tuple(writes))

    def _iota(self, shape: tuple[Affine, ...]) -> int:
        made = self._new(Tensor("int32", shape))
        self.before.setdefault(0, []).append(Op(Kind.BROADCAST, "iota", (), (made,), layer="positions for pooling"))
        return made

    def _zeros(self, like: Tensor, index: int) -> int:
        key = like.dtype, like.shape
        if key not in self.zeros:
            made = self.zeros[key] = self._new(like)
            first = self._first_use(key, index)
            phase = self.workload.ops[first].phase
            zeros = Op(Kind.BROADCAST, "broadcast_in_dim", (), (made,), layer=ZEROS_FOR_POOLING, phase=phase)
            self.before.setdefault(first, []).insert(0, zeros)
        return self.zeros[key]

    def _first_use(self, key: _Shape, scatter: int) -> int:
        """Return the index of the first ReLU of that shape, else that of the scatter."""
        relus = (index for index, op in enumerate(self.workload.ops) if self._is_relu(op, key))
        return next(relus, scatter)

    def _is_relu(self, op: Op, key: _Shape) -> bool:
        if op.primitive not in _AGAINST_ZERO or op.phase is not Phase.FORWARD or len(op.reads) != 1:
            return False
        compared = self.workload.tensors[op.reads[0]]
        return (compared.dtype, compared.shape) == key

    def _shared(self, zeros: int) -> bool:
        like = self.tensors[zeros]
        return any(self._is_relu(op, (like.dtype, like.shape)) for op in self.workload.ops)

    def _copy(self, place: int, zeros: int) -> int:
        """Copy zeros that have other readers: a scatter overwrites its target."""
        copy = self._new(self.tensors[zeros])
        at = self.workload.ops[place]
        made = Op(Kind.COPY, "copy", (zeros,), (copy,), layer=ZEROS_FOR_POOLING, phase=at.phase)
        self.before.setdefault(place, []).append(made)
        return copy

    def _new(self, tensor: Tensor) -> int:
        self.tensors.append(tensor)
        return len(self.tensors) - 1

    def _ops(self) -> Iterable[Op]:
        for index, op in enumerate(self.workload.ops):
            yield from self.before.get(index, ())
            shared = next((zeros for key, zeros in self.zeros.items() if self._is_relu(op, key)), None)
            if shared is not None:
                yield replace(op, reads=(*op.reads, shared))
            elif op.kind is not Kind.POOL_GRADIENT:
                yield op
