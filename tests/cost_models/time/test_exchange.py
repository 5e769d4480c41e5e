"""Seconds of collectives that nothing hides, against hand formulas."""

import pytest

from cost_models.config import Layout
from cost_models.parallel.collectives import all_gather, all_reduce, reduce_scatter, slowest_of
from cost_models.time.kernels import kernel_table
from cost_models.time.step import step_time
from cost_models.xla.buffers.liveness import Updates
from cost_models.xla.target import target_of
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
