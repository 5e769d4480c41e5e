"""Seconds against hand formulas: a chip of 100 TFLOP/s and 1 TB/s, reached in full where it is `local`."""

from dataclasses import replace

import numpy as np
import pytest

from cost_models.config import Batch, Layout, Mesh, Precision, TrainConfig
from cost_models.errors import HardwareError
from cost_models.hardware.cluster import share
from cost_models.hardware.efficiency import efficiency_of
from cost_models.hardware.lookup import cluster as published
from cost_models.parallel.collectives import all_gather, all_reduce, reduce_scatter, slowest_of
from cost_models.time.kernels import kernel_table
from cost_models.time.roofline import (
    EAGER_SECONDS,
    LOOP_SECONDS,
    SECONDS_PER_VARIABLE,
    kernel_seconds,
    peak_rate,
    runs_fused,
    step_time,
)
from cost_models.workload.affine import Affine
from cost_models.workload.workload import Kind, Op
from cost_models.xla.buffers.liveness import Updates
from cost_models.xla.target import target_of
from tests.builders.workloads import HEAD, HEADS, B, Step, attention, chip, cluster, dense

PEAK, BANDWIDTH = 1e14, 1e12
K = N = 4096
LOCAL = cluster("gpu", local=True)


def config(local=4096, data=1, accumulation=1, **more):
    return TrainConfig(Batch(local, data, accumulation), mesh=Mesh(data), **more)


def one_product():
    step = Step()
    x, w = step.input(B, K), step.weight("w", K, N)
    return step.workload(step.dot(x, w, (B, N), B, K, N))


def test_a_large_product_takes_its_flops_over_the_peak():
    time = step_time(one_product(), config(4096), LOCAL)
    assert time.micro_step_seconds == pytest.approx(2 * 4096 * K * N / PEAK)
    assert (time.bound, time.memory_seconds, time.communication_seconds) == ("compute", 0, 0)
    assert time.mfu == pytest.approx(1.0)


def test_a_thin_product_takes_its_bytes_over_the_bandwidth():
    batch = 64
    time = step_time(one_product(), config(batch), LOCAL)
    assert time.memory_seconds == pytest.approx(4 * (batch * K + K * N + batch * N) / BANDWIDTH)
    assert time.bound == "memory"


def test_an_elementwise_kernel_moves_its_operands_once():
    step = Step()
    x = step.input(B, N)
    a = step.op(Kind.ELEMENTWISE, (x,), (B, N))
    b = step.op(Kind.ELEMENTWISE, (a,), (B, N))
    time = step_time(step.workload(b), config(1024), LOCAL)
    assert time.memory_seconds == pytest.approx(2 * 4 * 1024 * N / BANDWIDTH)


def test_the_parts_add_up_and_an_update_is_its_micro_steps():
    cost = step_time(dense(K, N), config(64, accumulation=4), cluster("gpu", kernel_launch_seconds=1e-6))
    parts = cost.compute_seconds + cost.memory_seconds + cost.communication_seconds + cost.overhead_seconds
    assert cost.micro_step_seconds == pytest.approx(parts)
    assert cost.update_seconds == pytest.approx(4 * cost.micro_step_seconds)
    assert cost.samples_per_second == pytest.approx(64 / cost.micro_step_seconds)


def test_accumulation_costs_the_traffic_of_accumulators_and_of_choosing_between_two_states():
    alone, accumulating = (step_time(dense(K, N), config(64, accumulation=n), LOCAL) for n in (1, 4))
    parameters = 4 * K * N
    extra = accumulating.micro_step_seconds - alone.micro_step_seconds
    assert extra == pytest.approx((3 * parameters + 2 * parameters) / BANDWIDTH)


def test_every_kernel_costs_a_launch():
    launch = 1e-3
    free, dear = (step_time(dense(K, N), config(), cluster("gpu", kernel_launch_seconds=s)) for s in (0, launch))
    kernels = 5
    assert dear.overhead_seconds - free.overhead_seconds == pytest.approx(kernels * launch)


