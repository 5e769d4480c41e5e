"""The probe on one device and on simulated devices, each in a process of its own."""

import json
import os
import subprocess
import sys

import pytest

from autoplan.errors import WorkerError
from autoplan.machine import local_hardware
from autoplan.worker.measure.machine_rates import DTYPES, measure_rates, median_seconds
from cost_models.parallel.collectives import all_reduce

CODE = """
import json
from autoplan.worker.measure.machine_rates import measure_rates
print(json.dumps(measure_rates('jax')))
"""


def measured(devices):
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
    }
    ended = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, env=environment, check=True)
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def alone():
    return measured(1)


@pytest.fixture(scope="module")
def four():
    return measured(4)


def test_a_profile_has_plausible_rates(alone):
    assert (alone["schema"], alone["backend"], alone["platform"], alone["devices"]) == (3, "jax", "cpu", 1)
    for dtype in DTYPES:
        assert alone["matmul_flops_per_second"][dtype]
        for rate in alone["matmul_flops_per_second"][dtype].values():
            assert 1e8 < rate < 1e15
    assert 1e8 < alone["memory_bytes_per_second"] < 1e13
    assert 0 <= alone["kernel_launch_seconds"] < 1e-3
    assert 1e7 < alone["fresh_page_bytes_per_second"] < 1e12
    assert 1e-7 < alone["dispatch_seconds"] < 1e-2
    assert 1e-6 < alone["host_micro_step_seconds"] < 1e-2
    assert 0 <= alone["host_variable_seconds"] < 1e-3
    assert alone["processors"] == len(os.sched_getaffinity(0))
    assert alone["cache_bytes"] is None or 2**16 <= alone["cache_bytes"] < 2**40
    assert alone["load_average"] >= 0
    assert alone["usable_memory_bytes"] is None, "a processor's runtime sets no limit"
    assert alone["all_reduce"] == []
    assert set(alone["versions"]) == {"python", "keras", "jax"}


def test_products_are_measured_at_sizes_from_small_to_large(alone):
    sizes = [int(size) for size in alone["matmul_flops_per_second"]["float32"]]
    assert sizes == sorted(sizes)
    assert sizes[0] == 256


def test_a_profile_becomes_this_machine(alone):
    here = local_hardware.resolve("local", profile=alone)
    assert here.chip.peak_flops_per_second["float32"] == max(alone["matmul_flops_per_second"]["float32"].values())
    assert here.chip.kind == "cpu"


@pytest.mark.slow
def test_an_all_reduce_over_several_devices_is_timed(four):
    assert four["devices"] == 4
    assert [row["devices"] for row in four["all_reduce"]] == [4, 4]
    small, large = four["all_reduce"]
    assert small["payload_bytes"] < large["payload_bytes"]
    assert 0 < small["seconds"] < large["seconds"]


def test_the_link_reproduces_the_timed_all_reduces(four):
    here = local_hardware.resolve("local", profile=four)
    assert (here.devices, here.simulated) == (4, True)
    large = four["all_reduce"][-1]
    assert all_reduce(large["payload_bytes"], here, 4).seconds == pytest.approx(large["seconds"], rel=0.01)


@pytest.mark.parametrize("backend", ["tensorflow", "torch", "numpy"])
def test_another_backend_than_that_of_keras_is_an_error(backend):
    with pytest.raises(
        WorkerError, match=f"requested for {backend}, but Keras runs on jax .* set KERAS_BACKEND={backend}"
    ):
        measure_rates(backend)


def test_the_median_excludes_the_first_two_calls():
    durations = iter([10.0, 10.0, *[1.0, 2.0, 9.0]])
    clock = {"now": 0.0}

    def call():
        clock["now"] += next(durations)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("autoplan.worker.measure.machine_rates.time.perf_counter", lambda: clock["now"])
        assert median_seconds(call) == 2.0


def test_fast_calls_are_repeated_up_to_a_limit():
    calls = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("autoplan.worker.measure.machine_rates.time.perf_counter", lambda: 0.0)
        assert median_seconds(lambda: calls.append(1)) == 0.0
    assert len(calls) == 202
