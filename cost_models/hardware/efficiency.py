"""What share of its published rates a chip reaches: curves and constants of `devices/efficiency.yaml`, as values."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import numpy.typing as npt
import yaml

from cost_models.errors import HardwareError
from cost_models.hardware.cluster import Cluster

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


_BACKWARD_PRODUCTS = 2.5
"""Products of fused attention's backward pass over those of its forward pass: five and two."""
_LOCAL_BYTES_PER_CLOCK = 128  # shared memory of one multiprocessor (Volta to Hopper, NVIDIA tuning guides)


@dataclass(frozen=True)
class FusedAttention:
    """What attention as one kernel reaches of the peak of products.

    full, causal   by the width of a head, for all pairs of positions and for causal ones, whose kernels skip blocks and
                   have shorter rows: (share over both passes at long sequences, the length at which it is half of
                   that). Widths between are interpolated.
    forward_over_backward   how much more the forward pass reaches than the backward pass
    """

    full: Mapping[int, tuple[float, float]]
    causal: Mapping[int, tuple[float, float]]
    forward_over_backward: float = 1.0

    def shares(self, length: Floats, width: Floats, *, causal: bool) -> tuple[Floats, Floats]:
        """Shares of the peak, forward and backward, at these lengths and widths of a head."""
        curves = self.causal if causal else self.full
        widths = sorted(curves)
        most, half_length = (np.interp(width, widths, [curves[at][which] for at in widths]) for which in (0, 1))
        both = most * length / (length + half_length)
        backward = both * (1 / self.forward_over_backward + _BACKWARD_PRODUCTS) / (1 + _BACKWARD_PRODUCTS)
        return np.asarray(self.forward_over_backward * backward, np.float64), np.asarray(backward, np.float64)

    def slower(self, forward: float, backward: float) -> FusedAttention:
        """The same for kernels that take so many times longer in each pass."""
        ratio = self.forward_over_backward
        both = (1 / ratio + _BACKWARD_PRODUCTS) / (forward / ratio + backward * _BACKWARD_PRODUCTS)
        full, causal = (
            {width: (most * both, half_length) for width, (most, half_length) in curves.items()}
            for curves in (self.full, self.causal)
        )
        return FusedAttention(full, causal, ratio * backward / forward)


