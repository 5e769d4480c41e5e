"""Jobs in real processes: every kind of source is observed, traced, measured and compared."""

import os
from pathlib import Path

import pytest

from autoplan.jobs.client import Client
from autoplan.jobs.messages import Job, JobKind, Observation, SplitProbe
from autoplan.plan.records import FailureKind, Measurement
from autoplan.sources import source
from cost_models.config import TrainConfig
from cost_models.workload.serialization import workload_from_dict
from cost_models.workload.workload import Kind

FEATURES = 24  # of what `contrastive.py` compares
QUICK = {"groups": 3, "group_seconds": 0.05, "max_seconds": 20}


@pytest.fixture(scope="module")
def client():
    with Client() as one:
        yield one


@pytest.fixture(scope="module")
def ask(client, scripts):
    def run(kind, script, *arguments, changes=None, fit=1, devices=None, baseline=None, **options):
        spec = source.resolve(str(scripts / script), arguments, fit)
        config = None if changes is None else changed(baseline, **changes)
        job = Job(kind=kind, source=spec, config=config, baseline=baseline, devices=devices, options=options)
        return client.run(job, time_limit_seconds=120)

    return run


def changed(baseline, *, batch=None, **knobs):
    """The baseline with other knobs; `batch` is (global, accumulation)."""
    config = baseline.to_dict() | knobs
    if batch:
        size, accumulation = batch
        data = config["mesh"]["data"]
        config["batch"] = {"local": size // data, "global": size, "accumulation": accumulation}
        config["batch"]["effective"] = size * accumulation
    return TrainConfig.from_dict(config)


def observed(result):
    assert result.failure is None, result.failure
    return Observation.model_validate(result.value)


@pytest.mark.parametrize(
    ("script", "arguments", "expected"),
    [
        pytest.param("subclassed.py", (), {"data": "arrays", "custom_train_step": False}, marks=pytest.mark.slow),
        ("schedule.py", (), {"schedule": True, "ema": True}),
        pytest.param("custom_train_step.py", (), {"custom_train_step": True}, marks=pytest.mark.slow),
        pytest.param("builder.py", (), {"data": "arrays"}, marks=pytest.mark.slow),
        ("builder_no_data.py", (), {"data": "synthetic", "samples": None}),
        pytest.param("resnet20.py", (), {"batch_norm": True}, marks=pytest.mark.slow),
        ("arguments_callbacks.py", ("--learning-rate", "0.01"), {"data": "arrays"}),
    ],
)
def test_a_fit_is_observed(ask, script, arguments, expected):
    found = observed(ask(JobKind.OBSERVE, script, *arguments))
    assert {key: getattr(found, key) for key in expected} == expected
    assert found.parameters > 0
    assert found.config.backend == "jax"


@pytest.mark.slow
def test_the_second_fit_can_be_observed(ask):
    first, second = (observed(ask(JobKind.OBSERVE, "two_fits.py", fit=fit)) for fit in (1, 2))
    assert (first.structure, first.epochs) != (second.structure, second.epochs)


def test_callbacks_that_write_are_named(ask):
    found = observed(ask(JobKind.OBSERVE, "arguments_callbacks.py", "--learning-rate", "0.01"))
    assert "ModelCheckpoint" in found.writers_left_out


@pytest.mark.parametrize(
    ("script", "split", "reason"),
    [
        ("builder_no_data.py", "same", ""),
        ("contrastive.py", "differs", "the loss of Contrastive's own micro-step depends on which rows"),
    ],
)
def test_an_update_is_compared_with_its_halves(ask, script, split, reason):
    result = ask(JobKind.SPLIT, script)
    assert result.failure is None, result.failure
    found = SplitProbe.model_validate(result.value)
    assert found.split == split
    assert found.split_reason.startswith(reason)
    assert found.compilations == 2


@pytest.mark.parametrize(
    ("script", "abstract"),
    [
        ("mlp.py", True),
        ("builder_no_data.py", False),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in (("subclassed.py", True), ("mlp.py", False))),
    ],
)
def test_a_training_step_is_traced_with_or_without_weights(ask, script, abstract):
    result = ask(JobKind.TRACE, script, abstract=abstract)
    assert result.failure is None
    assert workload_from_dict(result.value["workload"]).ops


