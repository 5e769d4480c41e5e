"""Kernels of GPUs against hand formulas."""

import numpy as np
import pytest

from cost_models.config import Precision
from cost_models.hardware.efficiency import efficiency_of
from cost_models.hardware.lookup import cluster as published
from cost_models.time.gpu import lstm_rates
from cost_models.time.kernels import LstmRows, kernel_table
from cost_models.time.roofline import kernel_seconds
from cost_models.time.software import Software
from cost_models.time.step import step_time
from cost_models.workload.affine import Affine
from cost_models.workload.lstm import Lstm
from cost_models.workload.workload import Kind
from cost_models.xla.buffers.schedule import Updates
from cost_models.xla.profiles.choice import compiler_profile
from tests.builders.timed_steps import LOCAL, config, convolving, one_product
from tests.builders.workloads import HEAD, HEADS, B, Step, attention, fused_attention

PEAK, BANDWIDTH = 1e14, 1e12


def shaped(kind, groups, m, n, k, machine=LOCAL):
    """1 TFLOP of products of that shape, on no memory to speak of."""
    step = Step()
    gemm = tuple(map(Affine, (groups, m, n, k)))
    y = step.op(kind, (step.input(B, 16),), (B, 16), gemm=gemm, flops=Affine(1e12))
    return step_time(step.workload(y), config(1), machine).compute_seconds


def test_depthwise_convolutions_do_not_run_on_matrix_units():
    assert shaped(Kind.CONV, 512, 4096, 1, 9) == pytest.approx(1e12 / PEAK / efficiency_of(LOCAL).depthwise_share)
    assert shaped(Kind.CONV, 2, 4096, 128, 4096) == pytest.approx(1e12 / PEAK)


def test_float32_images_are_transposed_for_matrix_units_whose_kernels_write_the_results_as_they_were():
    def seconds(dtype, name):
        machine, asked = published(name), config(64)
        table = kernel_table(convolving(dtype), compiler_profile("gpu"), Updates.TOGETHER)
        row = table.convolution.is_convolution
        _, traffic = kernel_seconds(table, asked, machine)
        return traffic[row], table.bytes_at(64)[row] / (machine.chip.memory_bytes_per_second * 0.9)

    traffic, moved = seconds("float32", "gpu-a100-40gb")
    operands = 4 * (64 * 56 * 56 * 64 + 9 * 64 * 64)  # the image and the kernel
    assert traffic == pytest.approx(moved + 2 * operands / (1555e9 * 0.9), rel=1e-3)
    for dtype, name in [("bfloat16", "gpu-a100-40gb"), ("float32", "gpu-v100-16gb")]:
        traffic, moved = seconds(dtype, name)
        assert traffic == pytest.approx(moved)


def test_minimal_filtering_spares_multiplications_where_matrix_units_take_no_float32():
    def flops_a_second(name):
        workload, asked = convolving("float32"), config(64)
        table = kernel_table(workload, compiler_profile("gpu"), Updates.TOGETHER)
        compute, _ = kernel_seconds(table, asked, published(name))
        return workload.flops.at(64) / compute[table.convolution.is_convolution]

    v100 = efficiency_of(published("gpu-v100-16gb"))
    assert flops_a_second("gpu-v100-16gb") > 2.25 * 0.5 * v100.float32_gemm_share * 15.7e12
    assert flops_a_second("gpu-v100-16gb") <= 2.25 * v100.float32_gemm_share * 15.7e12


def test_pytorch_keeps_float32_products_off_the_tensor_units():
    a100 = published("gpu-a100-40gb")
    jax, torch = (
        step_time(one_product(), config(4096, backend=backend), a100).compute_seconds for backend in ("jax", "torch")
    )
    assert torch / jax == pytest.approx(156 / 19.5, rel=0.01)