def test_the_host_hands_over_every_variable_for_each_micro_step():
    workload, dispatch = dense(K, N, slots=2), 2e-5
    time = step_time(workload, config(), cluster("cpu", dispatch_seconds=dispatch))
    assert time.overhead_seconds == pytest.approx(dispatch + LOOP_SECONDS + 3 * SECONDS_PER_VARIABLE)


def test_beside_an_accelerator_the_host_works_ahead():
    busy = step_time(dense(K, N), config(8192), cluster("gpu", dispatch_seconds=2e-5))
    idle = step_time(dense(8, 8), config(1), cluster("gpu", dispatch_seconds=2e-5))
    assert busy.overhead_seconds == pytest.approx(2e-5)
    assert idle.overhead_seconds == pytest.approx(2e-5 + LOOP_SECONDS + SECONDS_PER_VARIABLE, rel=0.01)
    assert idle.bound == "overhead"


@pytest.mark.parametrize(("backend", "gains"), [("jax", False), ("torch", False), ("tensorflow", True)])
def test_grouping_steps_spares_the_host_where_the_backend_does_that(backend, gains):
    workload = dense(8, 8)
    one, ten = (step_time(workload, config(1, backend=backend, steps_per_execution=n), cluster("cpu")) for n in (1, 10))
    assert ten.overhead_seconds == pytest.approx(one.overhead_seconds / (10 if gains else 1))


@pytest.mark.parametrize(("backend", "loop", "operation"), [("tensorflow", 1e-3, 4e-6), ("torch", 1.3e-3, 1e-5)])
def test_other_backends_dispatch_at_their_own_cost(backend, loop, operation):
    workload = replace(dense(8, 8), dispatches=250)
    eager, compiled = (
        step_time(workload, config(1, backend=backend, jit_compile=jit), cluster("cpu")) for jit in (False, True)
    )
    assert compiled.overhead_seconds == pytest.approx(loop)
    assert eager.overhead_seconds == pytest.approx(loop + 250 * operation)


def test_without_a_compiler_every_operation_is_dispatched_and_nothing_is_fused():
    machine = cluster("cpu", local=True, dispatch_seconds=2e-5, kernel_launch_seconds=1e-6)
    workload = replace(dense(64, 64, slots=2), dispatches=250)
    eager, compiled = (step_time(workload, config(32, jit_compile=jit), machine) for jit in (False, True))
    assert eager.overhead_seconds >= 250 * (2e-5 + EAGER_SECONDS)
    assert eager.micro_step_seconds > 50 * compiled.micro_step_seconds
    assert eager.bound == "overhead"


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


def test_depthwise_convolutions_do_not_run_on_matrix_units():
    assert shaped(Kind.CONV, 512, 4096, 1, 9) == pytest.approx(1e12 / PEAK / efficiency_of(LOCAL).depthwise_share)
    assert shaped(Kind.CONV, 2, 4096, 128, 4096) == pytest.approx(1e12 / PEAK)


def test_a_loop_costs_its_body_as_often_as_it_runs():
    def looping(repeat):
        step = Step()
        x, w = step.input(B, N), step.weight("w", N, N)
        out = step.tensor(B, N)
        inner = step.tensor(B, N)
        product = step.dot(x, w, (B, N), B, N, N)
        body = (replace(step.ops.pop(), writes=(inner,)),)
        step.ops.append(Op(Kind.LOOP, "scan", (x, w), (out,), repeat=repeat, body=body, results=(inner,)))
        assert product
        return step.workload(out)

    once, often = (step_time(looping(repeat), config(), LOCAL).micro_step_seconds for repeat in (1, 50))
    assert often == pytest.approx(50 * once)


def test_picking_rows_moves_the_rows_and_not_the_table():
    step = Step()
    table, rows = step.weight("table", 1_000_000, 128), step.input(B, dtype="int32")
    picked = step.op(Kind.GATHER, (table, rows), (B, 128))
    time = step_time(step.workload(picked), config(256), LOCAL)
    assert time.memory_seconds == pytest.approx((2 * 256 * 128 * 4 + 256 * 4) / BANDWIDTH)