@pytest.mark.parametrize("size", [pytest.param(16, marks=pytest.mark.slow), 32])
def test_a_training_step_is_traced_at_the_requested_batch(ask, size):
    """A loss over all pairs of samples cannot be extrapolated from a trace at one batch."""
    own = observed(ask(JobKind.OBSERVE, "contrastive.py")).config
    assert own.batch.local == 16
    result = ask(JobKind.TRACE, "contrastive.py", changes={"batch": (size, 1)}, baseline=own)
    assert result.failure is None, result.failure
    workload = workload_from_dict(result.value["workload"])
    assert (workload.batch_exact, workload.local_batch) == (True, size)
    products = [op for op in workload.ops if op.kind is Kind.DOT]
    assert 2 * size * size * FEATURES in [op.flops.at(size) for op in products]


def test_a_batch_that_overflows_indices_is_extrapolated(ask):
    own = observed(ask(JobKind.OBSERVE, "mlp.py")).config
    result = ask(JobKind.TRACE, "mlp.py", changes={"batch": (2**40, 1)}, baseline=own)
    assert result.failure is None, result.failure
    workload = workload_from_dict(result.value["workload"])
    assert (workload.batch_exact, workload.local_batch) == (False, own.batch.local)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"precision": "mixed_bfloat16"}, marks=pytest.mark.slow),
        {"precision": "mixed_float16", "batch": (16, 4)},
        pytest.param({"remat": {"mode": "activations"}}, marks=pytest.mark.slow),
        pytest.param({"steps_per_execution": 4}, marks=pytest.mark.slow),
        {"jit_compile": False},
        {"keep_freed_memory": True},
    ],
)
def test_each_knob_is_measured(ask, changes):
    own = observed(ask(JobKind.OBSERVE, "mlp.py")).config
    result = ask(JobKind.MEASURE, "mlp.py", changes=changes, baseline=own, **QUICK)
    assert result.failure is None, result.failure
    found = Measurement.model_validate(result.value)
    assert found.update_seconds == pytest.approx(found.micro_step_seconds * changed(own, **changes).batch.accumulation)
    assert found.peak_bytes > 0
    assert 0 <= found.others_busy_processors < (os.cpu_count() or 1) + 0.5


@pytest.mark.parametrize("batch", [pytest.param((2048, 1), marks=pytest.mark.slow), (96, 3)])
def test_a_builder_without_data_is_measured_with_whole_batches(ask, batch):
    own = observed(ask(JobKind.OBSERVE, "builder_no_data.py")).config
    result = ask(JobKind.MEASURE, "builder_no_data.py", changes={"batch": batch}, baseline=own, **QUICK)
    assert result.failure is None, result.failure
    assert Measurement.model_validate(result.value).samples_per_micro_step == pytest.approx(batch[0])


def losses_of(value):
    return value["runs"][0]["losses"]


