"""Estimates the bytes of a compiled program, which XLA:TPU loads into the device's memory beside its buffers.

Products and convolutions are unrolled, so that their code grows with their work up to a limit. On GPUs and CPUs the
code takes next to nothing, and compilers do not state it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cost_models.workload.workload import Kind
from cost_models.xla.fusion.kernel import Kernel
from cost_models.xla.rules import rule

_BASE_BYTES = 0.36e6
_PRODUCT_BYTES, _PRODUCT_FLOPS, _GROWTH = 0.89e6, 1e11, 0.2
"""The most code of a product or convolution, the FLOPs from which on it has so much, and the power by which code grows
with FLOPs up to there. Other kernels are small beside these, or fused with them. Fitted to 39 steps of development
models on TPU v4, v5e and v6e: 28% off on average; 26 steps of held-out models are 21% off."""
_PRODUCTS = (Kind.DOT, Kind.CONV)


@rule("program-code", source="programs compiled for TPU v4, v5e, v6e")
def program_code(kernels: Sequence[Kernel], batch: int) -> int:
    """Return the bytes of the code of these kernels, bodies of loops included."""
    flops = (kernel.op.flops.at(batch) for kernel in _flat(kernels) if kernel.op.kind in _PRODUCTS)
    shares = (min(1.0, max(1.0, float(one)) / _PRODUCT_FLOPS) ** _GROWTH for one in flops)
    return round(_BASE_BYTES + _PRODUCT_BYTES * float(sum(shares)))


def _flat(kernels: Sequence[Kernel]) -> Iterator[Kernel]:
    for kernel in kernels:
        yield kernel
        yield from _flat(kernel.body)
