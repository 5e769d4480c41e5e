from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from autoplan import planner
from autoplan.errors import ConfigError, OutputError
from autoplan.jobs import workers
from autoplan.jobs.messages import JobKind, ValidationRows
from autoplan.machine import local_hardware
from autoplan.plan import file
from autoplan.plan.records import Evidence, FailureKind
from autoplan.sources import keras_backend, source
from autoplan.tuning.request import EstimateRequest, TuneRequest
from cost_models.config import Batch
from tests.builders.fake_client import failure, micro_step_seconds
from tests.builders.observations import cluster, config
from tests.builders.tune_requests import BEST, OWN, fake


@pytest.fixture
def every_backend(monkeypatch):
    """Pretend that every backend is installed, and that the plain script runs on JAX."""
    monkeypatch.setattr(keras_backend, "installed", lambda name: True)
    monkeypatch.setattr(keras_backend, "live_backend", lambda: "jax")


def slower_than(fastest, factor=3.0):
    """The made-up machine, on which every backend but one takes that many times as long."""
    return lambda config: micro_step_seconds(config) * (1.0 if config.backend == fastest else factor)


def test_the_backend_is_tuned_where_that_is_asked(tune, every_backend):
    client = fake(seconds=slower_than("torch"))
    plan = tune(client, backend="auto", trials=12).plan
    assert plan.config.backend == "torch"
    assert plan.baseline.config.backend == "jax"
    assert plan.environment.backend == "torch"
    assert {trial.config.backend for trial in plan.trials} == {"jax", "tensorflow", "torch"}
    assert plan.verification.faster
    assert plan.verification.numerics == "exact"
    assert any(note.startswith("the backend changes from jax to torch: set KERAS_BACKEND=torch") for note in plan.notes)


def test_losses_of_two_backends_are_compared_from_the_same_weights(tune, every_backend):
    client = fake(seconds=slower_than("torch"))
    tune(client, backend="auto", trials=12)
    jobs = [job for job in client.jobs if job.kind is JobKind.NUMERICS]
    assert [(job.backend, job.options["updates"]) for job in jobs] == [("jax", 50), ("torch", 50)]
    assert jobs[0].options["weights_to"] == jobs[1].options["weights_from"]


def test_a_backend_is_left_alone_unless_asked(tune, every_backend):
    client = fake(seconds=slower_than("torch"))
    plan = tune(client).plan
    assert {job.backend for job in client.jobs} == {"jax"}
    assert plan.config.backend == "jax"


def test_a_backend_that_cannot_run_the_training_is_left_out_with_its_reason(tune, every_backend):
    def refuse(job):
        if job.backend == "tensorflow" and job.kind is JobKind.OBSERVE:
            return failure(FailureKind.CRASH, "it calls jax.numpy")
        return None

    plan = tune(fake(plant=refuse), backend="auto").plan
    told = [rejection for rejection in plan.rejected if "does not run on tensorflow" in rejection.reason]
    assert len(told) == 1
    assert "it calls jax.numpy" in told[0].reason
    assert any(note.startswith("not tried on tensorflow: ") for note in plan.notes)
    assert {trial.config.backend for trial in plan.trials} == {"jax", "torch"}


def test_a_pin_that_the_scripts_own_backend_refuses_is_tried_on_the_others(tune, every_backend, monkeypatch):
    monkeypatch.setattr(keras_backend, "live_backend", lambda: "torch")
    plan = tune(fake(), backend="auto", fix={"steps_per_execution": "8"}).plan
    assert plan.baseline.config.backend == "torch"
    assert plan.baseline.excluded_by == "--fix steps_per_execution=8"
    assert plan.config.steps_per_execution == 8
    assert {trial.config.backend for trial in plan.trials[1:]} == {"jax", "tensorflow"}
    assert any(note.startswith("not tried on torch: --fix and --only leave no configuration") for note in plan.notes)


def test_a_pin_that_every_backend_refuses_is_an_error_with_the_reason_of_each(tune, every_backend):
    with pytest.raises(ConfigError) as caught:
        tune(fake(), backend="auto", fix={"batch.accumulation": "3"})
    assert str(caught.value).count("--fix batch.accumulation=3") == 3
    assert str(caught.value).startswith("not tried on jax: --fix batch.accumulation=3: no batch of this training")


