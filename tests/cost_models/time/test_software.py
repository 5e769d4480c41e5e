"""Launches and the host's work against hand formulas."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from cost_models.hardware.efficiency import efficiency_of
from cost_models.hardware.lookup import cluster as published
from cost_models.time import step
from cost_models.time.software import EAGER_SECONDS, KERAS, LOOP_SECONDS, SECONDS_PER_VARIABLE, Software
from cost_models.time.step import step_time
from cost_models.xla.rules import registered
from studies import time_vs_published, time_vs_this_cpu
from studies.time_vs_published import ledger
from tests.builders.timed_steps import K, N, config, convolving
from tests.builders.workloads import cluster, dense

PEAK, BANDWIDTH = 1e14, 1e12


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


def time_rules():
    return {name for name, one in registered().items() if one.function.__module__.startswith("cost_models.time.")}


def test_every_rule_that_the_code_asks_for_is_registered_and_asked_for_somewhere():
    sources = "".join(path.read_text(encoding="utf-8") for path in Path(step.__file__).parent.glob("*.py"))
    asked = set(re.findall(r'applies\("([a-z0-9-]+)"\)', sources))
    slow = {f"cpu-{kind.replace('_', '-')}" for kind in efficiency_of(published("cpu")).slow_kernel_shares}
    of_an_exchange = {"contention"}  # a value of `BucketedExchange`
    assert asked | slow | of_an_exchange == time_rules()


def test_a_rule_is_switched_off_by_name():
    software = Software(without=frozenset({"tile-quantization"}))
    assert not software.applies("tile-quantization")
    assert software.applies("wave-quantization")
    workload, asked, machine = convolving("float32"), config(3), published("gpu-a100-40gb")
    with_it, without = (step_time(workload, asked, machine, software=one) for one in (KERAS, software))
    assert without.compute_seconds < with_it.compute_seconds


def test_every_rule_has_a_row_in_a_ledger_and_pays_or_says_why_it_stays():
    ledgers = (Path(module.__file__).with_name("ledger.csv") for module in (time_vs_published, time_vs_this_cpu))
    entries = [one for path in ledgers for one in ledger.read(path)]
    kept = [one for one in entries if one.state == "kept"]
    assert {one.rule for one in kept} == time_rules()
    assert not {one.rule for one in entries if one.state == "deleted"} & time_rules()
    idle = {one.rule for one in kept} - {one.rule for one in kept if one.buys or one.note}
    assert not idle
