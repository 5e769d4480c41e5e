"""Bytes that tensors take in memory: padding to tiles, where a target has them.

A TPU stores two dimensions of an array in tiles of 8 x 128 float32 (16 x 128 bfloat16) and rounds both up. Its compiler
chooses which two: those that waste least; for what convolutions and pooling touch, batch and features in one order or
the other. The choice depends on the batch, so sizes on such targets are no lines.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from cost_models.affine import Affine
from cost_models.targets import Target
from cost_models.workload import Kind, Tensor, Workload, walk

Floats = npt.NDArray[np.float64]

_LAID_OUT = frozenset({Kind.CONV, Kind.POOL, Kind.POOL_GRADIENT})


@dataclass(frozen=True, eq=False)
class Storage:
    """Sizes of all tensors of a workload. Bytes without padding are fixed + batch x per_sample.

    dims_fixed, dims_per_sample   one row a tensor, one column a dimension; absent dimensions are 1
    allowed   which (minor, second-minor) pairs of dimensions may lie in tiles, by tensor; empty without tiles
    rows      elements down a tile, by tensor
    lanes     elements across a tile
    """

    fixed: Floats
    per_sample: Floats
    dims_fixed: Floats
    dims_per_sample: Floats
    allowed: npt.NDArray[np.bool_]
    rows: Floats
    lanes: int
    _known: dict[int, Floats] = field(default_factory=dict, repr=False)

    @classmethod
    def exact(cls, sizes: Floats) -> Storage:
        """Sizes in bytes that hold as they are, padding included."""
        none = np.zeros((len(sizes), 0))
        allowed = np.zeros((len(sizes), 0, 0), np.bool_)
        return cls(sizes, np.zeros(len(sizes)), none, none, allowed, np.ones(len(sizes)), lanes=0)

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
        row_waste = np.ceil(sizes / self.rows[:, None]) * self.rows[:, None] / sizes
        least = np.full(len(sizes), np.inf)
        for minor, second in np.ndindex(self.allowed.shape[1:]):
            pair = self.allowed[:, minor, second]
            waste = lane_waste[pair, minor] * row_waste[pair, second]
            least[pair] = np.minimum(least[pair], waste)
        return unpadded * np.where(np.isinf(least), 1.0, least)


@lru_cache(maxsize=32)
def storage(workload: Workload, target: Target) -> Storage:
    """How a target stores the tensors of a workload."""
    tensors = workload.tensors
    sizes = workload.sizes
    rank = max((len(tensor.shape) for tensor in tensors), default=0)
    dims = [[*tensor.shape, *[Affine(1)] * (rank - len(tensor.shape))] for tensor in tensors]
    rows = [max(1, int(target.tile_row_bytes // max(tensor.item_bytes, 1))) for tensor in tensors]
    return Storage(
        fixed=np.array([size.fixed for size in sizes], np.float64),
        per_sample=np.array([size.per_sample for size in sizes], np.float64),
        dims_fixed=np.array([[dim.fixed for dim in row] for row in dims]).reshape(len(tensors), rank),
        dims_per_sample=np.array([[dim.per_sample for dim in row] for row in dims]).reshape(len(tensors), rank),
        allowed=_allowed(workload, rank) if target.tile_lanes else np.zeros((len(tensors), 0, 0), np.bool_),
        rows=np.array(rows, np.float64),
        lanes=target.tile_lanes,
    )


def _allowed(workload: Workload, rank: int) -> npt.NDArray[np.bool_]:
    shapes = _convolutional_shapes(workload)
    allowed = np.zeros((len(workload.tensors), rank, rank), np.bool_)
    for number, tensor in enumerate(workload.tensors):
        last = len(tensor.shape) - 1
        if last < 1:
            continue
        if tensor.shape in shapes and not _single(tensor.shape[last]):
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
