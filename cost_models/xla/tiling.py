"""Computes the bytes that tensors take in device memory, with padding to tiles on TPUs.

A TPU stores two dimensions of an array in tiles of 8 x 128 elements and rounds both up. Narrower elements share a
32-bit word with those of the rows below, so a tile of fewer rows holds a power of two of rows that fills whole words.
The compiler chooses the two dimensions that waste least. Operands and results of convolutions and pooling have batch
and features in tiles, in one order or the other, the same for all tensors that other operations join. Arguments of the
program are laid out freely. The choice depends on the batch, so sizes on these devices are no lines in the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from cost_models.workload.affine import Affine
from cost_models.workload.workload import Kind, Tensor, Workload, walk
from cost_models.xla.dataflow import connected_groups
from cost_models.xla.profile import Profile

Floats = npt.NDArray[np.float64]

_WORD_BYTES = 4
_LAID_OUT = frozenset({Kind.CONV, Kind.POOL, Kind.POOL_GRADIENT})


@dataclass(frozen=True, eq=False)
class Storage:
    """The sizes of all tensors of a workload. Bytes without padding are fixed + batch x per_sample.

    Tensors of the same layout share a form: a step has thousands of tensors and a hundred forms.

    form      of each tensor
    group     of each tensor that convolutions read or write: a group has one layout; -1 for other tensors
    rank      number of dimensions, by form
    dims_fixed, dims_per_sample   one row a form, one column a dimension; absent dimensions are 1
    allowed   which (minor, second-minor) pairs of dimensions may lie in tiles, by form; empty without tiles
    least     elements down the smallest tile, by form
    rows      elements down a full tile
    lanes     elements across a tile
    """

    fixed: Floats
    per_sample: Floats
    form: npt.NDArray[np.int64]
    group: npt.NDArray[np.int64]
    rank: npt.NDArray[np.int64]
    dims_fixed: Floats
    dims_per_sample: Floats
    allowed: npt.NDArray[np.bool_]
    least: Floats
    rows: int
    lanes: int
    _known: dict[int, Floats] = field(default_factory=dict, repr=False)

    @classmethod
    def exact(cls, sizes: Floats) -> Storage:
        """Return sizes in bytes that include padding already."""
        none = np.zeros((len(sizes), 0))
        allowed = np.zeros((len(sizes), 0, 0), np.bool_)
        form = np.arange(len(sizes))
        group = np.full(len(sizes), -1)
        return cls(
            sizes,
            np.zeros(len(sizes)),
            form,
            group,
            np.zeros(len(sizes), np.int64),
            none,
            none,
            allowed,
            np.ones(len(sizes)),
            rows=0,
            lanes=0,
        )

    def at(self, batch: int) -> Floats:
        """Return the bytes of every tensor at a local batch, padding included, as an array that is read-only."""
        if batch not in self._known:
            sizes = self._padded(batch)
            sizes.setflags(write=False)
            self._known[batch] = sizes
        return self._known[batch]

    def _padded(self, batch: int) -> Floats:
        unpadded = self.fixed + batch * self.per_sample
        if not self.lanes:
            return unpadded
        lane_waste, row_waste = self._waste(batch)
        least = np.full(len(lane_waste), np.inf)
        for minor, second in np.ndindex(self.allowed.shape[1:]):
            pair = self.allowed[:, minor, second]
            waste = lane_waste[pair, minor] * row_waste[pair, second]
            least[pair] = np.minimum(least[pair], waste)
        padded = unpadded * np.where(np.isinf(least), 1.0, least)[self.form]
        grouped = self.group >= 0
        padded[grouped] = self._laid_out_alike(batch)[grouped]
        return np.asarray(padded, np.float64)

    def features_in_lanes(self, batch: int) -> npt.NDArray[np.bool_]:
        """Return for each tensor of convolutions whether its features lie across the lanes rather than its batch."""
        in_lanes, down = self._both_ways(batch)
        less = np.bincount(self.group[self.group >= 0], (in_lanes - down)[self.group >= 0]) <= 0
        return (self.group >= 0) & less[self.group] if len(less) else self.group >= 0

    def _laid_out_alike(self, batch: int) -> Floats:
        in_lanes, down = self._both_ways(batch)
        return np.where(self.features_in_lanes(batch), in_lanes, down)

    def _both_ways(self, batch: int) -> tuple[Floats, Floats]:
        """Return the bytes with features across the lanes and batch down the tile, and the other way round."""
        unpadded = self.fixed + batch * self.per_sample
        lane_waste, row_waste = self._waste(batch)
        last, forms = np.maximum(self.rank - 1, 0), np.arange(len(lane_waste))
        in_lanes = lane_waste[forms, last] * row_waste[:, 0]
        down = lane_waste[:, 0] * row_waste[forms, last]
        return unpadded * in_lanes[self.form], unpadded * down[self.form]

    def _waste(self, batch: int) -> tuple[Floats, Floats]:
        """Return the bytes with padding over those without, by dimension, across the lanes and down the tile."""
        sizes = np.maximum(self.dims_fixed + batch * self.dims_per_sample, 1.0)
        return np.ceil(sizes / self.lanes) * self.lanes / sizes, self._rows_of(sizes) / sizes

    def _rows_of(self, sizes: Floats) -> Floats:
        """Return dimensions padded down the tiles: to whole tiles, or to one tile of a power of two of rows."""
        few = np.maximum(np.exp2(np.ceil(np.log2(sizes))), self.least[:, None])
        whole = np.ceil(sizes / self.rows) * self.rows
        return np.asarray(np.minimum(few, whole) if self.rows else sizes, np.float64)


@lru_cache(maxsize=32)
def storage(workload: Workload, profile: Profile) -> Storage:
    """Return how a device stores the tensors of a workload."""
    tensors = workload.tensors
    sizes = workload.sizes
    rank = max((1, *(len(tensor.shape) for tensor in tensors)))
    shapes = convolutional_shapes(workload)
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
        group=_groups(workload, [list(forms)[number].convolutional for number in form]),
        rank=np.array([len(one.shape) for one in forms], np.int64),
        dims_fixed=np.array([[dim.fixed for dim in row] for row in dims]).reshape(len(forms), rank),
        dims_per_sample=np.array([[dim.per_sample for dim in row] for row in dims]).reshape(len(forms), rank),
        allowed=_allowed(list(forms), rank) if profile.tile_lanes else np.zeros((len(forms), 0, 0), np.bool_),
        least=np.array([one.least_rows for one in forms], np.float64),
        rows=profile.tile_rows,
        lanes=profile.tile_lanes,
    )


@dataclass(frozen=True, slots=True)
class _Form:
    """The properties that padding depends on: shape, elements in a word, and use by a convolution or pooling."""

    shape: tuple[Affine, ...]
    least_rows: int
    convolutional: bool


def _form(tensor: Tensor, convolutional: set[tuple[Affine, ...]]) -> _Form:
    in_a_word = max(1, int(_WORD_BYTES // max(tensor.item_bytes, 1)))
    touched = tensor.shape in convolutional and len(tensor.shape) > 1 and not _single(tensor.shape[-1])
    return _Form(tensor.shape, in_a_word, touched)


def _allowed(forms: Sequence[_Form], rank: int) -> npt.NDArray[np.bool_]:
    """Return the pairs of dimensions that may lie in tiles: any two of tensors that no convolution uses."""
    allowed = np.zeros((len(forms), rank, rank), np.bool_)
    for number, form in enumerate(forms):
        count = len(form.shape)
        if count > 1 and not form.convolutional:
            allowed[number, :count, :count] = ~np.eye(count, dtype=np.bool_)
    return allowed


def _groups(workload: Workload, convolutional: Sequence[bool]) -> npt.NDArray[np.int64]:
    """Return the group of each tensor: all operands and results of an operation that is no product or reduction."""
    links = []
    for op in walk(workload.ops):
        ends = [end for end in (*op.reads, *op.writes) if convolutional[end]]
        if not op.kind.is_product and op.kind is not Kind.REDUCE:
            links += [(ends[0], end) for end in ends[1:]]
    groups = connected_groups(len(convolutional), links)
    return np.where(np.asarray(convolutional, np.bool_), np.asarray(groups, np.int64), -1)


def _single(dim: Affine) -> bool:
    return dim == Affine(1)


def convolutional_shapes(workload: Workload) -> set[tuple[Affine, ...]]:
    """Return the shapes of activations that convolutions or pooling read or write."""
    touched = {end for op in walk(workload.ops) if op.kind in _LAID_OUT for end in (*op.reads, *op.writes)}
    tensors: list[Tensor] = [workload.tensors[end] for end in touched]
    return {tensor.shape for tensor in tensors if not tensor.elements.constant}
