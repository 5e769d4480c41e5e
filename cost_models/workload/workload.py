"""`Workload`, `Op`, `Tensor`: one training micro-step as plain values, with no framework in it.

A micro-step is what Keras's `fit` runs for one batch: forward, loss, backward, optimizer, metrics. It is a list of
`Op`s in program order over numbered `Tensor`s; sizes and FLOPs are `Affine` in the local batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import cached_property
from typing import Any

from cost_models.errors import WorkloadError
from cost_models.workload.affine import Affine
from cost_models.workload.compiled_op import Compiled

ITEM_BYTES: Mapping[str, float] = {
    "bool": 1, "int1": 0.125, "uint1": 0.125, "int2": 0.25, "uint2": 0.25, "int4": 0.5, "uint4": 0.5, "int8": 1,
    "uint8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8, "float4_e2m1fn": 0.5,
    "float8_e3m4": 1, "float8_e4m3": 1, "float8_e4m3fn": 1, "float8_e4m3fnuz": 1, "float8_e4m3b11fnuz": 1,
    "float8_e5m2": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1, "float16": 2, "bfloat16": 2, "float32": 4,
    "float64": 8, "complex64": 8, "complex128": 16, "key": 8, "token": 0,
}  # fmt: skip
"""Bytes of one element. `key` is a typed random key: two 32-bit words (threefry)."""


UNEVEN_PAD = "pad_unevenly"
"""Primitive of padding that adds more at one end than at the other; even padding is `pad`."""
POOL_SCATTER = "scatter_of_pooling"
"""Primitive of the scatter that replaces the gradient of max pooling in compilers that have none."""
FLATTEN = "flatten"
"""Primitive of the view of an operand of more dimensions as a GEMM's matrix."""
CONVERT = "convert_element_type"
"""Primitive of a cast to another dtype."""
NARROW_SUM = "narrow_sum"
"""Primitive of a windowed sum of 16-bit numbers that accumulates in float32."""
ACROSS = "read_across"
"""Primitive of a transposed read that is fused into the operation that reads it."""
ATTENTION_FORWARD, ATTENTION_BACKWARD = "attention_forward", "attention_backward"
"""Primitives of attention in one kernel for each pass."""
ATTENTION_QUERIES, ATTENTION_KEYS = "attention_backward_queries", "attention_backward_keys"
"""Primitives of a backward pass in two kernels: gradients of queries, and those of keys and values."""
ATTENTION_PRODUCTS = {ATTENTION_FORWARD: 2, ATTENTION_BACKWARD: 5, ATTENTION_QUERIES: 3, ATTENTION_KEYS: 4}
"""Products over pairs of queries and keys that a kernel runs: those of the backward pass compute the scores again."""
CAUSAL = "_causal"
"""Suffix of a primitive of attention in which no query sees later keys: kernels skip half of the pairs."""


LSTM_FORWARD, LSTM_BACKWARD = "lstm_forward", "lstm_backward"
"""Primitives of cuDNN's LSTM for each pass (`workload/lstm.py`)."""


class Kind(StrEnum):
    """Kind of an operation: the coarsest classification on which costs depend."""

    DOT = "dot"
    CONV = "conv"
    REDUCE = "reduce"
    ELEMENTWISE = "elementwise"
    EXPENSIVE = "expensive"  # elementwise with a long chain of arithmetic: erf_inv, lgamma, ...
    RANDOM = "random"
    VIEW = "view"  # the same buffer under another shape: reshape, a cast to the same dtype
    BROADCAST = "broadcast"  # larger than its operands: iota, broadcast
    MOVE = "move"  # copies in another order: transpose, slice, pad, concatenate, reverse
    COPY = "copy"
    GATHER = "gather"
    SCATTER = "scatter"
    SORT = "sort"
    CUMULATIVE = "cumulative"
    POOL = "pool"
    POOL_GRADIENT = "pool_gradient"
    LOOP = "loop"
    BRANCH = "branch"
    BARRIER = "barrier"  # all operands are complete before any result exists
    COLLECTIVE = "collective"
    ATTENTION = "attention"  # products, softmax and mask in one kernel, which writes no scores
    LSTM = "lstm"  # all steps of a recurrent layer in one call of a library
    CUSTOM = "custom"
    UNKNOWN = "unknown"

    @property
    def is_product(self) -> bool:
        """Whether matrix units compute it: a contraction or a convolution."""
        return self in (Kind.DOT, Kind.CONV)


class Phase(StrEnum):
    """Part of the micro-step to which an operation belongs."""

    FORWARD = "forward"
    BACKWARD = "backward"
    UPDATE = "update"


