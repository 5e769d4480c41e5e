"""Tabulates properties of convolutions that decide their speed in libraries: windows, dimensions, strides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from cost_models.workload.affine import Affine
from cost_models.workload.workload import Kind, Op, Tensor
from cost_models.xla.rules import rule

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_WINDOW = 3.0
_LINE = 3  # dimensions of a batch of lines, and of their kernel
_CHANNELS = 2  # dimensions of a kernel, read and written, behind those of its window


@dataclass(frozen=True)
class ConvolutionTable:
    """Convolutions of kernels, a row each.

    is_minimal  windows of 3 x 3 that move by one: libraries have minimal filtering for them (Winograd)
    is_line     along one dimension
    window      positions of the window that moves over images; 0 for other rows
    dimensions  along how many dimensions the window moves; 0 for other rows
    enlarged    times as many positions are made as are read; 1 for other rows
    """

    is_convolution: Bools
    is_minimal: Bools
    is_line: Bools
    window: Floats
    dimensions: Ints
    enlarged: Floats

    @classmethod
    def unknown(cls, rows: int) -> ConvolutionTable:
        """Return the table of rows of which only GEMMs are known."""
        no, zeros = np.zeros(rows, np.bool_), np.zeros(rows)
        return cls(no, no, no, zeros, np.zeros(rows, np.int64), np.ones(rows))


def convolution_table(tensors: Sequence[Tensor], ops: Sequence[Op]) -> ConvolutionTable:
    """Return the convolutions of these operations."""
    return ConvolutionTable(
        is_convolution=np.array([op.kind is Kind.CONV for op in ops], np.bool_),
        is_minimal=np.array([moves_by_one(tensors, op) for op in ops], np.bool_),
        is_line=np.array([is_along_a_line(tensors, op) for op in ops], np.bool_),
        window=np.array([window_of(tensors, op) for op in ops], np.float64),
        dimensions=np.array([dimensions_of(tensors, op) for op in ops], np.int64),
        enlarged=np.array([enlargement_of(tensors, op) for op in ops], np.float64),
    )


def moves_by_one(tensors: Sequence[Tensor], op: Op) -> bool:
    """Return whether this is a dense convolution of 3 x 3 with stride 1, or a gradient of such a convolution.

    Minimal filtering computes these (Lavin & Gray 2015).
    """
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


def is_along_a_line(tensors: Sequence[Tensor], op: Op) -> bool:
    """Return whether a convolution, or the gradient of a convolution, moves along a single dimension."""
    return op.kind is Kind.CONV and len(tensors[op.writes[0]].shape) == _LINE


def dimensions_of(tensors: Sequence[Tensor], op: Op) -> int:
    """Return along how many dimensions a convolution or its gradient moves; 0 for other operations."""
    return len(tensors[op.reads[0]].shape) - _CHANNELS if op.kind is Kind.CONV else 0


def enlargement_of(tensors: Sequence[Tensor], op: Op) -> float:
    """Return positions written over positions read, at least 1: more for transposed convolutions."""
    if op.kind is not Kind.CONV or not op.gemm or not op.gemm[3].constant:
        return 1.0
    read, made = _area(tensors[op.reads[0]].shape), _area(tensors[op.writes[0]].shape)
    return max(1.0, made / read) if read else 1.0


def window_of(tensors: Sequence[Tensor], op: Op) -> float:
    """Return the positions of a convolution's window; 0 for a kernel's gradient and other operations."""
    if op.kind is not Kind.CONV:
        return 0.0
    kernels = [tensors[read].shape for read in op.reads if tensors[read].elements.constant]
    return prod(size.fixed for size in kernels[0][:-_CHANNELS]) if len(kernels) == 1 else 0.0


@rule(
    "cpu-transposed-kernel-gradient",
    "kernels timed one by one on x86-64: gradients of transposed convolutions",
)
def is_transposed_kernel_gradient(tensors: Sequence[Tensor], op: Op) -> bool:
    """Return whether this is the gradient of a transposed convolution's kernel: its first image is the smaller one."""
    if op.kind is not Kind.CONV or not op.gemm or op.gemm[3].constant or len(op.reads) < 2:
        return False
    first, second = (tensors[read].shape for read in op.reads[:2])
    return _area(first) < _area(second)


def _area(image: Sequence[Affine]) -> float:
    """Positions of an image with its channels last."""
    return prod(size.fixed for size in image[1:-1])


def _places(image: Sequence[float], channels: float) -> Sequence[float] | None:
    """The sizes of an image without its channels, sorted; None where it has another number of channels."""
    if channels not in image:
        return None
    places = list(image)
    places.remove(channels)
    return sorted(places)
