"""Workload -> Workload: operations that a compiler replaces by others before it fuses anything.

XLA on GPUs has no kernel for the gradient of max-pooling. It finds the position of every maximum anew (a window
operation with one index a dimension as further results) and scatters the incoming gradient into zeros. Zeros of one
shape are one array for the whole step, the
zeros that a ReLU of that shape compares with included, and so they exist from the first such ReLU on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from cost_models.workload.affine import Affine
from cost_models.workload.workload import (
    CONVERT,
    PADDED_COPY,
    POOL_SCATTER,
    RELAYOUT,
    UNEVEN_PAD,
    Kind,
    Op,
    Phase,
    Role,
    Tensor,
    Workload,
)
from cost_models.xla.passes.conv_operand_swap import with_swapped_operands
from cost_models.xla.passes.conv_padding import (
    with_dilated_gradients,
    with_gradients_own_padding,
    with_shared_padding,
    without_cropping,
)
from cost_models.xla.passes.conv_side_input import with_side_inputs
from cost_models.xla.passes.cpu_simplifier import rewritten
from cost_models.xla.passes.cse import without_repeats
from cost_models.xla.passes.embedding_layout import with_whole_rows
from cost_models.xla.passes.explicit_broadcasts import with_broadcasts
from cost_models.xla.passes.float_normalization import widened
from cost_models.xla.passes.polynomial_expansion import as_polynomials
from cost_models.xla.passes.relu_mask_packing import MOST_SAMPLES, with_packed_masks
from cost_models.xla.target import Target
from cost_models.xla.tiling import convolutional_shapes

_AGAINST_ZERO = frozenset({"max", "gt", "ge"})  # with a constant: ReLU, ELU, LeakyReLU and their like
_ADDITIONS = frozenset({"add", "add_any"})
_PADS = ("pad", UNEVEN_PAD)
_PARTS = frozenset({"transpose", "dynamic_slice"})  # rearrange what they read or take a part of it
ZEROS_FOR_POOLING = "zeros for pooling"
"""The layer that these and their copies are said to be of."""
_Shape = tuple[str, tuple[Affine, ...]]


def lower(workload: Workload, target: Target, batch: int | None = None) -> Workload:
    """The workload as this target's compiler sees it when it starts to fuse, at a local batch (None: the trace's)."""
    if (workload.local_batch if batch is None else batch) <= MOST_SAMPLES:
        workload = with_packed_masks(workload, target)
    if target.product_dtype:
        workload = _rounded(workload, target.product_dtype)
    if target.copies_images:
        workload = _with_copied_images(workload, target.product_dtype)
    if target.tile_lanes:
        workload = with_whole_rows(workload, target.tile_lanes, target.tile_rows, target.on_chip_bytes)
        workload = _with_moved_features(workload)
    if target.copies_kernels:
        workload = with_swapped_operands(with_shared_padding(without_cropping(workload)))
        workload = with_dilated_gradients(with_gradients_own_padding(workload))
        workload = _with_copied_kernels(workload)
    if target.adds_beside:
        workload = with_side_inputs(workload)
    if target.scatters_pooling and any(op.kind is Kind.POOL_GRADIENT for op in workload.ops):
        workload = _Pooling(workload, target.writes_iota, target.pools_on_padded).lowered()
    if target.rewrites:
        workload = without_repeats(rewritten(workload))
    if target.widens:
        workload = widened(workload, target.narrow, target.native, target.products_widen, target.rounds)
    if target.rewrites:
        workload = as_polynomials(workload)
    return without_repeats(with_broadcasts(workload)) if target.recomputes else workload


def _with_copied_kernels(workload: Workload) -> Workload:
    """The weights of convolutions are copied into the library's layout; forward and backward share the copy.

    Weights that are converted anyway are laid out as they are converted.
    """
    named = {v.tensor: v.tensor for v in workload.variables if v.role is Role.TRAINABLE}
    tensors = list(workload.tensors)
    copies: dict[int, int] = {}
    ops: list[Op] = []
    for op in workload.ops:
        if (op.kind is Kind.VIEW or op.primitive == "rev") and op.reads and op.reads[0] in named:
            named[op.writes[0]] = named[op.reads[0]]
        weights = [named[read] for read in op.reads if read in named] if op.kind is Kind.CONV else []
        for weight in weights:
            if weight not in copies:
                copies[weight] = len(tensors)
                tensors.append(tensors[weight])
                ops.append(Op(Kind.COPY, "copy", (weight,), (copies[weight],), phase=op.phase, layer=op.layer))
        ops.append(replace(op, reads=tuple(copies[named[r]] if r in named else r for r in op.reads)) if weights else op)
    return replace(workload, tensors=tuple(tensors), ops=tuple(ops)) if copies else workload


def _with_copied_images(workload: Workload, dtype: str | None) -> Workload:
    """What comes from outside into convolutions is copied once into their layout, as they round it.

    It may be converted or padded on its way; forward and backward share the copy.
    """
    named = {end: end for end in workload.inputs}
    unpadded = dict(named)
    tensors = list(workload.tensors)
    copies: dict[int, int] = {}
    ops: list[Op] = []
    for op in workload.ops:
        if op.reads and op.reads[0] in named and (op.kind is Kind.VIEW or op.primitive in (CONVERT, *_PADS)):
            named[op.writes[0]] = named[op.reads[0]]
            unpadded[op.writes[0]] = unpadded[op.reads[0]] if op.primitive in _PADS else op.writes[0]
        images = [read for read in op.reads if read in named] if op.kind is Kind.CONV else []
        for image in images:
            if named[image] not in copies:
                copies[named[image]] = len(tensors)
                own = tensors[unpadded[image]]
                tensors.append(replace(own, dtype=dtype) if dtype and own.dtype == "float32" else own)
                made = (copies[named[image]],)
                ops.append(Op(Kind.COPY, "copy", (named[image],), made, phase=op.phase, layer=op.layer))
        reads = tuple(copies[named[read]] if read in images else read for read in op.reads)
        ops.append(replace(op, reads=reads) if images else op)
    return replace(workload, tensors=tuple(tensors), ops=tuple(ops)) if copies else workload


def _with_moved_features(workload: Workload) -> Workload:
    """A reshape that takes the features of images apart or joins them to others moves them: they lie across tiles.

    What is only converted afterwards is converted before it is moved.
    """
    images = convolutional_shapes(workload)

    def moves(op: Op) -> bool:
        if op.primitive != "reshape" or not op.reads:
            return False
        source, made = (workload.tensors[end].shape for end in (op.reads[0], op.writes[0]))
        return min(len(source), len(made)) > 1 and source[-1] != made[-1] and bool({source, made} & images)

    moved = {op.writes[0] for op in workload.ops if moves(op)}
    if not moved:
        return workload
    tensors = list(workload.tensors)
    for tensor, dtype in _converted_to(workload, moved).items():
        tensors[tensor] = replace(tensors[tensor], dtype=dtype)
    ops = (replace(op, kind=Kind.MOVE, primitive=RELAYOUT) if moves(op) else op for op in workload.ops)
    return replace(workload, tensors=tuple(tensors), ops=tuple(ops))


def _converted_to(workload: Workload, tensors: set[int]) -> dict[int, str]:
    """The dtype to which all that reads one of these tensors converts it, where that is so."""
    found: dict[int, set[str]] = {}
    for op in workload.ops:
        for read in tensors.intersection(op.reads):
            found.setdefault(read, set()).add(workload.tensors[op.writes[0]].dtype if op.primitive == CONVERT else "")
    return {tensor: min(dtypes) for tensor, dtypes in found.items() if len(dtypes) == 1 and dtypes != {""}}


def _rounded(workload: Workload, dtype: str) -> Workload:
    """What only products read is kept as these round it. Sums over it do not count: they run where it is made."""
    lasting = {end for v in workload.variables for end in (v.tensor, v.result)} | {*workload.inputs, *workload.outputs}
    to_products: dict[int, bool] = dict.fromkeys(lasting, False)
    _note_products(workload.ops, to_products)
    tensors = tuple(
        replace(tensor, dtype=dtype) if tensor.dtype == "float32" and to_products.get(number, False) else tensor
        for number, tensor in enumerate(workload.tensors)
    )
    return replace(workload, tensors=tensors)


def _note_products(ops: Sequence[Op], to_products: dict[int, bool]) -> None:
    """Whether products alone read each tensor: also by way of a loop that takes a part of it in each iteration."""
    for op in reversed(ops):
        if op.kind is Kind.REDUCE:
            continue
        _note_products(op.body, to_products)
        inner = {read for one in op.body for read in one.reads}
        passes_on = op.kind is Kind.VIEW or op.primitive in _PARTS
        good = op.kind.is_product or (passes_on and all(to_products.get(write, False) for write in op.writes))
        for read in op.reads:
            if read not in inner:
                to_products[read] = to_products.get(read, True) and good


@dataclass
class _Pooling:
    """Replaces each gradient of pooling by positions, zeros and a scatter."""

    workload: Workload
    writes_iota: bool
    pads: bool
    tensors: list[Tensor] = field(default_factory=list)
    before: dict[int, list[Op]] = field(default_factory=dict)
    zeros: dict[_Shape, int] = field(default_factory=dict)
    dropped: set[int] = field(default_factory=set)

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
                if self.pads:
                    self._replace_on_padded(index, op, only[0] if into_sum else None)
                    continue
                relu = op.reads[1] in made_by and ops[made_by[op.reads[1]]].primitive == "max"
                self._replace(index, op, into_sum=into_sum, of_relu=made_by.get(op.reads[1]) if relu else None)
        return replace(self.workload, tensors=tuple(self.tensors), ops=tuple(self._ops()))

    def _replace(self, index: int, op: Op, *, into_sum: bool, of_relu: int | None) -> None:
        """A scatter whose result is only added to something scatters into that; else it needs zeros of its own."""
        incoming, operand = op.reads[:2]
        found = self._positions(op, incoming, operand)
        target: tuple[int, ...] = ()
        if not into_sum:
            zeros = self._zeros(self.tensors[op.writes[0]], index)
            target = (self._copy(index if of_relu is None else of_relu, zeros),) if self._shared(zeros) else (zeros,)
        scatter = replace(op, kind=Kind.SCATTER, primitive=POOL_SCATTER, reads=(*target, incoming, *found.writes))
        self.before.setdefault(index, []).extend([found, scatter])

    def _replace_on_padded(self, index: int, op: Op, addition: int | None) -> None:
        """The operand is padded first, the gradient scattered into zeros of that shape, and the padding cut off.

        Without padding, a gradient that is only added to another one (`addition`) is scattered into that.
        """
        incoming, operand = op.reads[:2]
        own, shape = self.tensors[op.writes[0]], self._padded(op)
        before = self.before.setdefault(index, [])
        scattered = op.writes[0]
        if shape != own.shape:
            scattered, padded = (self._new(replace(self.tensors[end], shape=shape)) for end in (scattered, operand))
            before.append(_moved(op, PADDED_COPY, operand, padded))
            operand = padded
        found = self._positions(op, incoming, operand)
        scatter = replace(op, kind=Kind.SCATTER, primitive=POOL_SCATTER, writes=(scattered,))
        before.append(found)
        if addition is not None and shape == own.shape:
            total = self.workload.ops[addition]
            other = next(read for read in total.reads if read != op.writes[0])
            scatter = replace(scatter, reads=(other, incoming, *found.writes), writes=total.writes)
            self.before.setdefault(addition, []).append(scatter)
            self.dropped.add(addition)
            return
        zeros = self._zeros(self.tensors[scattered], index)
        before.append(replace(scatter, reads=(zeros, incoming, *found.writes)))
        if scattered != op.writes[0]:
            before.append(_moved(op, "slice", scattered, op.writes[0]))

    def _padded(self, op: Op) -> tuple[Affine, ...]:
        """The shape that whole windows cover; the window's size is in the FLOPs of a pooling."""
        pooled, source = self.tensors[op.reads[0]], self.tensors[op.reads[1]]
        batch = self.workload.local_batch
        size = op.flops.at(batch) / (2 * pooled.elements.at(batch))
        smaller = [one != other for one, other in zip(pooled.shape, source.shape, strict=True)]
        window = round(size ** (1 / max(sum(smaller), 1)))

        def covered(made: Affine, whole: Affine) -> Affine:
            strides = range(1, int(whole.fixed) + 1)
            if any((whole.fixed - window) // stride + 1 == made.fixed for stride in strides):
                return whole
            stride = next(stride for stride in strides if -(-whole.fixed // stride) == made.fixed)
            return Affine(max(whole.fixed, (made.fixed - 1) * stride + window))

        pairs = zip(pooled.shape, source.shape, smaller, strict=True)
        return tuple(covered(made, whole) if less else whole for made, whole, less in pairs)

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
        """The first ReLU of that shape, else the scatter into them."""
        if self.pads:
            return 0
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
        """A scatter destroys what it scatters into; other readers keep the zeros."""
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
            if shared is not None and not self.pads:
                yield replace(op, reads=(*op.reads, shared))
            elif op.kind is not Kind.POOL_GRADIENT and index not in self.dropped:
                yield op


def _moved(op: Op, primitive: str, read: int, write: int) -> Op:
    """What moves elements beside an operation."""
    return replace(op, kind=Kind.MOVE, primitive=primitive, reads=(read,), writes=(write,), flops=Affine())
