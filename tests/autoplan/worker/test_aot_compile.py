"""Compilations ahead of time need the same bytes as compilations by hand, for devices that this machine lacks."""

import json
import os
import subprocess
import sys

import pytest

from autoplan.errors import HardwareError
from autoplan.jobs.budget import Clock
from autoplan.jobs.client import Client
from autoplan.jobs.runner import JobRunner
from autoplan.machine import local_hardware
from autoplan.plan.records import CompilerEvidence, FailureKind
from autoplan.sources.source import resolve
from autoplan.worker import aot_compile
from cost_models.config import Batch, Layout, Mesh, Precision, TrainConfig
from cost_models.hardware.compile_targets import CompilerTarget

MODELS = ("convolutional", "attention", "fused_attention")
GPUS = ("gpu-a100-80gb-x2", "gpu-h100-80gb-x2")
TARGETS = ("tpu-v4-8", "tpu-v5e-4", "tpu-v6e-4", *GPUS)
QUICK = (
    ("attention", "tpu-v5e-4"),
    ("fused_attention", "gpu-a100-80gb-x2"),
)
"""What other tests than the slow ones compile."""
BATCH = 32
ONE_CHIP = CompilerTarget("tpu", "v5e:1x1", 1)


@pytest.fixture(scope="module")
def by_hand(request, root):
    """Bytes by model and target, as far as they are asked for, from a process that does not use autoplan."""
    asked = [
        f"{item.callspec.params['model']} {item.callspec.params['target']}"
        for item in request.session.items
        if item.path == request.path and "by_hand" in item.fixturenames
    ]
    program = root / "tests/models/plain_lowering.py"
    ran = subprocess.run(
        [sys.executable, str(program), *asked],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    return json.loads(ran.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def client(root):
    path = os.pathsep.join([str(root / "tests/models"), *sys.path])
    with Client("jax", environment={"PYTHONPATH": path}) as one:
        yield one


BUILDER = """
import lowered
def build_model():
    return lowered.MODELS[{name!r}]()
def train_data():
    return lowered.data({name!r})
"""


@pytest.fixture
def jobs(client, tmp_path):
    def on(model, hardware):
        path = tmp_path / f"{model}.py"
        path.write_text(BUILDER.format(name=model))
        cluster = local_hardware.resolve(hardware)
        return JobRunner(client, resolve(str(path), [], 1), "jax", cluster, Clock.start(None), baseline=config())

    return on


def config(data=1, **changes):
    return TrainConfig(Batch.from_global(BATCH, data=data), mesh=Mesh(data), **changes)


@pytest.mark.parametrize(
    ("model", "target"),
    [
        pytest.param(model, target, marks=() if (model, target) in QUICK else pytest.mark.slow)
        for model in MODELS
        for target in (GPUS if model == "fused_attention" else TARGETS)
    ],
)
def test_the_evidence_equals_a_compilation_by_hand(by_hand, jobs, model, target):
    there = jobs(model, target)
    found = there.compile(config(there.cluster.devices))
    assert isinstance(found, CompilerEvidence), found
    said = found.memory
    figures = [said.argument_bytes, said.output_bytes, said.alias_bytes, said.temporary_bytes]
    assert figures == by_hand[f"{model} {target}"]
    state_bytes = said.argument_bytes + said.output_bytes - said.alias_bytes
    assert said.total_bytes == state_bytes + said.temporary_bytes
    if target.startswith("tpu"):  # whose temporaries count gaps of the heap twice
        assert said.temporary_bytes / 2 <= said.temporary_heap_bytes <= said.temporary_bytes
        assert said.must_fit_bytes == state_bytes + said.temporary_heap_bytes + said.code_bytes


def test_sharded_state_is_a_share_of_the_state(jobs):
    there = jobs("dense", "gpu-a100-80gb-x8")
    whole = there.compile(config(8)).memory
    split = there.compile(config(8, layout=Layout(shard_state=True))).memory
    # 8x16 and 16x1 kernels and the 16 biases split over 8 devices; what has no such dimension is whole everywhere.
    assert whole.argument_bytes - split.argument_bytes == (8 * 16 + 16 + 16) * 4 * 7 // 8


def test_accumulation_adds_the_accumulators(jobs):
    there = jobs("dense", "gpu-a100-80gb")
    once = there.compile(config()).memory
    often = there.compile(config().with_(batch=Batch.from_global(BATCH // 4, accumulation=4))).memory
    weights = 8 * 16 + 16 + 16 + 1
    rows = BATCH * 3 // 4 * (8 + 1)
    assert often.alias_bytes - once.alias_bytes == 4 * weights
    assert often.argument_bytes - once.argument_bytes == 4 * (weights - rows)


def test_a_cpu_compiles_for_itself(jobs):
    found = jobs("dense", "cpu").compile(config(precision=Precision.MIXED_BFLOAT16))
    assert found.target == "XLA:CPU host"
    assert found.memory.total_bytes > 0
    assert set(found.versions) == {"jax", "jaxlib"}


def test_a_program_that_does_not_fit_has_needed_and_available_bytes(jobs):
    found = jobs("wide", "tpu-v5e-1").compile(TrainConfig(Batch(2**18)))
    assert found.kind is FailureKind.COMPILE_OOM
    assert found.needed_bytes > found.available_bytes == pytest.approx(15.75 * 2**30, rel=1e-3)


def test_more_devices_than_the_slice_has(jobs):
    found = jobs("dense", "tpu-v5e-4").compile(config(8))
    assert found.kind is FailureKind.UNSUPPORTED
    assert "the mesh data=8,model=1 needs 8 devices, but XLA:TPU v5e:2x2 has 4" in found.message


def test_without_jit_compile_there_is_no_program_to_compile(jobs):
    found = jobs("dense", "cpu").compile(config(jit_compile=False))
    assert "jit_compile is off, so there is no program to compile" in found.message


def test_an_operation_that_the_target_does_not_have(jobs):
    found = jobs("eigenvalues", "tpu-v5e-1").compile(config())
    assert found.kind is FailureKind.UNSUPPORTED
    assert found.message.startswith("the compiler of XLA:TPU v5e:1x1 rejects this training program (")
    assert "eig" in found.message


def test_a_compiler_that_crashes(jobs):
    found = jobs("crash", "cpu").compile(config())
    assert found.kind is FailureKind.CRASH
    assert "SIGSEGV" in found.message


def test_a_compiler_that_hangs(jobs):
    for limit_seconds in (8, 30, 90):  # a busy machine may need longer to reach the compiler
        found = jobs("hang", "cpu").compile(config(), limit_seconds=limit_seconds)
        if "phase compile" in found.message:
            break
    assert found.kind is FailureKind.TIMEOUT
    assert "phase compile" in found.message


def test_hardware_without_a_compiler_target(jobs):
    with pytest.raises(HardwareError, match="XLA:GPU has no description of NVIDIA T4"):
        jobs("dense", "gpu-t4").compile(config())


@pytest.mark.parametrize(
    ("message", "needed"),
    [
        ("XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 33.27G of 30.75G hbm.", 33.27),
        ("Out of memory while trying to allocate 100 bytes", None),
    ],
)
def test_bytes_of_a_program_that_does_not_fit_are_read_from_messages(message, needed):
    found = aot_compile.failure_of(RuntimeError(f"RESOURCE_EXHAUSTED: {message}"), ONE_CHIP, 0)
    assert isinstance(found, aot_compile.ProgramTooLarge)
    assert found.needed_bytes == (None if needed is None else round(needed * 2**30))


@pytest.mark.parametrize(
    "message",
    [
        "Ran out of memory in memory space vmem. Used 18.62M of 16.00M vmem. Exceeded vmem capacity by 2.62M.",
        "Scoped allocation with size 17.22M and limit 16.00M exceeded scoped vmem limit by 1.22M.",
        "Shared memory size limit exceeded: requested 200000, available 101376",
    ],
)
def test_exceeded_on_chip_memory_is_not_exceeded_device_memory(message):
    found = aot_compile.failure_of(RuntimeError(f"RESOURCE_EXHAUSTED: {message}"), ONE_CHIP, 0)
    assert isinstance(found, aot_compile.CompilerRejection)