def test_a_step_is_traced_on_jax_whatever_it_trains_on(tune, every_backend):
    client = fake()
    plan = tune(client, backend="torch").plan
    assert {job.backend for job in client.jobs if job.kind is JobKind.TRACE} == {"jax"}
    assert {job.backend for job in client.jobs if job.kind is JobKind.MEASURE} == {"torch"}
    assert plan.config.backend == plan.baseline.config.backend == "torch"
    assert plan.predicted.config.backend == "torch"


def test_a_backend_pinned_like_a_knob_is_the_backend(tune, every_backend):
    client = fake()
    assert tune(client, fix={"backend": "torch"}).plan.config.backend == "torch"
    with pytest.raises(ConfigError, match="--backend jax and --fix backend=torch: keep one of them"):
        tune(client, backend="jax", fix={"backend": "torch"})


def test_a_planted_fault_is_undone_and_the_plan_is_verified(tune, tmp_path):
    client = fake()
    result = tune(client)
    plan = result.plan
    assert plan.config == BEST
    assert plan.evidence is Evidence.MEASURED
    assert plan.baseline.measured.micro_step_seconds == micro_step_seconds(OWN)
    assert plan.measured.micro_step_seconds == micro_step_seconds(BEST)
    expected = (micro_step_seconds(OWN) / 32) / (micro_step_seconds(BEST) / 256)
    assert plan.verification.speedup == pytest.approx(expected)
    assert plan.verification.faster
    assert plan.verification.numerics == "exact"
    assert plan.verification.pairs == 2
    assert (plan.verification.validation_ran, plan.verification.checkpoint_saved) == (True, True)
    assert (
        plan.notes[0]
        == "the plan (float32, batch 256) was shown to be faster than the baseline in 2 pairs of clean processes"
    )
    assert result.written_to == tmp_path / "plan.yaml"
    assert file.read(result.written_to).config == plan.config
    assert not result.interrupted


def test_random_layers_are_judged_by_five_seeds_of_the_baseline(tune):
    losses = lambda one, seed, updates: [1.0 + 0.01 * seed + (0.001 if one == BEST else 0)] * updates  # noqa: E731
    client = fake(facts={"random_layers": True}, losses=losses)
    plan = tune(client).plan
    assert plan.verification.numerics == "within_seed_band"
    assert client.of_kind(JobKind.NUMERICS) == [OWN, BEST]
    assert [job.options["seeds"] for job in client.jobs if job.kind is JobKind.NUMERICS] == [[1, 2, 3, 4, 5], [1]]


def test_another_effective_batch_is_not_compared_and_comes_with_its_rule(tune):
    own = config(8)
    plan = tune(fake(own), effective_batch=(64, 1024)).plan
    assert plan.config.batch.effective == 1024
    assert plan.verification.numerics == "not_compared"
    rule = "square root rule for Adam: multiply the learning rate by 11.3"
    assert any(rule in note for note in plan.notes)


def test_for_hardware_that_is_not_here_a_default_yields_to_jax_unless_the_source_needs_it(tune, monkeypatch):
    monkeypatch.setattr(keras_backend, "installed", lambda name: True)
    monkeypatch.setattr(keras_backend, "live_backend", lambda: None)
    monkeypatch.setattr(keras_backend, "configured_backend", lambda: None)
    monkeypatch.delenv("KERAS_BACKEND")
    there = cluster(4, kind="tpu", local=False)
    plan = tune(fake(), here=there, hardware="tpu-v5e-4", only=()).plan
    assert plan.config.backend == "jax"
    assert any(note.startswith("no backend was chosen (") and "so the plan is for jax" in note for note in plan.notes)

    def needs_tensorflow(job):
        return (
            failure(FailureKind.CRASH, "it calls tf") if job.backend == "jax" and job.kind is JobKind.OBSERVE else None
        )

    plan = tune(fake(plant=needs_tensorflow), here=there, hardware="tpu-v5e-4", only=()).plan
    assert plan.config.backend == "tensorflow"