@dataclass(frozen=True)
class Efficiency:
    """Shares of published rates, and what a core is.

    product     of the best-shaped product, of its dtype's peak
    product_float32   the same in float32, where it differs; 0: it does not
    bandwidth   of long streams, of the memory bandwidth
    convolution, kernel_gradient   of convolutions and of their kernels' gradients, of what products reach
    line_convolution   both of convolutions along one dimension
    transpose   of the memory bandwidth, of kernels that turn channels first into channels last in 16 bits, and back
    fresh_pages of the rate at which the kernel gives new pages, which are in no cache when they are used
    overlap     how much of the shorter of arithmetic and traffic hides behind the longer one
    vector      elementwise operations a second, as a share of float32's peak, where cores are not known
    thin        depthwise convolutions, as a share of the peak of products, where cores are not known
    direct      of depthwise convolutions, FLOPs a clock and core forward and backward, where cores are known
    slow        operations a second of kernels that a compiler runs in plain loops, as shares of float32's peak, by kind
    grouped     whether a library takes grouped convolutions
    attention   of fused attention, of the peak
    tiles       (m, n) of the blocks in which a core works; depth: elements of k at a time
    fork_seconds  what it takes to hand a kernel to several cores
    near        (bytes that a kernel moves as a share of the last cache, share of `bandwidth` that it reaches)
    looping     the same of kernels in a loop's body
    across      what is read in another order than it lies reaches of that
    library     products of more than the smallest sizes, of what the best reach
    in_loops    the same in loops, whose operands are parts of what does not lie in a core's cache
    a_core      multiply-adds of a product for each core that a library wakes for it
    loops       of convolutions that a compiler works out in loops: operations of float32's peak (`window_loops.py`)
    picks       positions of windows that a convolution picks a second, as a share of float32's peak
    odd_picks   times as long that takes of an odd number of channels: of 3 for 17 to 24 features, of more for as many,
                and for 25 to 32
    cores       0: not known, then tiles are not dealt out in waves
    lanes, clock_hz   float32 units of a core and their clock
    l2_over_memory    bandwidth of the cache beside the cores, as a multiple of the memory's
    l2_bytes_per_clock   what a core takes out of that cache in a clock; 0: not measured, then `l2_over_memory` holds
    """

    product: float
    bandwidth: float
    overlap: float
    vector: float
    thin: float
    direct: tuple[float, float]
    attention: FusedAttention
    tiles: tuple[tuple[int, int], ...]
    depth: int
    l2_over_memory: float
    product_float32: float = 0.0
    transpose: tuple[float, float] = (1.0, 1.0)
    slow: Mapping[str, float] = field(default_factory=dict)
    fresh_pages: float = 1.0
    convolution: float = 1.0
    kernel_gradient: float = 1.0
    line_convolution: tuple[float, float] = (1.0, 1.0)
    across: float = 1.0
    fork_seconds: float = 0.0
    near: tuple[tuple[float, float], ...] = ((1.0, 1.0),)
    looping: tuple[tuple[float, float], ...] = ((1.0, 1.0),)
    library: float = 1.0
    in_loops: float = 1.0
    a_core: float = 1.0
    picks: float = 1.0
    odd_picks: tuple[float, float, float] = (1.0, 1.0, 1.0)
    loops: Mapping[str, float] = field(default_factory=dict)
    grouped: bool = True
    cores: int = 0
    lanes: int = 0
    clock_hz: float = 0.0
    l2_bytes_per_clock: float = 0.0

    def l2_bytes_per_second(self, memory_bytes_per_second: float) -> float:
        """Bandwidth of the cache that all cores share: as measured, else from the memory's."""
        measured = self.cores * self.clock_hz * self.l2_bytes_per_clock
        return measured or memory_bytes_per_second * self.l2_over_memory

    @property
    def thinnest(self) -> int:
        """Output channels a group below which a grouped convolution leaves the matrix units: half a block of theirs."""
        return min(n for _, n in self.tiles) // 2 if self.grouped else sys.maxsize

    def thin_flops(self, peak: Floats, item_bytes: Floats, width: Floats, is_backward: Bools) -> Floats:
        """FLOP/s of grouped convolutions with `width` output channels a group, too few for matrix units.

        With one, kernels of a thread an element, which instructions bind and not the width of operands; with more, what
        the local memory of a core feeds to its vector units. A share of the peak where cores are not known.
        """
        if not self.cores:
            return peak * self.thin
        fed = 2 * np.minimum(float(self.lanes), _LOCAL_BYTES_PER_CLOCK / item_bytes)
        direct = np.where(is_backward, self.direct[1], self.direct[0])
        return np.asarray(self.cores * self.clock_hz * np.where(width <= 1, direct, fed), np.float64)

    @property
    def vector_operations_per_second(self) -> float:
        """Elementwise float32 operations of the whole chip; 0 where its cores are not known."""
        return self.cores * self.lanes * self.clock_hz


def efficiency_of(cluster: Cluster) -> Efficiency:
    """What kernels reach on this cluster's chip: of a measured machine's figures, which are no peaks, nearly all.

    HardwareError for a kind of chip that nobody described.
    """
    found = _of_chip(cluster.chip.name, cluster.chip.kind)
    if not cluster.local:
        return found
    measured = {key: figure["value"] for key, figure in _data()["measured"].get(cluster.chip.kind, {}).items()}
    return replace(found, **{"product": 1.0, "bandwidth": 1.0, "overlap": 1.0, **measured})


@cache
def _of_chip(name: str, kind: str) -> Efficiency:
    data = _data()
    if kind not in data["kinds"]:
        raise HardwareError(f"no efficiencies for a {kind!r} device; known kinds are {', '.join(data['kinds'])}")
    values = {key: figure["value"] for key, figure in data["kinds"][kind].items()}
    own = {key: value for key, value in data["chips"].get(name, {}).items() if key != "source"}
    side = own.pop("matrix", None)
    if side:
        own |= {"tiles": [[side, side]], "depth": side}
    values |= own
    values["tiles"] = tuple((int(m), int(n)) for m, n in values["tiles"])
    values["attention"] = FusedAttention(**values["attention"])
    for several in ("direct", "transpose", "line_convolution", "odd_picks"):
        if several in values:
            values[several] = tuple(values[several])
    for curve in ("near", "looping"):
        if curve in values:
            values[curve] = tuple((float(share), float(reached)) for share, reached in values[curve])
    return Efficiency(**values)


@cache
def _data() -> Mapping[str, Any]:
    text = (files("cost_models.hardware") / "devices" / "efficiency.yaml").read_text(encoding="utf-8")
    read: Mapping[str, Any] = yaml.safe_load(text)
    return read
