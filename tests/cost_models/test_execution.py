"""The key of a compiled program, and the questions whose answers depend on it alone."""

from dataclasses import fields, replace

import pytest

from cost_models.config import Affects, AttentionMode, Batch, Layout, Mesh, Precision, Remat, RematMode, TrainConfig
from cost_models.errors import WorkloadError
from cost_models.execution import (
    Executor,
    Origin,
    check,
    check_origin,
    check_platform,
    device_share,
    profile_for,
    program_key,
    schedule_of,
    updates_of,
)
from cost_models.hardware.cluster import share
from cost_models.hardware.lookup import cluster as catalogued
from cost_models.memory import memory
from cost_models.time.step import step_time
from cost_models.xla.buffers.schedule import Updates
from tests.builders.workloads import cluster, dense

PLAIN = TrainConfig(Batch(8))
OTHER = {
    "batch": Batch(16),
    "backend": "torch",
    "precision": Precision.MIXED_BFLOAT16,
    "mesh": Mesh(2),
    "layout": Layout(shard_state=True),
    "remat": Remat(RematMode.FULL),
    "attention": AttentionMode.UNFUSED,
    "steps_per_execution": 4,
    "jit_compile": False,
    "keep_freed_memory": True,
}
IN_THE_KEY = {"backend", "precision", "layout", "remat", "attention", "jit_compile"}


def test_every_field_of_a_configuration_is_in_the_key_or_not_on_purpose():
    assert set(OTHER) == {item.name for item in fields(TrainConfig)}
    changed = {name for name, value in OTHER.items() if program_key(PLAIN.with_(**{name: value})) != program_key(PLAIN)}
    assert changed == IN_THE_KEY


def test_an_origin_is_read_from_a_configuration_and_from_a_workload():
    assert Origin.of(PLAIN) == Origin.of_workload(dense(64, 32)) == Origin("float32", "none")
    assert str(Origin("mixed_bfloat16", "full")) == "mixed_bfloat16 with remat full"
    assert str(Origin("float32", "none", "unfused")) == "float32 with remat none and attention unfused"


def test_an_origin_has_every_field_that_affects_the_operations():
    changed = {name for name, value in OTHER.items() if Origin.of(PLAIN.with_(**{name: value})) != Origin.of(PLAIN)}
    assert changed == {name for name in OTHER if Affects.OPERATIONS in TrainConfig.affects(name)}


def test_a_field_that_does_not_affect_memory_leaves_its_bytes_as_they_are():
    on = cluster("gpu")
    plain = memory(dense(64, 32), PLAIN, on)
    without = [name for name in OTHER if Affects.MEMORY not in TrainConfig.affects(name)]
    assert without
    for name in without:
        assert memory(dense(64, 32), PLAIN.with_(**{name: OTHER[name]}), on) == plain
    assert memory(dense(64, 32), PLAIN.with_(batch=Batch(16)), on) != plain


def test_an_executor_is_a_backend_with_or_without_its_compiler():
    assert str(Executor.of(PLAIN)) == "jax with jit_compile"
    assert str(Executor.of(PLAIN.with_(backend="torch", jit_compile=False))) == "torch without jit_compile"


@pytest.mark.parametrize(
    ("name", "message"),
    [("precision", "traced with precision float32, so it says nothing about mixed_bfloat16"), ("remat", "remat none")],
)
def test_a_workload_of_another_origin_is_refused(name, message):
    check_origin(dense(64, 32), PLAIN)
    with pytest.raises(WorkloadError, match=message):
        check_origin(dense(64, 32), PLAIN.with_(**{name: OTHER[name]}))


def test_a_model_axis_is_refused():
    with pytest.raises(WorkloadError, match="mesh with model=2 is not yet estimated"):
        check(dense(64, 32), PLAIN.with_(mesh=Mesh(1, 2)))


def test_gradients_become_weights_by_batch_mesh_and_compiler():
    assert updates_of(PLAIN) is Updates.AT_ONCE
    assert updates_of(PLAIN.with_(jit_compile=False)) is Updates.TOGETHER
    assert updates_of(PLAIN.with_(mesh=Mesh(2))) is Updates.TOGETHER
    assert updates_of(PLAIN.with_(batch=Batch(8, accumulation=2))) is Updates.SELECTED


def test_the_schedule_is_that_of_the_target_at_the_local_batch():
    gpu = cluster("gpu", 8)
    plan = schedule_of(dense(64, 32), PLAIN, gpu)
    assert plan.kernels == schedule_of(dense(64, 32), PLAIN.with_(keep_freed_memory=True), gpu).kernels
    assert profile_for(PLAIN, gpu) != profile_for(PLAIN.with_(jit_compile=False), gpu)


def test_simulated_devices_share_the_rates_of_one_processor():
    machine = share(cluster("cpu", local=True), 4)
    assert device_share(PLAIN, machine) == 4.0
    assert device_share(PLAIN.with_(mesh=Mesh(4), batch=Batch(8, 4)), machine) == 1.0
    assert device_share(PLAIN, cluster("gpu", 8)) == 1.0


def test_a_workload_holds_for_devices_that_answer_keras_as_its_trace_was_answered():
    asked = replace(dense(64, 32), answers=(("cuDNN", True), ("compute capability >= 8.0", True)))
    for name in ("gpu-a100-80gb", "gpu-h100-80gb"):
        check_platform(asked, PLAIN, catalogued(name))
    with pytest.raises(
        WorkloadError, match=r"traced for a device with compute capability >= 8\.0: yes, so it does not"
    ):
        memory(asked, PLAIN, catalogued("gpu-v100-16gb"))
    with pytest.raises(
        WorkloadError, match=r"with cuDNN: yes, so it does not describe the step on a tpu; trace it again"
    ):
        step_time(asked, PLAIN, catalogued("tpu-v4-8"))
    with pytest.raises(WorkloadError, match="does not describe the step on a cpu"):
        memory(asked, PLAIN.with_(backend="torch"), catalogued("gpu-a100-80gb"))
