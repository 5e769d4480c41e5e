"""Adjusts kernel times for GPUs: TF32, Winograd and grouped convolutions, layout transposes, fused attention, LSTM."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from cost_models.hardware.cluster import Chip
from cost_models.hardware.efficiency import Efficiency
from cost_models.time.kernels import AttentionRows, FusedAttentionRows, KernelTable, LstmRows
from cost_models.xla.rules import rule

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

_MINIMAL_FILTERING = 2.25
"""Factor by which F(2x2, 3x3) reduces the multiplications of a 3 x 3 convolution."""

_TF32_FROM = "bfloat16"
"""GPUs that calculate in this dtype are those from Ampere on, whose matrix units take float32, too."""


def takes_float32(chip: Chip) -> bool:
    """Return whether a GPU's matrix units take float32, as TF32: of convolutions those with channels last.

    XLA:GPU lays out float32 images with channels first on every GPU, and those of 16 bits with channels last from Volta
    on (`gpu_layout_assignment.cc`; jax 0.10.2 compiled for an A100 does); PyTorch has channels first by default.
    """
    return _TF32_FROM in chip.peak_flops_per_second


@rule("float32-gemms-off-tf32", "PyTorch: torch.backends.cuda.matmul.allow_tf32 is False since 1.12")
def peaks_of_exact_products(peaks: Floats, table: KernelTable, efficiency: Efficiency) -> Floats:
    """Return the FLOP/s of products whose float32 GEMMs, but not convolutions, stay off TF32.

    PyTorch's default (`torch.backends.cuda.matmul.allow_tf32`, False since 1.12); JAX and TensorFlow use it for both.
    """
    if not efficiency.cores:
        return peaks
    exact = table.gemm.is_gemm & ~table.convolution.is_convolution & (table.item_bytes == 4)
    return np.where(exact, np.minimum(peaks, 2 * efficiency.vector_operations_per_second), peaks)


@rule("tf32-transposes", "XLA:GPU gpu_layout_assignment.cc: float32 images have channels first; cuDNN's TF32 kernels")
def transposing_seconds(table: KernelTable, batch: int, bytes_per_second: float) -> Floats:
    """Return the seconds in which float32 operands of TF32 convolutions are brought into channels last.

    The kernels write channels first themselves.
    """
    operands, _ = table.transposed_bytes(batch)
    return np.where(table.item_bytes == 4, operands / bytes_per_second, 0.0)


@rule("minimal-filtering", "Lavin & Gray 2015, arXiv 1509.09308, section 4")
def with_minimal_filtering(rates: Floats, table: KernelTable) -> Floats:
    """Return the FLOP/s of rows, where libraries work out float32 convolutions of 3 x 3 with fewer multiplications.

    They do so where matrix units do not take float32: on GPUs before Ampere.
    """
    filtered = table.convolution.is_minimal & (table.item_bytes == 4)
    return np.where(filtered, rates * _MINIMAL_FILTERING, rates)


@rule("narrow-grouped-convolutions", "microbenchmarks of depthwise kernels, sources in devices/efficiency.yaml")
def with_narrow_convolutions(rates: Floats, table: KernelTable, peaks: Floats, efficiency: Efficiency) -> Floats:
    """Return the FLOP/s of rows, where grouped convolutions too narrow for matrix units run on vector units."""
    width = table.gemm.fixed[:, 2]
    narrow = table.gemm.is_grouped & (width < efficiency.min_matrix_unit_channels)
    found = rates.copy()
    found[narrow] = efficiency.grouped_conv_flops_per_second(
        peaks[narrow], table.item_bytes[narrow], width[narrow], table.is_backward[narrow]
    )
    return found


@rule("nchw-transposes", "profile in pytorch issue 34977: nchwToNhwcKernel beside 16-bit convolutions")
def nchw_seconds(table: KernelTable, batch: int, chip: Chip, efficiency: Efficiency) -> Floats:
    """Return the seconds of transpositions of 16-bit images that have channels first.

    Kernels of Volta and Turing write channels first themselves (`volta_fp16_s884cudnn_..._nhwc2nchw`, in the profile
    that the rate is from); those of Ampere and later are `..._nhwckrsc_nhwc` and a `nhwcToNchwKernel`.
    """
    operands, results = table.transposed_bytes(batch)
    to_last, to_first = (chip.memory_bytes_per_second * share for share in efficiency.transpose_shares)
    after = results / to_first if takes_float32(chip) else 0.0
    return np.where(table.item_bytes == 2, operands / to_last + after, 0.0)


def attention_kernels(
    rows: FusedAttentionRows, gemm: Floats, flops: Floats, rates: Floats, peaks: Floats, efficiency: Efficiency
) -> tuple[Floats, Floats]:
    """Return (FLOPs, FLOP/s) of each row, where attention in one kernel reaches its own share of the peak.

    The FLOPs of causal attention are those of the pairs that are not masked; kernels work whole blocks of pairs.
    """
    length, head, needed = _pairs(gemm, efficiency)
    worked = np.where(rows.causal & (rows.forward | rows.backward), 2 * flops * needed, flops)
    full, causal = (efficiency.attention.shares(length, head, causal=masked) for masked in (False, True))
    forward, backward = (peaks * np.where(rows.causal, *of_pass) for of_pass in zip(causal, full, strict=True))
    return worked, np.where(rows.forward, forward, np.where(rows.backward, backward, rates))


def lstm_rates(
    rows: LstmRows, gemm: Floats, flops: Floats, rates: Floats, peaks: Floats, share: Callable[[Floats, Bools], Floats]
) -> Floats:
    """Return the FLOP/s of each row, where an LSTM in one call multiplies its inputs at once and its units in steps.

    gemm   (groups, m, n, k) of a step of the recurrence
    rates  FLOP/s of a product of that shape
    share  the share of the peak that products reach, from their sizes and their rows
    """
    at = rows.rows
    sequential, batched = 2 * gemm[at].prod(axis=1) * rows.steps[at], gemm[at].copy()
    batched[:, 1] *= rows.steps[at]
    seconds = sequential / rates[at] + np.maximum(flops[at] - sequential, 0.0) / (peaks[at] * share(batched, at))
    found = rates.copy()
    found[at] = flops[at] / seconds
    return found


def _pairs(gemm: Floats, efficiency: Efficiency) -> tuple[Floats, Floats, Floats]:
    """Return (length, head width, share of pairs in blocks that causal attention does not skip) of each row."""
    length = np.maximum(gemm[:, 1:].max(axis=1, initial=1.0), 1.0)
    head = np.maximum(gemm[:, 1:].min(axis=1, initial=np.inf), 1.0)
    block = min(n for _, n in efficiency.tiles)
    return length, head, np.minimum(1.0, (length + block) / (2 * length))


@rule("fused-attention", "Keras ops.dot_product_attention; Dao 2023, arXiv 2307.08691: five products backward")
def fused_attention(
    rows: AttentionRows, gemm: Floats, flops: Floats, rates: Floats, peaks: Floats, efficiency: Efficiency
) -> tuple[Floats, Floats]:
    """Return (FLOPs, FLOP/s) of each row of a software that runs attention of several traced operations as one kernel.

    Its backward pass makes the scores again, a fifth product beside four, and of masked pairs whole blocks are skipped.
    """
    length, head, blocks = _pairs(gemm, efficiency)
    needed = blocks if rows.causal else np.ones(len(flops))
    worked = np.where(rows.vector, 0.0, flops)
    worked = np.where(rows.forward, flops * needed, np.where(rows.backward, 1.25 * flops * needed, worked))
    peak = peaks[rows.forward | rows.backward].max(initial=0.0)  # operands are narrow, if scores are not
    forward, backward = (peak * share for share in efficiency.attention.shares(length, head, causal=rows.causal))
    return worked, np.where(rows.forward, forward, np.where(rows.backward, backward, rates))