@pytest.mark.slow
def test_equal_seeds_give_equal_losses_for_all_micro_batches(ask):
    own = observed(ask(JobKind.OBSERVE, "mlp.py")).config
    size = own.batch.effective
    alone = ask(JobKind.NUMERICS, "mlp.py", changes={}, baseline=own, updates=6, seeds=[3]).value
    cut = ask(JobKind.NUMERICS, "mlp.py", changes={"batch": (size // 4, 4)}, baseline=own, updates=6, seeds=[3]).value
    other = ask(JobKind.NUMERICS, "mlp.py", changes={}, baseline=own, updates=6, seeds=[4]).value
    assert len(losses_of(alone)) == 6
    assert losses_of(cut) == pytest.approx(losses_of(alone), rel=1e-5)
    assert losses_of(other) != pytest.approx(losses_of(alone), rel=1e-3)


@pytest.mark.slow
def test_a_mesh_of_simulated_devices_computes_the_same(ask):
    own = observed(ask(JobKind.OBSERVE, "mlp.py")).config
    mesh = {"mesh": {"data": 4, "model": 1}, "batch": (own.batch.global_size, 1)}
    alone = ask(JobKind.NUMERICS, "mlp.py", changes={}, baseline=own, updates=6).value
    spread = ask(JobKind.NUMERICS, "mlp.py", changes=mesh, baseline=own, devices=4, updates=6).value
    assert losses_of(spread) == pytest.approx(losses_of(alone), rel=1e-5)


def test_a_mesh_larger_than_the_machine_is_unsupported(ask):
    own = observed(ask(JobKind.OBSERVE, "mlp.py")).config
    wide = {"mesh": {"data": 16, "model": 1}, "batch": (own.batch.global_size, 1)}
    result = ask(JobKind.MEASURE, "mlp.py", changes=wide, baseline=own, **QUICK)
    assert result.failure.kind is FailureKind.UNSUPPORTED
    assert "needs 16 devices" in result.failure.message


def test_temporary_files_of_a_job_are_removed_after_it(ask, tmp_path, monkeypatch):
    script = tmp_path / "train.py"
    script.write_text(
        "import keras, numpy as np, os, subprocess, tempfile\n"
        "kept = tempfile.mkstemp()[1]\n"
        "there = subprocess.run(['mktemp'], capture_output=True, text=True).stdout.strip()\n"
        "open('paths', 'w').write(f'{kept}\\n{there}')\n"
        "model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])\n"
        "model.compile('sgd', 'mse')\n"
        "model.fit(np.zeros((8, 2)), np.zeros((8, 1)))\n"
    )
    monkeypatch.chdir(tmp_path)
    observed(ask(JobKind.OBSERVE, script))
    paths = [Path(line) for line in (tmp_path / "paths").read_text().splitlines()]
    assert len({path.parent for path in paths}) == 1
    assert not any(path.exists() or path.parent.exists() for path in paths)


WRITING = """
import keras, numpy as np
class Trace(keras.callbacks.Callback):
    def on_train_begin(self, logs=None): self.file = open("trace.txt", "w")
    def on_train_batch_end(self, batch, logs=None): self.file.write(f"{batch}\\n")
class MetricLogger(keras.callbacks.Callback):
    seen = 0
    def on_train_batch_end(self, batch, logs=None): self.seen += 1
open("settings.json", "w").close()
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(np.zeros((64, 2)), np.zeros((64, 1)), batch_size=2, epochs=2, callbacks=[MetricLogger(), Trace()], verbose=0)
"""


def test_trials_leave_a_file_of_a_callback_alone_and_say_what_ran(ask, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(WRITING)
    (tmp_path / "trace.txt").write_text("of the real training")
    seen = observed(ask(JobKind.OBSERVE, tmp_path / "train.py"))
    assert seen.files_written == ["settings.json"]
    result = ask(JobKind.MEASURE, tmp_path / "train.py", changes={}, baseline=seen.config, **QUICK)
    found = Measurement.model_validate(result.value)
    assert (found.callbacks_ran, found.callbacks_left_out) == (["MetricLogger"], ["Trace (writes trace.txt)"])
    assert found.writers == {1: "writes trace.txt"}
    losses = ask(JobKind.NUMERICS, tmp_path / "train.py", changes={}, baseline=seen.config, updates=3, seeds=[1])
    assert losses.failure is None
    assert (tmp_path / "trace.txt").read_text() == "of the real training"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["settings.json", "trace.txt", "train.py"]


EARLY = """
import keras, numpy as np, os, shutil
class Trace(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.file = open("trace.txt", "w")
    def on_train_batch_end(self, batch, logs=None):
        self.file.write(f"{batch}\\n")
        self.file.flush()
shutil.rmtree("logs")
os.makedirs("logs")
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(np.zeros((64, 2)), np.zeros((64, 1)), batch_size=2, epochs=2, callbacks=[Trace()], verbose=0)
"""


def test_files_that_a_script_replaces_before_its_fit_are_put_back(ask, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(EARLY)
    (tmp_path / "logs").mkdir()
    files = (tmp_path / "trace.txt", tmp_path / "logs" / "events")
    for file in files:
        file.write_text("of the real training")
    seen = observed(ask(JobKind.OBSERVE, tmp_path / "train.py"))
    assert sorted(seen.files_put_back) == ["logs", "logs/events", "trace.txt"]
    assert [file.read_text() for file in files] == ["of the real training"] * 2
    result = ask(JobKind.MEASURE, tmp_path / "train.py", changes={}, baseline=seen.config, **QUICK)
    assert Measurement.model_validate(result.value).callbacks_ran == ["Trace"]
    assert [file.read_text() for file in files] == ["of the real training"] * 2
