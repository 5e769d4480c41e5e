"""Reads `devices/efficiency.yaml`: the share of its published rates that a chip reaches, by kind of kernel."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import yaml

from cost_models.errors import HardwareError
from cost_models.hardware.cluster import Cluster

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


_BACKWARD_GEMMS = 2.5
"""GEMMs of fused attention's backward pass over those of its forward pass: five and two."""
_SHARED_MEMORY_BYTES_PER_CLOCK = 128
"""Shared-memory bandwidth of one multiprocessor (Volta to Hopper, NVIDIA tuning guides)."""


@dataclass(frozen=True)
class FusedAttention:
    """Efficiency of attention that runs as one fused kernel, as a share of the peak of GEMMs.

    full, causal   curve by head width, for full and for causal attention (causal kernels skip blocks and have shorter
                   rows): (share over both passes at long sequences, sequence length at which half of it is reached).
                   Widths in between are interpolated.
    forward_over_backward   ratio of the forward pass's share to the backward pass's
    """

    full: Mapping[int, tuple[float, float]]
    causal: Mapping[int, tuple[float, float]]
    forward_over_backward: float = 1.0

    def shares(self, length: Floats, width: Floats, *, causal: bool) -> tuple[Floats, Floats]:
        """Return the shares of the peak, forward and backward, at these sequence lengths and head widths."""
        curves = self.causal if causal else self.full
        widths = sorted(curves)
        most, half_length = (np.interp(width, widths, [curves[at][which] for at in widths]) for which in (0, 1))
        both = most * length / (length + half_length)
        backward = both * (1 / self.forward_over_backward + _BACKWARD_GEMMS) / (1 + _BACKWARD_GEMMS)
        return np.asarray(self.forward_over_backward * backward, np.float64), np.asarray(backward, np.float64)

    def slower(self, forward: float, backward: float) -> FusedAttention:
        """Return the curves of kernels whose passes take `forward` and `backward` times as long."""
        ratio = self.forward_over_backward
        both = (1 / ratio + _BACKWARD_GEMMS) / (forward / ratio + backward * _BACKWARD_GEMMS)
        full, causal = (
            {width: (most * both, half_length) for width, (most, half_length) in curves.items()}
            for curves in (self.full, self.causal)
        )
        return FusedAttention(full, causal, ratio * backward / forward)


