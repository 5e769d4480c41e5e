"""One suite for every backend: what the runtime and the workers rely on, shown in a worker of each.

The worker of a backend can import no other one, as in an environment where only that one is installed.
"""

import contextlib
import json
import os
import sys
from pathlib import Path

import pytest

from autoplan.errors import ConfigError, NeverFits
from autoplan.jobs.client import Client
from autoplan.jobs.messages import Job, JobKind, NumericsRun, Observation
from autoplan.machine import local_hardware
from autoplan.plan.records import Measurement
from autoplan.sources import source
from cost_models.config import Precision

CHECKS = Path(__file__).with_name("checks.py")
BACKENDS = ("jax", "tensorflow", "torch")
QUICK = {"groups": 3, "group_seconds": 0.05, "max_seconds": 20}


class Worker:
    """The workers of one backend."""

    def __init__(self, name, client, mlp):
        self.name, self._client, self._mlp = name, client, mlp

    def ask(self, kind, *, script=None, arguments=("--samples", "2000"), **job):
        spec = source.resolve(str(script or self._mlp), arguments)
        return self._client.run(Job(kind=kind, source=spec, backend=self.name, **job), time_limit_seconds=240)

    def value(self, kind, **job):
        result = self.ask(kind, **job)
        assert result.failure is None, result.failure
        return result.value

    def changed(self, own, **knobs):
        return own.with_(**knobs)


def without(others, folder):
    """A folder whose packages of these names cannot be imported."""
    for name in others:
        (folder / f"{name}.py").write_text(f"raise ModuleNotFoundError(\"No module named '{name}'\", name='{name}')\n")
    return os.pathsep.join([str(folder), *sys.path])


@pytest.fixture(scope="module", params=BACKENDS)
def worker(request, scripts, tmp_path_factory):
    others = [name for name in BACKENDS if name != request.param]
    path = without(others, tmp_path_factory.mktemp("without"))
    with Client(request.param, environment={"PYTHONPATH": path}) as client:
        yield Worker(request.param, client, scripts / "mlp.py")


@pytest.fixture(scope="module")
def left_out(worker, request):
    """Checks that only run with the slow tests: torch.compile calls a C++ compiler, which takes a minute."""
    return ["compilation"] if worker.name == "torch" and request.config.option.markexpr == "not slow" else []


@pytest.fixture(scope="module")
def seen(worker, left_out, tmp_path_factory):
    """Results of the checks, by name."""
    folder = tmp_path_factory.mktemp("checks")
    ended = "all were done"
    with contextlib.suppress(NeverFits):  # as it is to end: the checks fit for themselves, unwatched
        ended = worker.ask(JobKind.OBSERVE, script=CHECKS, arguments=[str(folder / "seen.json"), *left_out]).failure
    found = json.loads((folder / "seen.json").read_text())

    def of(name):
        if name in left_out:
            pytest.skip("this check runs with the slow tests")
        assert name in found, f"it was not reached: {ended}"
        assert "error" not in found[name], found[name]["error"]
        return found[name]["value"]

    return of


@pytest.fixture(scope="module")
def observed(worker):
    return Observation.model_validate(worker.value(JobKind.OBSERVE))


def test_devices_are_reported(worker, seen):
    found = seen("devices")
    assert found["count"] >= 1
    assert found["kind"]
    assert found["platform"] in ("cpu", "gpu", "tpu")
    for name in ("memory_bytes", "peak_bytes"):
        assert found[name] is None or found[name] > 0
    assert found["version"][0].isdigit()


def test_no_other_backend_is_needed(worker, seen):
    assert seen("imported") == [worker.name]


def test_a_mesh_larger_than_the_machine_is_an_error(worker, seen):
    kind, message = seen("meshes_that_are_not_there")
    assert kind == "ConfigError"
    assert "1000 devices" in message


def test_simulated_devices_are_created_or_rejected(worker):
    if worker.name == "jax":
        assert Observation.model_validate(worker.value(JobKind.OBSERVE, devices=3)).devices == 3
        return
    with pytest.raises(ConfigError, match="3 simulated devices were requested"):
        worker.ask(JobKind.OBSERVE, devices=3)


@pytest.mark.parametrize(
    ("policy", "compute", "optimizer"),
    [
        ("float32", "float32", "SGD"),
        ("mixed_bfloat16", "bfloat16", "SGD"),
        ("mixed_float16", "float16", "LossScaleOptimizer"),
    ],
)
def test_precision_is_applied(seen, policy, compute, optimizer):
    found = seen("precision")[policy]
    assert (found["computed"], found["stored"]) == ([compute, compute], "float32")
    assert found["optimizer"] == optimizer
    assert (found["finite"], found["read"]) == (True, policy)
    assert found["updates"] == 2