def test_simulated_devices_are_called_so_and_each_number_of_them_is_measured(tune):
    client = fake(config(256))
    plan = tune(client, here=cluster(4), only=("mesh",)).plan
    assert {one.mesh.data for one in client.of_kind(JobKind.MEASURE)} == {1, 2, 4}
    assert all(job.devices == 4 for job in client.jobs)
    assert any(note.startswith("simulated: the 4 devices share one CPU") for note in plan.notes)
    scaling = next(note for note in plan.notes if note.startswith("throughput and efficiency"))
    rate = 256 / micro_step_seconds(config(256))
    assert scaling == (
        f"throughput and efficiency by number of devices (measured, simulated devices): 1: "
        f"{rate:,.0f} samples/s (100%); "
        f"2: {rate:,.0f} samples/s (50%); 4: {rate:,.0f} samples/s (25%)"
    )


def test_a_long_start_of_the_script_suggests_a_builder(tune):
    plan = tune(fake()).plan  # a made-up trial takes 2 s, 0.75 s of them before fit
    assert any("takes 0.8 s, 38% of a trial" in note and "build_model()" in note for note in plan.notes)


def test_a_place_that_cannot_be_written_is_told_before_anything_runs(tune, tmp_path):
    client = fake()
    with pytest.raises(OutputError, match="there is no folder"):
        tune(client, output=tmp_path / "nowhere" / "plan.yaml")
    assert client.jobs == []


def test_an_estimate_is_of_all_devices_on_data_unless_a_mesh_is_given(tune, monkeypatch):
    client = fake()
    tune(client, dry_run=True)
    monkeypatch.setattr(workers.Workers, "cluster", lambda *_: local_hardware.resolve("tpu-v5e-8"))
    spec = client.jobs[0].source
    estimated = planner.estimate(
        EstimateRequest(source=spec, hardware="tpu-v5e-8", settings={"global": 512, "accumulation": 2})
    ).to_dict()
    assert estimated["config"]["batch"] == {"local": 64, "global": 512, "accumulation": 2, "effective": 1024}
    assert estimated["config"]["mesh"] == {"data": 8, "model": 1}
    assert estimated["evidence"] == "analytic"
    (told,) = estimated["notes"]
    assert told == (
        "no --mesh was given, so the batch is split over all 8 devices; the script uses 1 device, which `estimate "
        "--mesh data=1` estimates"
    )
    estimated = planner.estimate(EstimateRequest(source=spec, hardware="tpu-v5e-8", mesh={"data": 2})).to_dict()
    assert estimated["notes"] == []
    assert estimated["config"]["batch"] == {"local": 16, "global": 32, "accumulation": 8, "effective": 256}
    with pytest.raises(ConfigError, match="a global batch of 12 does not divide over 8 devices"):
        planner.estimate(EstimateRequest(source=spec, hardware="tpu-v5e-8", settings={"global": 12}))
    with pytest.raises(ConfigError, match="a mesh of 16 devices is larger than"):
        planner.estimate(EstimateRequest(source=spec, hardware="tpu-v5e-8", mesh={"data": 16}))


def test_an_estimate_and_a_plan_for_a_tpu_name_attention_that_would_become_causal(tune):
    call = {"layer": "encoder", "query": [1, 128, 2, 64], "key": [1, 128, 2, 64], "value": [1, 128, 2, 64]}
    client = fake(facts={"attention_calls": [call]})
    plan = tune(client, here=local_hardware.resolve("tpu-v5e-1"), measure=False).plan
    assert (plan.config.attention, plan.baseline.config.attention) == ("unfused", "auto")
    read = file.read(file.write(plan, "plan.yaml"))
    assert read.config == plan.config
    assert read.baseline.issues == plan.baseline.issues == ["tpu-attention-becomes-causal"]
    own, unfused = (
        planner.estimate(
            EstimateRequest(source=client.jobs[0].source, hardware="tpu-v5e-1", settings=settings)
        ).to_dict()
        for settings in ({}, {"attention": "unfused"})
    )
    (told,) = own["notes"]
    assert told.startswith("Keras's attention kernel for TPUs makes attention without a mask causal")
    assert f"known issue of the baseline: {told}" in plan.notes
    assert (unfused["notes"], unfused["config"]["attention"]) == ([], "unfused")


