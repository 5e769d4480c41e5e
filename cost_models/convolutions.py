"""Which convolutions minimal filtering works out: windows of 3 x 3 that move by one (Lavin & Gray 2015)."""

from __future__ import annotations

from collections.abc import Sequence

from cost_models.affine import Affine
from cost_models.workload import Kind, Op, Tensor

_WINDOW = 3.0


def moves_by_one(tensors: Sequence[Tensor], op: Op) -> bool:
    """Whether this is a convolution of all channels with windows of 3 x 3 at every place, or a gradient of one."""
    if op.kind is not Kind.CONV or not op.gemm or op.gemm[0] != Affine(1):
        return False
    ends = [tensors[end] for end in (*op.reads, *op.writes)]
    kernels = [[dim.fixed for dim in end.shape] for end in ends if end.elements.constant]
    images = [[dim.fixed for dim in end.shape if dim.constant] for end in ends if not end.elements.constant]
    if len(kernels) != 1 or len(images) != 2 or len(kernels[0]) != 4 or kernels[0].count(_WINDOW) < 2:
        return False
    first, second = sorted(kernels[0], key=lambda size: size == _WINDOW)[:2]
    ways = [(first, second), (second, first)]
    return any((places := _places(images[0], one)) and places == _places(images[1], other) for one, other in ways)


def _places(image: Sequence[float], channels: float) -> Sequence[float] | None:
    """What an image of so many channels has beside them and the batch; None where it has another number."""
    if channels not in image:
        return None
    places = list(image)
    places.remove(channels)
    return sorted(places)