@pytest.mark.parametrize("wanted", [True, False])
def test_jit_compile_is_applied(seen, wanted):
    found = seen("compilation")[str(wanted)]
    assert (found["compiled"], found["read"]) == (wanted, wanted)
    assert found["updates"] == (7 if wanted else 2)


def test_the_jit_compile_of_a_plain_script_is_read(worker, seen):
    compiled = {"jax": True, "tensorflow": seen("devices")["platform"] != "cpu", "torch": False}
    assert seen("compilation_where_the_script_says_nothing") is compiled[worker.name]


def test_steps_per_execution_is_applied_or_rejected(worker, seen):
    found = seen("executions")
    if worker.name == "torch":
        assert "steps_per_execution" in found["refused"]
        return
    assert (found["calls"], found["updates"]) == (2, 8)
    assert found["difference"] < 1e-6


def test_micro_steps_add_up_to_the_scripts_own_updates(seen):
    for case, found in seen("accumulation").items():
        own, changed = found["updates"]
        assert own == changed > 0, case
        assert found["difference"] < 1e-5, case


def test_padded_rows_are_left_out_of_metrics_that_ignore_weights(seen):
    found = seen("metrics_beside_padding")
    own, padded = found["own"], found["padded"]
    assert own.keys() == padded.keys() > {"mae", "root_mean_squared_error", "val_mae"}
    # Not the loss and not the weighted metric: Keras's means of those take in the larger weights of the last update.
    for name in ("mae", "root_mean_squared_error", "val_loss", "val_mae", "val_root_mean_squared_error"):
        assert padded[name] == pytest.approx(own[name], rel=1e-5), name
    assert found["with weights of the user"] == pytest.approx(found["of all rows"], rel=1e-5)


def test_an_unbuilt_model_trains_from_the_same_random_numbers(seen):
    found = seen("unbuilt")
    assert found["updates"] == [6, 6]
    assert found["difference"] < 1e-5


def test_streams_are_read_whole_and_in_order(seen):
    for case, found in seen("streams").items():
        assert found["updates"] == ([8, 8] if "120" in case else [6, 6]), case
        assert found["difference"] < 1e-5, case


def test_an_optimizer_that_has_trained_keeps_its_state(seen):
    found = seen("a_second_fit")
    assert found["updates"] == [6, 6]
    assert found["difference"] < 1e-5


def test_scaled_losses_are_accumulated(seen):
    assert seen("loss_scaling") == {"optimizer": "LossScaleOptimizer", "updates": 4}


def test_tf_data_pipelines_are_split_into_the_same_updates(worker, seen):
    found = seen("pipelines")
    assert (found is None) == (worker.name != "tensorflow")
    for case in (found or {}).values():
        assert case["updates"][1] == 6  # where an epoch's length is open, Keras itself counts one more for its end
        assert case["difference"] < 1e-5


def test_every_micro_step_is_counted_once(seen):
    for case, found in seen("timing").items():
        assert found["counted"] == found["done"], case
        assert found["groups"] == 3, case


def test_compile_time_is_distinguished_from_run_time(worker, seen):
    found = seen("timing")["1"]
    compiled = found["compile_seconds"]
    if worker.name == "torch":
        assert not compiled  # it runs eagerly
        return
    assert 0 < compiled < found["first_call_seconds"]


def test_synchronize_waits_for_the_device(seen):
    found = seen("synchronizing")
    assert found["read"] < 0.5 * found["done"]


def test_a_changed_shape_is_compiled_and_counted(seen):
    first, again, changed = seen("compilation")["True"]["compilations"]
    assert first > 0
    assert again == first
    assert changed > again


def test_eager_execution_counts_no_compilation(seen):
    assert seen("eager") == {"compilations": 0, "read": False}


def test_running_out_of_memory_is_recognized(seen):
    found = seen("running_out_of_memory")
    assert found["real"][2], found["real"]
    assert found["numpy"] is True
    assert (found["shapes"], found["interrupt"]) == (False, False)


def test_memory_is_recognized_by_the_types_of_the_causes_and_not_by_words_in_a_message(seen):
    found = seen("running_out_of_memory")
    assert found["words"] == [False, False, False]
    assert found["hidden"] == [True, True, True, True]