def test_a_scratch_directory_is_a_new_and_empty_one_for_every_job(tune):
    folders = []
    client = fake(plant=lambda job: folders.append(job.options["scratch"]) or assert_empty(folders[-1]))
    tune(client, scratch=True, trials=2)
    assert len(set(folders)) == len(client.jobs)
    assert not any(Path(folder).exists() for folder in folders)


def assert_empty(folder):
    assert list(Path(folder).iterdir()) == []


def test_a_validation_that_does_not_fit_is_no_fault_of_a_candidate(tune):
    """It is judged apart; the plan is verified with the rows that fit."""
    rows = {"rows": 4096, "samples": 4096, "fixed": True, "settable": True}

    def plant(job):
        many = job.kind is JobKind.VALIDATE and job.options.get("validation_rows", 4096) > 1024
        return failure(FailureKind.OOM) if many else None

    client = fake(facts={"validation": ValidationRows(**rows)}, plant=plant)
    plan = tune(client, memory_limit_bytes=2**33).plan
    assert (plan.validation.fits, plan.validation.fitting_rows, plan.validation.evidence) == (False, 512, "measured")
    assert plan.config != plan.baseline.config
    assert plan.verification.validation_ran
    (verified,) = (job for job in client.jobs if job.options.get("validation"))
    assert verified.options["validation_rows"] == 512


# From here on everything is real: scripts, workers, measurements; only the groups of micro-steps are short.

SCRIPT = """
import os, sys
os.environ.setdefault("KERAS_BACKEND", "jax")
import keras, numpy as np
keras.utils.set_random_seed(1)
x = np.random.default_rng(1).normal(size=(2048, 16)).astype("float32")
model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(32, activation="relu"), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(1e-3, gradient_accumulation_steps=int(sys.argv[1])), "mse")
model.fit(x, x[:, :1], batch_size=8, epochs=300, verbose=0, callbacks=[keras.callbacks.CSVLogger("log.csv")])
open("reached_the_end", "w").close()
"""
QUICK = {"groups": 3, "group_seconds": 0.1}


@pytest.fixture
def quick(tmp_path, monkeypatch):
    """The script, in a folder of its own, and measurements that take moments."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("autoplan.tuning.trials.runner.MEASURED", QUICK)
    monkeypatch.setattr("autoplan.tuning.verification.verifier.LONGER", QUICK)
    monkeypatch.setattr("autoplan.tuning.verification.verifier.BRIEF", QUICK)
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    return script


@pytest.mark.slow
def test_a_real_script_is_tuned_from_end_to_end(quick, tmp_path):
    events = []
    request = TuneRequest(
        source=source.resolve(str(quick), ["16"]), only=("batch",), trials=6, output=tmp_path / "plan.yaml"
    )
    result = planner.tune(request, events.append)
    plan = file.read(result.written_to)
    assert plan.evidence is Evidence.MEASURED
    assert plan.baseline.config.batch == Batch(8, accumulation=16)
    # How fast a machine is while others use it is not a test's to say; that the plan follows from what was shown is.
    shown = plan.verification
    assert shown.numerics == "exact"
    assert shown.checkpoint_saved
    assert shown.faster == (shown.speedup_low > 1)
    assert (plan.config.batch.accumulation < 16) == shown.faster
    assert shown.faster or "not shown to be faster" in plan.notes[0]
    assert [record.outcome for record in plan.trials] == ["measured"] * 6
    assert plan.source.args == ["16"]
    assert plan.source.fit.updates == 300 * 2048 // 128
    assert plan.hardware.name == "local"
    assert plan.predicted.config == plan.config
    assert any("CSVLogger" in note for note in plan.notes)
    assert not (tmp_path / "log.csv").exists()
    assert not (tmp_path / "reached_the_end").exists()
    assert {path.name for path in Path(result.study_path).parent.glob("trial-*.log")} == {
        f"trial-{n}.log" for n in range(6)
    }
    assert psutil.Process().children(recursive=True) == []


@pytest.mark.slow
def test_ctrl_c_on_the_real_thing_writes_a_plan_and_leaves_no_process(quick, tmp_path):
    code = f"""
