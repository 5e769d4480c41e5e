"""Bytes that tensors take in memory: padding to tiles, where a target has them.

A TPU stores two dimensions of an array in tiles of 8 x 128 elements and rounds both up; narrower elements share a
32-bit word with those of the rows below, so that a tile of fewer rows holds a power of two of them that fills whole
words. Its compiler chooses which two: those that waste least; for what convolutions and pooling touch, batch and
features in one order or the other. What comes from outside is laid out freely all the same, and copied where that is
not what a convolution reads. The choice depends on the batch, so sizes on such targets are no lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from cost_models.affine import Affine
from cost_models.targets import Target
from cost_models.workload import Kind, Tensor, Workload, walk

Floats = npt.NDArray[np.float64]

_WORD_BYTES = 4
_LAID_OUT = frozenset({Kind.CONV, Kind.POOL, Kind.POOL_GRADIENT})


@dataclass(frozen=True, eq=False)
class Storage:
    """Sizes of all tensors of a workload. Bytes without padding are fixed + batch x per_sample.

    Tensors that are laid out alike share a form: a step has thousands of tensors and a hundred forms.

    form      of each tensor
    dims_fixed, dims_per_sample   one row a form, one column a dimension; absent dimensions are 1
    allowed   which (minor, second-minor) pairs of dimensions may lie in tiles, by form; empty without tiles
    least     elements down the smallest tile, by form
    rows      elements down a full tile
    lanes     elements across a tile
    """

    fixed: Floats
    per_sample: Floats
    form: npt.NDArray[np.int64]
    dims_fixed: Floats
    dims_per_sample: Floats
    allowed: npt.NDArray[np.bool_]
    least: Floats
    rows: int
    lanes: int
    _known: dict[int, Floats] = field(default_factory=dict, repr=False)

    @classmethod
    def exact(cls, sizes: Floats) -> Storage:
        """Sizes in bytes that hold as they are, padding included."""
        none = np.zeros((len(sizes), 0))
        allowed = np.zeros((len(sizes), 0, 0), np.bool_)
        form = np.arange(len(sizes))
        return cls(sizes, np.zeros(len(sizes)), form, none, none, allowed, np.ones(len(sizes)), rows=0, lanes=0)

    def at(self, batch: int) -> Floats:
        """Bytes of every tensor at a local batch, padding included. Not to be written to: it is kept."""
        if batch not in self._known:
            sizes = self._padded(batch)
            sizes.setflags(write=False)
            self._known[batch] = sizes
        return self._known[batch]

    def _padded(self, batch: int) -> Floats:
        unpadded = self.fixed + batch * self.per_sample
        if not self.lanes:
            return unpadded
        sizes = np.maximum(self.dims_fixed + batch * self.dims_per_sample, 1.0)
        lane_waste = np.ceil(sizes / self.lanes) * self.lanes / sizes
        row_waste = self._rows_of(sizes) / sizes
        least = np.full(len(sizes), np.inf)
        for minor, second in np.ndindex(self.allowed.shape[1:]):
            pair = self.allowed[:, minor, second]
            waste = lane_waste[pair, minor] * row_waste[pair, second]
            least[pair] = np.minimum(least[pair], waste)
        return unpadded * np.where(np.isinf(least), 1.0, least)[self.form]

    def _rows_of(self, sizes: Floats) -> Floats:
        """Dimensions as they lie down tiles: whole tiles, or one of a power of two of rows."""
        few = np.maximum(np.exp2(np.ceil(np.log2(sizes))), self.least[:, None])
        whole = np.ceil(sizes / self.rows) * self.rows
        return np.asarray(np.minimum(few, whole) if self.rows else sizes, np.float64)


@lru_cache(maxsize=32)
def storage(workload: Workload, target: Target) -> Storage:
    """How a target stores the tensors of a workload."""
    tensors = workload.tensors
    sizes = workload.sizes
    rank = max((len(tensor.shape) for tensor in tensors), default=0)
    shapes = _convolutional_shapes(workload)
    forms: dict[_Form, int] = {}
    outside = {*workload.inputs}
    form = [
        forms.setdefault(_form(tensor, shapes if number not in outside else set()), len(forms))
        for number, tensor in enumerate(tensors)
    ]
    dims = [[*one.shape, *[Affine(1)] * (rank - len(one.shape))] for one in forms]
    return Storage(
        fixed=np.array([size.fixed for size in sizes], np.float64),
        per_sample=np.array([size.per_sample for size in sizes], np.float64),
        form=np.array(form, np.int64),
        dims_fixed=np.array([[dim.fixed for dim in row] for row in dims]).reshape(len(forms), rank),
        dims_per_sample=np.array([[dim.per_sample for dim in row] for row in dims]).reshape(len(forms), rank),
        allowed=_allowed(list(forms), rank) if target.tile_lanes else np.zeros((len(forms), 0, 0), np.bool_),
        least=np.array([one.least_rows for one in forms], np.float64),
        rows=target.tile_rows,
        lanes=target.tile_lanes,
    )


@dataclass(frozen=True, slots=True)
class _Form:
    """What padding depends on: the shape, elements in a word, and whether a convolution or a pooling touches it."""

    shape: tuple[Affine, ...]
    least_rows: int
    convolutional: bool


def _form(tensor: Tensor, convolutional: set[tuple[Affine, ...]]) -> _Form:
    in_a_word = max(1, int(_WORD_BYTES // max(tensor.item_bytes, 1)))
    return _Form(tensor.shape, in_a_word, tensor.shape in convolutional)


def _allowed(forms: Sequence[_Form], rank: int) -> npt.NDArray[np.bool_]:
    allowed = np.zeros((len(forms), rank, rank), np.bool_)
    for number, form in enumerate(forms):
        last = len(form.shape) - 1
        if last < 1:
            continue
        if form.convolutional and not _single(form.shape[last]):
            allowed[number, last, 0] = allowed[number, 0, last] = True
        else:
            allowed[number, : last + 1, : last + 1] = ~np.eye(last + 1, dtype=np.bool_)
    return allowed


def _single(dim: Affine) -> bool:
    return dim == Affine(1)


def _convolutional_shapes(workload: Workload) -> set[tuple[Affine, ...]]:
    """Shapes of activations that convolutions or pooling read or write."""
    touched = {end for op in walk(workload.ops) if op.kind in _LAID_OUT for end in (*op.reads, *op.writes)}
    tensors: list[Tensor] = [workload.tensors[end] for end in touched]
    return {tensor.shape for tensor in tensors if not tensor.elements.constant}
