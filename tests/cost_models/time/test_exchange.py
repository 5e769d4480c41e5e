"""Seconds of collectives that nothing hides, against hand formulas."""

from dataclasses import replace

import pytest

from cost_models.config import Layout
from cost_models.parallel.collectives import all_gather, all_reduce, reduce_scatter, slowest_of
from cost_models.time.exchange import BUCKET_BYTES, BucketedExchange, state_of
from cost_models.time.kernels import kernel_table
from cost_models.time.step import step_time
from cost_models.xla.buffers.schedule import Updates
from cost_models.xla.profiles.choice import compiler_profile
from tests.builders.timed_steps import K, N, config
from tests.builders.workloads import cluster, dense

PEAK, BANDWIDTH = 1e14, 1e12


def waiting(time, devices):
    """Seconds until the slowest of several GPUs is done."""
    return (time.compute_seconds + time.memory_seconds) * (slowest_of(devices) - 1)


def test_data_parallelism_adds_the_all_reduces_that_the_backward_pass_does_not_hide():
    machine = cluster("gpu", 8, local=True)
    workload, asked = dense(K, N), config(64, data=8)
    gradients = all_reduce(4 * K * N, machine, 8).seconds
    loss = all_reduce(4, machine, 8).seconds
    exposed = step_time(workload, asked, machine, overlap=0.0)
    assert exposed.communication_seconds == pytest.approx(gradients + loss + waiting(exposed, 8))
    table = kernel_table(workload, compiler_profile("gpu"), Updates.TOGETHER)
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


def exposed(exchange, *, shard=False, forward=0.0, backward=0.0, accumulation=1):
    machine = cluster("gpu", 8, local=True)
    asked = config(64, data=8, accumulation=accumulation, layout=Layout(shard_state=shard))
    return exchange.exposed_seconds(state_of(dense(K, N)), forward, backward, asked, machine)


def test_buckets_are_reduced_beside_the_backward_pass_and_the_last_one_after_it():
    reduced = 4 * K * N
    whole = all_reduce(reduced, cluster("gpu", 8, local=True), 8).seconds
    plain = BucketedExchange(contention=0.0)
    last = whole * BUCKET_BYTES / reduced
    assert exposed(plain) == pytest.approx(whole)
    assert exposed(plain, backward=2 * whole) == pytest.approx(last)
    assert exposed(replace(plain, overlaps=False), backward=2 * whole) == pytest.approx(whole)
    assert exposed(plain, backward=2 * whole, accumulation=4) == pytest.approx(last / 4)
    slowed = exposed(BucketedExchange(contention=0.5), backward=2 * whole)
    assert slowed == pytest.approx(last + 0.5 * (whole - last))


def test_the_last_bucket_holds_the_whole_gradient_of_a_table():
    reduced = 4 * K * N
    machine, asked = cluster("gpu", 8, local=True), config(64, data=8)
    state = replace(state_of(dense(K, N)), table_parameters=K * N / 2)
    whole = all_reduce(reduced, machine, 8).seconds
    plain = BucketedExchange(contention=0.0)
    found = plain.exposed_seconds(state, 0.0, 2 * whole, asked, machine)
    assert found == pytest.approx(whole / 2)


def test_split_state_is_gathered_before_each_pass_in_its_own_width():
    machine = cluster("gpu", 8, local=True)
    gathered = all_gather(2 * K * N, machine, 8).seconds
    scattered = reduce_scatter(4 * K * N, machine, 8).seconds
    plain = BucketedExchange(gather_bytes=2, contention=0.0)
    assert exposed(plain, shard=True) == pytest.approx(2 * gathered + scattered)
    assert exposed(plain, shard=True, forward=1.0, backward=1.0) == 0.0


def test_state_adds_so_that_layers_can_be_repeated():
    one, two = state_of(dense(K, N)), state_of(dense(K, N)) * 2
    assert one + one == replace(two, statistics=one.statistics + one.statistics)
    assert two.gradient_bytes == 2 * one.gradient_bytes
    assert two.statistics == tuple((size, 2 * count) for size, count in one.statistics)
