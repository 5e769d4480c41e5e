"""Seconds of whole micro-steps against hand formulas."""

from dataclasses import replace

import pytest

from cost_models.hardware.cluster import share
from cost_models.hardware.efficiency import efficiency_of
from cost_models.time.software import OptimizerKernels, Software
from cost_models.time.step import device_time, step_time, step_time_of_layers
from cost_models.workload.workload import Kind, Op
from tests.builders.timed_steps import LOCAL, K, N, config, one_product
from tests.builders.workloads import B, Step, cluster, dense

PEAK, BANDWIDTH = 1e14, 1e12


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


def test_without_a_compiler_pytorch_has_a_kernel_a_layer():
    workload = dense(K, N)
    asked = config(4096, backend="torch", jit_compile=False)
    eager = step_time(workload, asked.with_(backend="jax"), LOCAL)
    library = step_time(workload, asked, LOCAL)
    assert library.memory_seconds <= eager.memory_seconds


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


def test_published_rates_are_not_reached_in_full():
    published, measured = (
        step_time(one_product(), config(4096), cluster("gpu", local=local)).micro_step_seconds
        for local in (False, True)
    )
    shares = efficiency_of(cluster("gpu"))
    moved = 4 * (4096 * K + K * N + 4096 * N) / BANDWIDTH / shares.stream_share
    assert published == pytest.approx(measured / shares.gemm_share + (1 - shares.overlap) * moved)


def test_a_scatter_moves_what_is_scattered_and_not_the_table():
    step = Step()
    table, rows, new = step.weight("table", 1_000_000, 128), step.input(B, dtype="int32"), step.input(B, 128)
    end = step.op(Kind.SCATTER, (table, rows, new), (1_000_000, 128))
    time = step_time(step.workload(end), config(256), LOCAL)
    assert time.memory_seconds == pytest.approx(3 * (256 * 128 * 4 + 256 * 4) / BANDWIDTH)


def test_layers_are_extrapolated_from_one_and_two():
    def deep(layers):
        step = Step()
        value = step.input(B, 512)
        for number in range(layers):
            value = step.dot(value, step.weight(f"w{number}", 512, 512), (B, 512), B, 512, 512)
        return step.workload(value)

    asked = config(4096)
    found = step_time_of_layers(deep(1), deep(2), 7, asked, LOCAL)
    traced = step_time(deep(7), asked, LOCAL)
    assert found.bound == traced.bound == "compute"
    assert found.parts.values() == pytest.approx(traced.parts.values())
    assert (found.mfu, found.samples_per_second) == pytest.approx((traced.mfu, traced.samples_per_second))


def test_another_optimizer_replaces_the_traced_one():
    workload, asked = dense(K, N), config(64)
    parameters = K * N
    adam = OptimizerKernels(passes=20, kernels=10)
    machine = cluster("gpu", local=True, kernel_launch_seconds=1e-6)
    traced = device_time(workload, asked, machine).update.seconds
    found = step_time(workload, asked, machine, software=Software(optimizer=adam))
    before = step_time(workload, asked, machine)
    expected = 4 * parameters * 20 / BANDWIDTH + 10 * 1e-6 - traced
    assert found.memory_seconds - before.memory_seconds == pytest.approx(expected)
    waiting = OptimizerKernels(passes=0, kernels=10, waits=True)
    assert waiting.seconds(parameters, 5, BANDWIDTH, 1e-6) == pytest.approx(50 * 1e-5)


def test_an_optimizer_that_runs_once_an_update_costs_each_micro_step_its_share():
    workload, asked = dense(K, N), config(64, accumulation=4)
    adam = OptimizerKernels(passes=20)
    found = step_time(workload, asked, LOCAL, software=Software(optimizer=adam, updates_once=True))
    none = step_time(workload, asked, LOCAL, software=Software(optimizer=OptimizerKernels(0), updates_once=True))
    assert found.memory_seconds - none.memory_seconds == pytest.approx(4 * K * N * 20 / BANDWIDTH / 4)


def test_older_libraries_move_the_bytes_of_other_kernels_than_products_more_slowly():
    step = Step()
    step.op(Kind.ELEMENTWISE, (step.input(B, N),), (B, N))
    workload = step.workload(step.ops[-1].writes[0])
    slower, plain = (
        step_time(workload, config(1024), LOCAL, software=Software(memory_bound_slowdown=factor)) for factor in (2, 1)
    )
    assert slower.memory_seconds == pytest.approx(2 * plain.memory_seconds)