@dataclass(frozen=True)
class Efficiency:
    """Kernel efficiencies of one chip, and the figures of its cores that they depend on.

    gemm_share                of its dtype's peak, reached by the best-shaped GEMM
    float32_gemm_share        the same in float32, where it differs; 0: it does not
    stream_share              of the memory bandwidth, reached by long streams
    overlap                   share of the shorter of compute and memory traffic that hides behind the longer one
    vector_share              elementwise operations a second as a share of float32's peak, where cores are not known
    depthwise_share           depthwise convolutions as a share of the GEMM peak, where cores are not known
    depthwise_flops_per_clock   of one core, forward and backward, where cores are known
    attention                 fused attention, of the peak
    tiles                     (m, n) of the blocks in which a core computes; `tile_depth`: elements of k at a time
    l2_over_memory            bandwidth of the last-level cache as a multiple of the memory's
    l2_bytes_per_clock        of one core from that cache; 0: not measured, then `l2_over_memory` applies
    transpose_shares          of the memory bandwidth: 16-bit transposes NCHW to NHWC, and NHWC to NCHW
    slow_kernel_shares        of float32's peak: kernels that a compiler runs in plain loops, by kind
    fresh_page_share          of the rate at which the kernel maps new pages (new pages are in no cache when used)
    conv_share                convolutions, as a share of what GEMMs reach; `conv1d_shares`: those along one dimension,
                              and their weights' gradients
    strided_share             of the memory bandwidth, where the reading order differs from the memory order
    cache_curve               (bytes that a kernel moves over bytes of the last cache, share of `stream_share` reached)
    loop_cache_curve          the same for kernels in a loop's body
    library_gemm_share        GEMMs of all but the smallest sizes, as a share of the best
    loop_gemm_share           the same in loops, whose operands are slices that are not in a core's cache
    macs_per_core             multiply-adds of a GEMM for each core that the library uses
    im2col_share              window elements that a convolution gathers a second, as a share of float32's peak
    odd_channel_slowdown      im2col with an odd number of channels: times as long with 3 channels and 17 to 24
                              features, with more channels and as many features, and with 25 to 32 features
    looped_conv_operations    cost constants of the convolutions that a compiler runs in plain loops, in operations
    has_grouped_conv          whether the library has grouped convolutions
    cores, lanes, clock_hz    multiprocessors (0: not known, then tiles are not scheduled in waves), float32 units of
                              one, and their clock
    """

    gemm_share: float
    stream_share: float
    overlap: float
    vector_share: float
    depthwise_share: float
    depthwise_flops_per_clock: tuple[float, float]
    attention: FusedAttention
    tiles: tuple[tuple[int, int], ...]
    tile_depth: int
    l2_over_memory: float
    float32_gemm_share: float = 0.0
    transpose_shares: tuple[float, float] = (1.0, 1.0)
    slow_kernel_shares: Mapping[str, float] = field(default_factory=dict)
    fresh_page_share: float = 1.0
    conv_share: float = 1.0
    conv1d_shares: tuple[float, float] = (1.0, 1.0)
    strided_share: float = 1.0
    cache_curve: tuple[tuple[float, float], ...] = ((1.0, 1.0),)
    loop_cache_curve: tuple[tuple[float, float], ...] = ((1.0, 1.0),)
    library_gemm_share: float = 1.0
    loop_gemm_share: float = 1.0
    macs_per_core: float = 1.0
    im2col_share: float = 1.0
    odd_channel_slowdown: tuple[float, float, float] = (1.0, 1.0, 1.0)
    looped_conv_operations: Mapping[str, float] = field(default_factory=dict)
    has_grouped_conv: bool = True
    cores: int = 0
    lanes: int = 0
    clock_hz: float = 0.0
    l2_bytes_per_clock: float = 0.0

    def l2_bytes_per_second(self, memory_bytes_per_second: float) -> float:
        """Return the bandwidth of the cache that all cores share: measured, else a multiple of the memory's."""
        measured = self.cores * self.clock_hz * self.l2_bytes_per_clock
        return measured or memory_bytes_per_second * self.l2_over_memory

    @property
    def min_matrix_unit_channels(self) -> int:
        """Output channels a group below which a grouped convolution leaves the matrix units: half of a tile."""
        return min(n for _, n in self.tiles) // 2 if self.has_grouped_conv else sys.maxsize

    def grouped_conv_flops_per_second(
        self, peak: Floats, item_bytes: Floats, width: Floats, is_backward: Bools
    ) -> Floats:
        """Return the FLOP/s of grouped convolutions that are too narrow for matrix units.

        Depthwise kernels run one thread an element and are bound by instructions, whatever the width of operands. With
        more channels, shared memory limits the vector units. A share of the peak where cores are not known.

        peak         FLOP/s of GEMMs in each convolution's dtype
        item_bytes   bytes of an element
        width        output channels a group
        """
        if not self.cores:
            return peak * self.depthwise_share
        fed = 2 * np.minimum(float(self.lanes), _SHARED_MEMORY_BYTES_PER_CLOCK / item_bytes)
        forward, backward = self.depthwise_flops_per_clock
        depthwise = np.where(is_backward, backward, forward)
        return np.asarray(self.cores * self.clock_hz * np.where(width <= 1, depthwise, fed), np.float64)

    @property
    def vector_operations_per_second(self) -> float:
        """Elementwise float32 operations of the whole chip; 0 where its cores are not known."""
        return self.cores * self.lanes * self.clock_hz


def efficiency_of(cluster: Cluster) -> Efficiency:
    """Return the kernel efficiencies of a cluster's chip.

    The rates of a local machine were measured, so its kernels reach nearly all of them.

    Raises:
        HardwareError: the kind of chip has no efficiencies.
    """
    found = _of_chip(cluster.chip.name, cluster.chip.kind)
    if not cluster.local:
        return found
    measured = {
        key: figure["value"] for key, figure in efficiency_table()["measured"].get(cluster.chip.kind, {}).items()
    }
    return replace(found, **{"gemm_share": 1.0, "stream_share": 1.0, "overlap": 1.0, **measured})


@cache
def _of_chip(name: str, kind: str) -> Efficiency:
    table = efficiency_table()
    if kind not in table["kinds"]:
        raise HardwareError(f"no efficiencies for a {kind!r} device; known kinds are {', '.join(table['kinds'])}")
    values = {key: figure["value"] for key, figure in table["kinds"][kind].items()}
    own = {key: value for key, value in table["chips"].get(name, {}).items() if key != "source"}
    side = own.pop("matrix", None)
    if side:
        own |= {"tiles": [[side, side]], "tile_depth": side}
    return msgspec.convert(values | own, Efficiency)


@cache
def efficiency_table() -> Mapping[str, Any]:
    """Return `devices/efficiency.yaml`: its sources, and its figures by kind of chip and by chip."""
    text = (files("cost_models.hardware") / "devices" / "efficiency.yaml").read_text(encoding="utf-8")
    read: Mapping[str, Any] = yaml.safe_load(text)
    return read