def test_micro_steps_can_be_run_without_input(seen):
    for executions, found in seen("compute_only").items():
        assert found == {"calls": 8 // int(executions), "compilations": 0}


def test_the_memory_of_a_program_is_positive_or_unknown(worker, seen):
    needed = seen("program_memory")
    assert needed > 0 if worker.name == "jax" else needed is None


def test_a_fit_is_observed(worker, observed):
    config = observed.config
    assert (config.backend, config.batch.global_size) == (worker.name, 64)
    assert (observed.samples, observed.data, observed.parameters) == (2000, "arrays", 20_865)
    assert observed.environment["backend"] == worker.name


def test_a_fit_is_measured(worker, observed):
    own = observed.config
    value = worker.value(JobKind.MEASURE, config=own, baseline=own, options=QUICK)
    found = Measurement.model_validate(value)
    assert found.groups >= 3
    assert 0 < found.micro_step_seconds_low <= found.micro_step_seconds <= found.micro_step_seconds_high
    assert found.first_step_seconds > (0 if worker.name == "torch" else found.micro_step_seconds)  # it runs eagerly
    assert found.compute_micro_step_seconds > 0
    assert found.peak_bytes > 0
    assert found.recompilations == 0 or worker.name == "jax"  # its last, partial batch


def test_a_few_updates_are_the_same_for_a_seed_and_for_micro_batches(worker, observed, tmp_path):
    own, batch, kept = observed.config, observed.config.batch, str(tmp_path / "changes.npz")
    cut = worker.changed(own, batch=type(batch)(batch.local // 4, accumulation=4))

    def ran(config, seeds, **options):
        options = {"seeds": seeds, "updates": 6, "accumulations": [1, 4], **options}
        return NumericsRun.model_validate(worker.value(JobKind.NUMERICS, config=config, baseline=own, options=options))

    first = ran(own, [1, 2], changes_to=kept)
    halves, second = ran(cut, [1], compare_with=kept), ran(own, [2])
    assert [run.seed for run in first.runs] == [1, 2], "both seeds in one process"
    assert [run.applied for run in (*first.runs, *halves.runs)] == [6, 6, 6]
    assert halves.runs[0].losses == pytest.approx(first.runs[0].losses, rel=1e-5)
    assert first.remainder_rows == halves.remainder_rows == 2000 % batch.effective > 0
    assert 0 < halves.compared.weights < 1e-3
    assert max(one.difference for one in halves.compared.variables) < 1e-3
    for other in (first.runs[1], second.runs[0]):
        assert other.losses != pytest.approx(first.runs[0].losses, rel=1e-3)
        assert other.losses == pytest.approx(first.runs[0].losses, rel=0.5)
        assert other.weight_change == pytest.approx(first.runs[0].weight_change, rel=0.2)


LATE = """
import keras
import numpy as np

class Noisy(keras.layers.Layer):
    def build(self, shape):
        self.seed_generator = keras.random.SeedGenerator(3)
        self.calls = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False, name="calls")

    def call(self, x, training=False):
        if training:
            self.calls.assign(self.calls + 1)
            x = x + keras.random.normal(keras.ops.shape(x), dtype=x.dtype, seed=self.seed_generator)
        return x

keras.utils.set_random_seed(0)
x = np.random.default_rng(0).normal(size=(96, 4)).astype("float32")
y = (1e8 * x[:, :1]).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4), Noisy(), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(1e-20), "mse")
model.fit(x, y, batch_size=32, verbose=0)
"""


def test_counters_draws_and_skipped_updates_are_seen(worker, tmp_path):
    script, kept = tmp_path / "late.py", str(tmp_path / "changes.npz")
    script.write_text(LATE)
    own = Observation.model_validate(worker.value(JobKind.OBSERVE, script=script, arguments=())).config

    def ran(config, **options):
        job = {"config": config, "baseline": own, "options": {"updates": 3, "accumulations": [1, 2], **options}}
        return NumericsRun.model_validate(worker.value(JobKind.NUMERICS, script=script, arguments=(), **job))

    first = ran(own, changes_to=kept)
    halves = ran(own.with_(batch=type(own.batch)(16, accumulation=2)), compare_with=kept)
    (calls,) = [one for one in halves.compared.variables if one.kind == "state"]
    assert (calls.path.rpartition("/")[2], calls.baseline_change, calls.plan_change) == ("calls", 3, 6)
    assert [path.rpartition("/")[2] for path in first.runs[0].random_draws] == ["seed_generator_state"]
    skipped = ran(own.with_(precision=Precision.MIXED_FLOAT16)).runs[0]
    assert (first.runs[0].applied, skipped.applied, skipped.weight_change) == (3, 0, 0.0)


def test_the_machine_is_measured(worker):
    profile = worker.value(JobKind.PROBE)
    assert profile["backend"] == worker.name
    assert set(profile["versions"]) == {"python", "keras", worker.name}
    for rates in profile["matmul_flops_per_second"].values():
        assert all(1e7 < rate < 1e16 for rate in rates.values())
    assert 1e8 < profile["memory_bytes_per_second"] < 1e14
    assert 0 <= profile["kernel_launch_seconds"] < 1e-2
    assert 1e-7 < profile["dispatch_seconds"] < 1e-1
    assert local_hardware.resolve("local", profile=profile).chip.peak_flops_per_second["float32"] > 1e8
