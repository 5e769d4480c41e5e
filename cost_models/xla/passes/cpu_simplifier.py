"""Rewrites single operations as XLA:CPU does before fusion: random numbers, erfc, products with masks ..."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from cost_models.workload.affine import Affine
from cost_models.workload.workload import CONVERT, FLATTEN, Kind, Op, Phase, Tensor, Workload
from cost_models.xla.dataflow import LONG_CHAIN, MATRIX_RANK, WIDE, is_part_of_convolution
from cost_models.xla.profile import Profile
from cost_models.xla.rules import rule

_WORDS = 2
"""Words that threefry draws for a random number; both are written, and each reader makes the number of them."""


@rule("cpu-simplifier", source="AlgebraicSimplifier, TransposeFolding and the ERFC expansion of XLA:CPU")
def cpu_simplifier(workload: Workload, profile: Profile, local_batch: int) -> Workload:
    """Return the workload with random words, the parts of erfc, selections instead of products with masks, and
    transposed operands."""
    made = _Rewriting(list(workload.tensors), workload.local_batch)
    ops = tuple(made.ops(workload.ops))
    return replace(workload, tensors=tuple(made.tensors), ops=ops)


class _Rewriting:
    """Operands of earlier operations, by their results.

    mask_of  the mask that a number was converted from
    bounded  the value of which this is the maximum with a constant, in float32
    largest  results of reductions to a maximum
    padding  padding that is part of a convolution
    """

    def __init__(self, tensors: list[Tensor], batch: int) -> None:
        self.tensors, self.batch = tensors, batch
        self.mask_of: dict[int, int] = {}
        self.largest: set[int] = set()
        self.bounded: dict[int, int] = {}
        self.padding: dict[int, Op] = {}

    def ops(self, ops: Sequence[Op]) -> Iterator[Op]:
        for op in ops:
            self._note(op)
            if op.kind is Kind.RANDOM and len(op.writes) == 1:
                yield from self._drawn(op)
            elif op.primitive == "erfc":
                yield from self._parts_of_erfc(op)
            elif op.kind.is_product:
                yield from self._with_transposed_operands(op)
            else:
                yield self._simplified(op)

    def _note(self, op: Op) -> None:
        if op.primitive == CONVERT and op.reads and self.tensors[op.reads[0]].dtype == "bool":
            self.mask_of[op.writes[0]] = op.reads[0]
        elif op.primitive == "max" and len(op.reads) == 1 and self.tensors[op.writes[0]].dtype == WIDE:
            self.bounded[op.writes[0]] = op.reads[0]
        elif op.primitive == "reduce_max":
            self.largest.update(op.writes)
        elif is_part_of_convolution(op):
            self.padding[op.writes[0]] = op

    def _new(self, like: int, dtype: str) -> int:
        self.tensors.append(replace(self.tensors[like], dtype=dtype))
        return len(self.tensors) - 1

    def _drawn(self, op: Op) -> Iterator[Op]:
        words = tuple(self._new(op.writes[0], "uint32") for _ in range(_WORDS))
        yield replace(op, writes=words)
        yield replace(op, kind=Kind.ELEMENTWISE, primitive="xor", reads=words, flops=Affine())

    def _parts_of_erfc(self, op: Op) -> Iterator[Op]:
        """Yield the parts of erfc(x), which chooses between two polynomials in float32: of x, and of 1/x^2.

        The second is multiplied with exp(-x^2)/|x|. The derivative uses that exponential, too.
        """
        steps: list[Op] = []

        def made(primitive: str, *reads: int) -> int:
            write = self._new(op.reads[0], WIDE)
            kind, none = Kind.ELEMENTWISE, Affine()
            steps.append(replace(op, kind=kind, primitive=primitive, reads=reads, writes=(write,), flops=none))
            return write

        x, result = op.reads[0], op.writes[0]
        x = x if self.tensors[x].dtype == WIDE else made(CONVERT, x)
        square = made("square", x)
        parts = made("exp", made("neg", square)), made("div", square), made("div", made("abs", x))
        chosen = made("select_n", x, *parts)
        steps[-1] = replace(steps[-1], flops=op.flops * LONG_CHAIN)
        yield from steps
        primitive = "copy" if self.tensors[result].dtype == WIDE else CONVERT
        kind = Kind.VIEW if primitive == "copy" else Kind.ELEMENTWISE
        yield replace(op, kind=kind, primitive=primitive, reads=(chosen,), flops=Affine())

    def _simplified(self, op: Op) -> Op:
        """Return a selection for a product with a converted mask, and a view for a maximum of a maximum and a constant.

        Clipping between two constants is one operation, and transposing a matrix costs nothing.
        """
        if op.primitive == "max" and len(op.reads) == 1 and op.reads[0] in self.largest:
            return replace(op, kind=Kind.VIEW)
        if op.primitive == "min" and len(op.reads) == 1 and op.reads[0] in self.bounded:
            return replace(op, primitive="clamp", reads=(self.bounded[op.reads[0]],))
        if op.primitive == "mul" and not self.mask_of.keys().isdisjoint(op.reads):
            masks = [self.mask_of[read] for read in op.reads if read in self.mask_of]
            return replace(op, primitive="select_n", reads=(*masks, *(r for r in op.reads if r not in self.mask_of)))
        if op.primitive == "transpose" and op.reads and len(self.tensors[op.reads[0]].shape) <= MATRIX_RANK:
            return replace(op, kind=Kind.VIEW)
        return op

    def _with_transposed_operands(self, op: Op) -> Iterator[Op]:
        """Yield a product with flattened and transposed operands; a convolution's own padding comes after that."""
        reads = []
        for read in op.reads:
            reads.append(read)
            if self._is_flattened(op, read):
                like = self.tensors[read]
                reads[-1] = len(self.tensors)
                self.tensors.append(replace(like, shape=(like.elements,)))
                yield Op(Kind.MOVE, FLATTEN, (read,), (reads[-1],), phase=op.phase, layer=op.layer, region=op.region)
            elif self._is_transposed(op, read):
                padding = self.padding.get(read)
                source = padding.reads[0] if padding else read
                copy = reads[-1] = self._new(source, self.tensors[source].dtype)
                yield Op(Kind.MOVE, "transpose", (source,), (copy,), phase=op.phase, layer=op.layer, region=op.region)
                if padding:
                    reads[-1] = self._new(read, self.tensors[read].dtype)
                    yield replace(padding, reads=(copy,), writes=(reads[-1],))
        yield from self._by_channels(replace(op, reads=tuple(reads)))

    def _by_channels(self, op: Op) -> Iterator[Op]:
        """Yield the gradient of weights of a grouped convolution for all channels, and the selection of its groups."""
        if op.kind is not Kind.CONV or not self._of_weights(op):
            yield op
            return
        result = self.tensors[op.writes[0]]
        channels = self.tensors[op.reads[0]].shape[-1]
        if result.shape[-2] == channels:
            yield op
            return
        whole = replace(result, shape=(*result.shape[:-2], channels, result.shape[-1]))
        made, chosen = len(self.tensors), len(self.tensors) + 1
        self.tensors += [whole, whole]
        yield replace(op, writes=(made,))
        chooses = replace(op, kind=Kind.ELEMENTWISE, primitive="select_n", reads=(made,), writes=(chosen,))
        yield replace(chooses, flops=Affine(), gemm=())
        yield replace(op, kind=Kind.REDUCE, primitive="reduce", reads=(chosen,), flops=Affine(), gemm=())

    def _of_weights(self, op: Op) -> bool:
        return op.phase is Phase.BACKWARD and all(dim.constant for dim in self.tensors[op.writes[0]].shape)

    def _is_flattened(self, op: Op, read: int) -> bool:
        """Return whether a product of matrices reads an operand of more dimensions in its own order."""
        shape = self.tensors[read].shape
        if op.kind is not Kind.DOT or not op.gemm or op.gemm[0] != Affine(1) or len(shape) <= MATRIX_RANK:
            return False
        return not self._is_transposed(op, read)

    def _is_transposed(self, op: Op, read: int) -> bool:
        """Return whether a product reads a transposed copy of an operand.

        - Products of several groups read the groups first.
        - Gradients of a convolution's weights read samples last.
        - Gradients of weights that sum over samples and positions read the incoming gradient with features first.
        - Weights of more than two dimensions are read with the summed dimension first, which is not so in the backward
          pass.
        """
        shape = self.tensors[read].shape
        if op.kind is Kind.DOT and op.gemm and op.gemm[0] != Affine(1):
            return not self._has_leading(read, op.gemm[0])
        if op.kind is Kind.DOT and op.gemm and len(shape) > MATRIX_RANK and all(dim.constant for dim in shape):
            return op.phase is Phase.BACKWARD or not self._has_leading(read, op.gemm[3])
        places = read == op.reads[0] and len(shape) > MATRIX_RANK
        return self._of_weights(op) and (op.kind is Kind.CONV or places)

    def _has_leading(self, tensor: int, groups: Affine) -> bool:
        """Return whether the first dimensions are the groups."""
        wanted, covered = groups.at(self.batch), 1.0
        for dim in self.tensors[tensor].shape:
            if covered == wanted:
                break
            covered *= dim.at(self.batch)
        return covered == wanted