def test_fused_attention_moves_no_scores_and_reaches_its_own_share_of_the_peak():
    length, batch, place = 4096, 2, published("gpu-a100-40gb")
    table = kernel_table(attention(length), compiler_profile("gpu"), Updates.AT_ONCE)
    half = config(batch, precision=Precision.MIXED_BFLOAT16)
    compute, traffic = kernel_seconds(table, half, place, software=Software(fused_attention=True))
    forward, _ = efficiency_of(place).attention.shares(np.array([length]), np.array([HEAD]), causal=False)
    flops = 2 * 2 * batch * HEADS * length * length * HEAD
    assert compute.sum() == pytest.approx(flops / 312e12 / forward[0], rel=1e-6)
    operands = 4 * batch * HEADS * length * HEAD * 2  # queries, keys and values in, the mixture out
    assert traffic.sum() == pytest.approx(operands / 1555e9 / efficiency_of(place).stream_share, rel=0.01)
    apart = kernel_seconds(table, half, place, software=Software(fused_attention=False))
    assert apart[1].sum() > 10 * traffic.sum()


def test_fused_attention_multiplies_in_16_bits_whatever_its_weights_would_be_written_in():
    half, place = config(2, precision=Precision.MIXED_BFLOAT16), published("gpu-a100-40gb")
    narrow, wide = (
        kernel_seconds(
            kernel_table(attention(4096, weights_dtype=dtype), compiler_profile("gpu"), Updates.AT_ONCE),
            half,
            place,
            software=Software(fused_attention=True),
        )[0].sum()
        for dtype in ("bfloat16", "float32")
    )
    assert wide == pytest.approx(narrow, rel=1e-6)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_that_was_traced_as_one_kernel_costs_as_much_as_the_same_found_among_products(causal):
    """Forward passes: a library's kernel skips the blocks of pairs that a causal mask hides."""
    half, place, batch = config(2, precision=Precision.MIXED_BFLOAT16), published("gpu-a100-40gb"), 2
    found = kernel_table(attention(4096, causal=causal), compiler_profile("gpu"), Updates.AT_ONCE)
    one_kernel = kernel_table(fused_attention(4096, causal=causal), compiler_profile("gpu"), Updates.AT_ONCE)
    expected, _ = kernel_seconds(found, half, place, software=Software(fused_attention=True))
    compute, traffic = kernel_seconds(one_kernel, half, place)
    assert compute.sum() == pytest.approx(expected.sum(), rel=1e-3)
    moved = batch * HEADS * 4096 * (4 * HEAD * 2 + 4)  # queries, keys, values, the mixture, and a number a query
    rate = place.chip.memory_bytes_per_second * efficiency_of(place).stream_share
    assert traffic.sum() == pytest.approx(moved / rate, rel=1e-6)


def test_attention_of_a_trace_is_not_taken_for_one_kernel_unless_the_software_says_so():
    half, place = config(2, precision=Precision.MIXED_BFLOAT16), published("gpu-a100-40gb")
    table = kernel_table(attention(4096), compiler_profile("gpu"), Updates.AT_ONCE)
    as_traced, apart = kernel_seconds(table, half, place), kernel_seconds(table, half, place, software=Software())
    assert as_traced[1].sum() == apart[1].sum() > 10 * fused_bytes_seconds(place)


def fused_bytes_seconds(place):
    return 4 * 2 * HEADS * 4096 * HEAD * 2 / 1555e9 / efficiency_of(place).stream_share


def test_the_recurrence_runs_at_the_rate_of_its_small_product_and_the_inputs_at_that_of_a_large_one():
    """Rates of 1 and of 2 x 4 FLOP/s."""
    batch, steps, inputs, units = 16, 20, 64, 128
    call = Lstm(batch, steps, inputs, units)
    gemm = np.array([call.step_product, (1, 1, 1, 1)], np.float64)
    seen = []

    def share(sizes, at):
        seen.append((sizes.tolist(), at.tolist()))
        return np.array([4.0])

    rates = lstm_rates(
        LstmRows(np.array([steps, 0.0])),
        gemm,
        np.array([call.forward_flops, 7.0]),
        np.array([1.0, 3.0]),
        np.array([2.0, 2.0]),
        share,
    )
    assert call.forward_flops / rates[0] == pytest.approx(call.recurrent_flops + call.input_flops / 8)
    assert rates[1] == 3.0
    assert seen == [([[1, batch * steps, 4 * units, units]], [True, False])]