class Role(StrEnum):
    """Role of a variable in training."""

    TRAINABLE = "trainable"
    STATE = "state"
    SEED = "seed"
    METRIC = "metric"
    SLOT = "slot"
    ACCUMULATOR = "accumulator"
    EMA = "ema"
    LOSS_SCALE = "loss_scale"


_OF_OPTIMIZERS = frozenset({Role.SLOT, Role.ACCUMULATOR, Role.EMA, Role.LOSS_SCALE})


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of the micro-step. `shape` is in elements, outermost first; each dimension is linear in the batch."""

    dtype: str
    shape: tuple[Affine, ...]

    @property
    def item_bytes(self) -> float:
        """Bytes of one element. WorkloadError for a dtype whose size is not known."""
        try:
            return ITEM_BYTES[self.dtype]
        except KeyError:
            known = ", ".join(ITEM_BYTES)
            raise WorkloadError(f"a tensor of dtype {self.dtype!r} has no known size; known are {known}") from None

    @property
    def elements(self) -> Affine:
        """Number of elements. WorkloadError where two dimensions grow with the batch: their product is not linear."""
        scale = math.prod(dim.fixed for dim in self.shape if dim.constant)
        growing = [dim for dim in self.shape if not dim.constant]
        if len(growing) > 1:
            raise WorkloadError(f"a tensor of shape {self.shape} grows with the square of the batch; expected a line")
        return growing[0] * scale if growing else Affine(scale)

    @property
    def bytes(self) -> Affine:
        """Bytes without padding."""
        return self.elements * self.item_bytes


@dataclass(frozen=True, slots=True)
class Op:
    """One operation. `reads` and `writes` are indices into `Workload.tensors`.

    flops      floating-point operations of one execution; a multiply-add is two
    gemm       (groups, m, n, k) of a dot or of a convolution as a GEMM; of attention in one kernel that of its scores
               (samples x heads, queries, keys, head width); of an LSTM in one call that of a step; else ()
    repeat     trip count of a loop; 1 otherwise
    body       operations of one iteration (loops) or of the larger branch
    results    results of the body: carried values, or the branch's outputs
    region     0, or the number of the rematerialized region; no pass moves or merges operations across its border
    compiled   decisions of the compiler, in workloads read from a compiled program
    """

    kind: Kind
    primitive: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    flops: Affine = Affine()
    gemm: tuple[Affine, ...] = ()
    repeat: int = 1
    body: tuple[Op, ...] = ()
    results: tuple[int, ...] = ()
    phase: Phase = Phase.FORWARD
    layer: str = ""
    region: int = 0
    compiled: Compiled | None = None

    @property
    def total_flops(self) -> Affine:
        """FLOPs including bodies, each counted as often as it runs."""
        if not self.body:
            return self.flops
        inner = Affine.sum(op.total_flops for op in self.body) * self.repeat
        return self.flops + inner


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable: its role, the tensor that the step reads and the tensor that holds its new value."""

    path: str
    role: Role
    tensor: int
    result: int


@dataclass(frozen=True)
class UnknownOp:
    """Operations of a primitive without a rule. They are priced by their bytes, never free."""

    primitive: str
    count: int
    reason: str = "no rule: counted by the bytes that it reads and writes"

    def to_dict(self) -> dict[str, Any]:
        return {"primitive": self.primitive, "count": self.count, "reason": self.reason}