def waiting(time, devices):
    """Seconds until the slowest of several GPUs is done."""
    return (time.compute_seconds + time.memory_seconds) * (slowest_of(devices) - 1)


def convolving(dtype):
    """A convolution of 3 x 3 at every place, 64 channels to 64."""
    step = Step()
    x, w = step.input(B, 56, 56, 64, dtype=dtype), step.weight("w", 3, 3, 64, 64, dtype=dtype)
    gemm = (Affine(1), Affine(0, 56 * 56), Affine(64), Affine(9 * 64))
    flops = Affine(0, 2 * 56 * 56 * 64 * 9 * 64)
    return step.workload(step.op(Kind.CONV, (x, w), (B, 56, 56, 64), dtype=dtype, gemm=gemm, flops=flops))


def test_float32_images_are_transposed_for_matrix_units_whose_kernels_write_the_results_as_they_were():
    def seconds(dtype, name):
        machine, asked = published(name), config(64)
        table = kernel_table(convolving(dtype), target_of("gpu"), Updates.TOGETHER)
        row = table.is_convolution
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
        table = kernel_table(workload, target_of("gpu"), Updates.TOGETHER)
        compute, _ = kernel_seconds(table, asked, published(name))
        return workload.flops.at(64) / compute[table.is_convolution]

    v100 = efficiency_of(published("gpu-v100-16gb"))
    assert flops_a_second("gpu-v100-16gb") > 2.25 * 0.5 * v100.float32_gemm_share * 15.7e12
    assert flops_a_second("gpu-v100-16gb") <= 2.25 * v100.float32_gemm_share * 15.7e12


def test_without_a_compiler_pytorch_has_a_kernel_a_layer():
    workload = dense(K, N)
    asked = config(4096, backend="torch", jit_compile=False)
    eager = step_time(workload, asked.with_(backend="jax"), LOCAL)
    library = step_time(workload, asked, LOCAL)
    assert library.memory_seconds <= eager.memory_seconds


def test_data_parallelism_adds_the_all_reduces_that_the_backward_pass_does_not_hide():
    machine = cluster("gpu", 8, local=True)
    workload, asked = dense(K, N), config(64, data=8)
    gradients = all_reduce(4 * K * N, machine, 8).seconds
    loss = all_reduce(4, machine, 8).seconds
    exposed = step_time(workload, asked, machine, overlap=0.0)
    assert exposed.communication_seconds == pytest.approx(gradients + loss + waiting(exposed, 8))
    table = kernel_table(workload, target_of("gpu"), Updates.TOGETHER)
    assert table.is_backward.sum() == 2
    hidden = step_time(workload, asked, machine, overlap=1.0)
    backward = exposed.communication_seconds - hidden.communication_seconds
    assert 0 < backward < gradients
    assert exposed.samples_per_second == pytest.approx(8 * 64 / exposed.micro_step_seconds)


def test_split_state_is_gathered_twice_and_its_gradients_are_scattered():
    machine = cluster("gpu", 8, local=True)
    split = config(64, data=8, layout=Layout(shard_state=True))
    parameters = 4 * K * N
    moved = 2 * all_gather(parameters, machine, 8).seconds + reduce_scatter(parameters, machine, 8).seconds
    loss = all_reduce(4, machine, 8).seconds
    time = step_time(dense(K, N), split, machine, overlap=0.0)
    assert time.communication_seconds == pytest.approx(moved + loss + waiting(time, 8))


def test_simulated_devices_are_shares_of_one_processor_so_that_compute_does_not_speed_up():
    whole = cluster("cpu", local=True)
    shares = share(whole, 4)
    workload = dense(K, N)
    alone = step_time(workload, config(256), whole)
    one_of_four = step_time(workload, config(256), shares)
    assert one_of_four.micro_step_seconds == pytest.approx(alone.micro_step_seconds)  # the idle ones give their share
    all_four = step_time(workload, config(64, data=4), shares)
    assert all_four.compute_seconds + all_four.memory_seconds >= 0.99 * alone.compute_seconds
    assert all_four.mfu <= 1


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