import sys
from pathlib import Path
from autoplan import planner
from autoplan.sources import source
from autoplan.tuning.request import TuneRequest
from autoplan.tuning.trials import runner
from autoplan.tuning.verification import verifier
runner.MEASURED = verifier.LONGER = verifier.BRIEF = {QUICK}
def watch(event):
    print(event.kind, event.number, flush=True)
request = TuneRequest(source=source.resolve("train.py", ["16"]), only=("batch",), trials=50, output=Path("plan.yaml"))
sys.exit(130 if planner.tune(request, watch).interrupted else 0)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    with process:
        for line in process.stdout:
            if line.startswith("trial_phase 2"):
                workers = psutil.Process(process.pid).children(recursive=True)
                process.send_signal(signal.SIGINT)
                break
        process.stdout.read()
    assert process.returncode == 130
    plan = file.read("plan.yaml")
    assert [record.number for record in plan.trials] == [0, 1]
    assert plan.verification.pairs in (2, 3)
    assert "trials ended: interrupted" in plan.notes
    gone, alive = psutil.wait_procs(workers, timeout=5)
    assert (len(gone) > 0, alive) == (True, [])


def test_a_real_estimate_for_hardware_that_is_not_here(quick):
    estimated = planner.estimate(
        EstimateRequest(
            source=source.resolve(str(quick), ["2"]),
            hardware="tpu-v5e-8",
            settings={"global": 1024, "precision": "mixed_bfloat16"},
        )
    )
    estimated = estimated.to_dict()
    assert estimated["hardware"] == "tpu-v5e-8"
    assert estimated["config"]["precision"] == "mixed_bfloat16"
    assert estimated["config"]["batch"] == {"local": 128, "global": 1024, "accumulation": 2, "effective": 2048}
    parameters = 4 * (16 * 32 + 32 + 32 + 1)
    assert estimated["memory"]["per_device_bytes"]["parameters"] >= parameters
    assert estimated["memory"]["fits"]
    assert estimated["time"]["update_seconds"] == pytest.approx(2 * estimated["time"]["micro_step_seconds"])


OPEN_SIZES = """
import keras
def build_model():
    image = keras.Input((None, None, 3), name="image")
    hidden = keras.layers.Conv2D(16, 3, activation="relu")(image)
    model = keras.Model(image, keras.layers.Dense(2)(keras.layers.GlobalAveragePooling2D()(hidden)))
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model
"""


@pytest.mark.parametrize("size", [64, pytest.param(256, marks=pytest.mark.slow)])
def test_an_estimate_is_of_the_sizes_that_are_given(quick, tmp_path, size):
    (tmp_path / "model.py").write_text(OPEN_SIZES)
    spec = source.resolve("model.py")
    assumed = planner.estimate(EstimateRequest(source=spec, hardware="gpu-a100-80gb")).to_dict()
    assert "128 is assumed for each, so the figures are of samples of 128 x 128 x 3" in assumed["notes"][0]
    spec = spec.model_copy(update={"input_shapes": {"image": [size, size, 3]}})
    given = planner.estimate(EstimateRequest(source=spec, hardware="gpu-a100-80gb")).to_dict()
    told = f"the figures are of samples of {size} x {size} x 3 at the input image (--input-shape)"
    assert given["notes"] == [told]
    ratio = given["memory"]["per_device_bytes"]["total"] / assumed["memory"]["per_device_bytes"]["total"]
    assert ratio == pytest.approx((size / 128) ** 2, rel=0.2)


def test_sizes_are_refused_for_a_training_with_data(quick):
    spec = source.resolve(str(quick), ["2"]).model_copy(update={"input_shapes": {"": [16]}})
    with pytest.raises(ConfigError, match=r"--input-shape is for models without data, and .*train.py trains on data"):
        planner.estimate(EstimateRequest(source=spec, hardware="gpu-a100-80gb"))