@dataclass(frozen=True, eq=False)
class Workload:
    """One micro-step.

    local_batch   local batch of the trace
    batch_exact   whether sizes hold at `local_batch` alone, because the step's structure changes with the batch
    dispatches    number of operations that run one by one without a compiler
    largest       the step on the largest batch, where batches of the data differ; this step is on the usual batch
    validation    the forward pass on the rows that are validated at once, where the script sets their number
    attention     whether Keras was free to compute attention in one kernel ("auto"), or not ("unfused")
    answers       what was asked of the device while the step and the other programs were traced, with the answers
                  (`hardware/platform.py`): the workload holds for platforms that answer alike; () holds for all
    """

    local_batch: int
    precision: str
    remat: str
    backend: str
    tensors: tuple[Tensor, ...]
    ops: tuple[Op, ...]
    variables: tuple[Variable, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    dispatches: int = 0
    batch_exact: bool = False
    optimizer: str = ""
    unknown_ops: tuple[UnknownOp, ...] = ()
    notes: tuple[str, ...] = ()
    largest: OtherBatch | None = None
    validation: OtherBatch | None = None
    attention: str = "auto"
    answers: tuple[tuple[str, bool], ...] = ()

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Workload) and self._values() == other._values())

    def __hash__(self) -> int:
        return self._hash

    def _values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, item.name) for item in fields(self))

    @cached_property
    def _hash(self) -> int:
        """Hash of the parts that differ most: caches hash a workload often, and a step has thousands of operations."""
        return hash((self.local_batch, self.precision, self.remat, len(self.ops), self.outputs, self.tensors))

    def check_batch(self, local_batch: int) -> None:
        """Raise WorkloadError where the workload does not hold at this local batch."""
        if self.batch_exact and local_batch != self.local_batch:
            raise WorkloadError(
                f"this training step changes its structure with the batch, so its trace at a local batch of "
                f"{self.local_batch} says nothing about {local_batch}; trace it again at that batch"
            )

    @cached_property
    def sizes(self) -> tuple[Affine, ...]:
        """Bytes of every tensor without padding."""
        distinct = {id(tensor): tensor for tensor in self.tensors}  # a step has few: its layers repeat
        sizes = {key: tensor.bytes for key, tensor in distinct.items()}
        return tuple([sizes[id(tensor)] for tensor in self.tensors])

    @cached_property
    def _bytes_by_role(self) -> Mapping[Role, float]:
        found = dict.fromkeys(Role, 0.0)
        for variable in self.variables:
            found[variable.role] += self.tensors[variable.tensor].bytes.fixed
        return found

    def variable_bytes(self, *roles: Role) -> int:
        """Return the bytes of the variables in these roles, without padding."""
        return round(sum(self._bytes_by_role[role] for role in roles))

    @property
    def parameters(self) -> int:
        """Number of trainable parameters."""
        chosen = (self.tensors[v.tensor] for v in self.variables if v.role is Role.TRAINABLE)
        return round(sum(tensor.elements.fixed for tensor in chosen))

    @cached_property
    def flops(self) -> Affine:
        """FLOPs of one micro-step on one device."""
        return Affine.sum(op.total_flops for op in self.ops)

    @cached_property
    def model_flops(self) -> Affine:
        """FLOPs of the model's GEMMs and convolutions: the numerator of MFU (PaLM, appendix B).

        Recomputation does not count. GEMMs of the optimizer (Muon's orthogonalization) do not count either: they belong
        to the update and do not grow with the batch. A forward pass after a backward pass, as of a GAN's second
        network, grows with the batch and counts. Where sizes hold at one batch alone, the name scope decides instead.
        Attention in one kernel counts as the products that it replaces, so that MFU does not depend on the kernel.
        """
        scopes = frozenset(v.path.partition("/")[0] for v in self.variables if v.role in _OF_OPTIMIZERS)
        return Affine.sum(_model_flops(op, scopes, lines=not self.batch_exact) for op in self.ops)


@dataclass(frozen=True)
class OtherBatch:
    """A program of the training that runs on another batch than the usual micro-step.

    step      the program
    rows      its rows on all devices
    usual     rows of the usual batch, in proportion to which the rows change; None if they do not change
    """

    step: Workload
    rows: int
    usual: int | None = None

    def local_rows(self, global_batch: int, data: int) -> int:
        """Return its rows on one of `data` devices under a global batch of the training."""
        rows = self.rows if self.usual is None else self.rows * global_batch / self.usual
        return max(1, math.ceil(rows / data))


_MODEL_PRODUCTS = {ATTENTION_FORWARD: 2, ATTENTION_BACKWARD: 4, ATTENTION_QUERIES: 2, ATTENTION_KEYS: 2}
"""Products of attention, by primitive, without those that compute scores again."""


def _attention_model_flops(op: Op) -> Affine:
    """Return the FLOPs of the products that attention in one kernel replaces, masked pairs included."""
    groups, *sizes = op.gemm
    product = groups * (2 * math.prod(size.fixed for size in sizes))
    return product * _MODEL_PRODUCTS.get(op.primitive.removesuffix(CAUSAL), 0)


def walk(ops: tuple[Op, ...]) -> list[Op]:
    """Return every operation, bodies included, in program order."""
    found: list[Op] = []
    for op in ops:
        found.append(op)
        found.extend(walk(op.body))
    return found


def _model_flops(op: Op, optimizers: frozenset[str], *, lines: bool) -> Affine:
    """Return the model's FLOPs of one operation. `lines`: whether sizes are linear functions of the batch."""
    if op.region and op.phase is Phase.FORWARD:  # recomputed: work, but not the model's
        return Affine()
    own = op.flops if op.kind.is_product or op.kind is Kind.LSTM else Affine()
    if op.kind is Kind.ATTENTION:
        own = _attention_model_flops(op)
    if op.compiled is not None:
        own = Affine(op.compiled.product_flops)
    if op.phase is Phase.UPDATE and (own.constant if lines else op.layer in optimizers):
        own = Affine()
    inner = Affine.sum(_model_flops(one, optimizers, lines=lines) for one in op.body)
    return own + inner * op.repeat