def test_published_rates_are_not_reached_in_full():
    published, measured = (
        step_time(one_product(), config(4096), cluster("gpu", local=local)).micro_step_seconds
        for local in (False, True)
    )
    shares = efficiency_of(cluster("gpu"))
    moved = 4 * (4096 * K + K * N + 4096 * N) / BANDWIDTH / shares.stream_share
    assert published == pytest.approx(measured / shares.gemm_share + (1 - shares.overlap) * moved)


def test_pytorch_keeps_float32_products_off_the_tensor_units():
    a100 = published("gpu-a100-40gb")
    jax, torch = (
        step_time(one_product(), config(4096, backend=backend), a100).compute_seconds for backend in ("jax", "torch")
    )
    assert torch / jax == pytest.approx(156 / 19.5, rel=0.01)


def test_attention_of_the_library_is_one_kernel_where_the_backend_has_one():
    table = kernel_table(attention(4096, library=True), target_of("gpu"), Updates.AT_ONCE)
    half = config(2, precision=Precision.MIXED_BFLOAT16)
    assert runs_fused(table, half, published("gpu-a100-40gb"))
    assert runs_fused(table, half, published("tpu-v4-8"))
    assert not runs_fused(table, half, published("gpu-v100-16gb"))
    assert not runs_fused(table, config(2), published("gpu-a100-40gb"))
    own = kernel_table(attention(4096, library=False), target_of("gpu"), Updates.AT_ONCE)
    assert not runs_fused(own, half, published("gpu-a100-40gb"))


def test_fused_attention_moves_no_scores_and_reaches_its_own_share_of_the_peak():
    length, batch, place = 4096, 2, published("gpu-a100-40gb")
    table = kernel_table(attention(length, library=True), target_of("gpu"), Updates.AT_ONCE)
    half = config(batch, precision=Precision.MIXED_BFLOAT16)
    compute, traffic = kernel_seconds(table, half, place, fused_attention=True)
    forward, _ = efficiency_of(place).attention.shares(np.array([length]), np.array([HEAD]), causal=False)
    flops = 2 * 2 * batch * HEADS * length * length * HEAD
    assert compute.sum() == pytest.approx(flops / 312e12 / forward[0], rel=1e-6)
    operands = 4 * batch * HEADS * length * HEAD * 2  # queries, keys and values in, the mixture out
    assert traffic.sum() == pytest.approx(operands / 1555e9 / efficiency_of(place).stream_share, rel=0.01)
    apart = kernel_seconds(table, half, place, fused_attention=False)
    assert apart[1].sum() > 10 * traffic.sum()


def test_fused_attention_multiplies_in_16_bits_whatever_its_weights_would_be_written_in():
    half, place = config(2, precision=Precision.MIXED_BFLOAT16), published("gpu-a100-40gb")
    narrow, wide = (
        kernel_seconds(
            kernel_table(attention(4096, library=True, weights_dtype=dtype), target_of("gpu"), Updates.AT_ONCE),
            half,
            place,
            fused_attention=True,
        )[0].sum()
        for dtype in ("bfloat16", "float32")
    )
    assert wide == pytest.approx(narrow, rel=1e-6)


def test_a_scatter_moves_what_is_scattered_and_not_the_table():
    step = Step()
    table, rows, new = step.weight("table", 1_000_000, 128), step.input(B, dtype="int32"), step.input(B, 128)
    end = step.op(Kind.SCATTER, (table, rows, new), (1_000_000, 128))
    time = step_time(step.workload(end), config(256), LOCAL)
    assert time.memory_seconds == pytest.approx(3 * (256 * 128 * 4 + 256 * 4) / BANDWIDTH)
