"""Rates of kernels against hand formulas: a chip of 100 TFLOP/s and 1 TB/s, reached in full where it is `local`."""

from dataclasses import replace

import pytest

from cost_models.config import Precision
from cost_models.errors import HardwareError
from cost_models.hardware.efficiency import efficiency_of
from cost_models.time.roofline import peak_rate
from cost_models.time.step import step_time
from cost_models.workload.affine import Affine
from cost_models.workload.workload import Kind
from tests.builders.timed_steps import LOCAL, K, N, config
from tests.builders.workloads import B, Step, chip, dense

PEAK, BANDWIDTH = 1e14, 1e12


def test_the_dtype_of_the_operands_sets_the_rate():
    def product(dtype):
        step = Step()
        x, w = step.input(B, K, dtype=dtype), step.weight("w", K, N, dtype=dtype)
        return step.workload(step.dot(x, w, (B, N), B, K, N))

    single, half = (step_time(product(dtype), config(8192), LOCAL).compute_seconds for dtype in ("float32", "bfloat16"))
    assert single == pytest.approx(2 * half)


def shaped(kind, groups, m, n, k, machine=LOCAL):
    """1 TFLOP of products of that shape, on no memory to speak of."""
    step = Step()
    gemm = tuple(map(Affine, (groups, m, n, k)))
    y = step.op(kind, (step.input(B, 16),), (B, 16), gemm=gemm, flops=Affine(1e12))
    return step_time(step.workload(y), config(1), machine).compute_seconds


def test_tiles_that_are_not_filled_cost_as_if_they_were():
    smallest = min(n for _, n in efficiency_of(LOCAL).tiles)
    assert shaped(Kind.DOT, 1, 1024, 1024, 1024) == pytest.approx(1e12 / PEAK)
    assert shaped(Kind.DOT, 1, 1024, smallest // 4, 1024) == pytest.approx(4 * 1e12 / PEAK)
    assert shaped(Kind.DOT, 1, 1024, smallest + 1, 1024) == pytest.approx(1e12 / PEAK * 2 * smallest / (smallest + 1))


def test_a_rate_that_nobody_published_is_float32s_and_half_of_it_for_float64():
    made = chip("cpu", peak_flops_per_second={"float32": 1e12})
    assert peak_rate(made, "bfloat16") == 1e12
    assert peak_rate(made, "float64") == 5e11
    with pytest.raises(HardwareError, match="no peak rate for float16 or float32"):
        peak_rate(chip("gpu", peak_flops_per_second={"bfloat16": 1e12}), "float16")


def test_mixed_precision_is_held_against_the_peak_of_its_compute_dtype():
    workload = replace(dense(K, N), precision="mixed_bfloat16")
    time = step_time(workload, config(8192, precision=Precision.MIXED_BFLOAT16), LOCAL)
    flops = workload.model_flops.at(8192)
    assert time.mfu == pytest.approx(flops / time.micro_step_seconds / 2e14)


@pytest.mark.parametrize(
    ("backend", "dtype", "peak"), [("jax", "float32", 1e14), ("jax", "float64", 5e13), ("torch", "float32", 5e13)]
)
def test_float64_is_held_against_the_rate_at_which_its_backend_calculates(backend, dtype, peak):
    """JAX calculates it in float32, unless it is told otherwise: its step then has tensors of float64."""
    workload = dense(K, N)
    tensors = tuple(replace(tensor, dtype=dtype) for tensor in workload.tensors)
    wide = replace(workload, precision="float64", tensors=tensors)
    time = step_time(wide, config(8192, precision=Precision.FLOAT64, backend=backend), LOCAL)
    assert time.mfu == pytest.approx(workload.model_flops.at(8192) / time.micro_step_seconds / peak)
