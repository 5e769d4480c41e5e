"""Scripts of many kinds in real processes: observed, traced, measured under another batch, and trained."""

import json

import pytest

from autoplan.jobs.budget import Clock
from autoplan.jobs.client import Client
from autoplan.jobs.messages import Job, JobKind, Observation
from autoplan.jobs.runner import JobRunner
from autoplan.plan import file
from autoplan.plan.records import Measurement, Plan
from autoplan.sources import source
from cost_models.config import Batch
from cost_models.workload.serialization import workload_from_dict
from tests.builders.observations import cluster
from tests.builders.plans import plain_plan
from tests.builders.slow import slow, slow_among

QUICK = {"groups": 3, "group_seconds": 0.05, "max_seconds": 20}
THOROUGH = {**QUICK, "remainder": True, "validation": True}
VALIDATED = {"pydataset", "generator", "folds", "messy"}

SHAPES = {
    "pydataset": (
        *("pydataset.py", 1, (16, 2)),
        {"data": "PyDataset", "samples": 460, "rebatchable": True},
        {"updates": 45, "epochs_ended": 4},  # Keras ends an epoch more: the one in which it built the model
    ),
    "generator": (
        *("generator.py", 1, (8, 4)),
        {"data": "generator", "samples": 256, "samples_exact": False},
        {"updates": 16},
    ),
    "folds": (
        *("folds.py", 2, (10, 4)),
        {"epochs": 2, "samples": 160, "unweighted_metrics": True},
        {"updates": [13, 13, 13], "scores": [3, 3, 3]},
    ),
    "own loss": (
        *("own_loss.py", 1, (16, 2)),
        {"masks": True, "custom_train_step": True},
        {"updates": 16},
    ),
    "fine-tuning": (
        *("fine_tuning.py", 2, (8, 4)),
        {"samples": 384, "optimizer": "Adam"},
        {"updates": 24, "trainable": 5},
    ),
    "package": ("-m packaged", 1, (8, 4), {"samples": 320}, {"updates": 20}),
    "messy": (
        *("messy.py", 1, (8, 2)),
        {"samples": 288, "unweighted_metrics": True},
        {"updates": 54, "micro_steps": 54, "epochs": 3, "better": True},  # its callback is called as in the script
    ),
}
"""Script, which fit, the wanted (global batch, accumulation), what is seen of it, and what it says at its end."""
EACH = slow_among(SHAPES, {"own loss", "fine-tuning", "package", "folds", "pydataset"})


@pytest.fixture(scope="module")
def client():
    with Client() as one:
        yield one


@pytest.fixture
def spec(scripts, monkeypatch):
    def resolve(name, fit=1):
        monkeypatch.chdir(scripts)  # as their author would run them
        return source.resolve(name, fit_index=fit)

    return resolve


@pytest.fixture(scope="module")
def observations():
    """Results of the first test of a script, for the second."""
    return {}


def answered(client, kind, spec, **more):
    result = client.run(Job(kind=kind, source=spec, **more), time_limit_seconds=120)
    assert result.failure is None, result.failure
    return result.value


def with_batch(own, size, accumulation):
    return own.with_(batch=Batch(size, accumulation=accumulation))


def observed(client, spec):
    value = answered(client, JobKind.TRACE, spec)
    assert workload_from_dict(value["workload"]).ops
    return Observation.model_validate(value["observation"])


@pytest.mark.parametrize("shape", EACH)
def test_a_script_is_traced_and_measured_with_another_batch(client, spec, observations, shape):
    script, fit, batch, expected, _ = SHAPES[shape]
    seen = observations[shape] = observed(client, spec(script, fit))
    assert {key: getattr(seen, key) for key in expected} == expected
    changed = with_batch(seen.config, *batch)
    assert changed.batch.effective == seen.config.batch.effective
    value = answered(client, JobKind.MEASURE, spec(script, fit), config=changed, baseline=seen.config, options=THOROUGH)
    found = Measurement.model_validate(value)
    remainder = [] if shape == "generator" else ["remainder"]  # which says no end of an epoch
    assert found.notes == remainder + (["validation"] if shape in VALIDATED else [])
    assert found.update_seconds == pytest.approx(found.micro_step_seconds * batch[1])
    assert found.compute_micro_step_seconds > 0
    assert found.input_bound is not None


def plan_for(seen, fit, batch, folder):
    plain = plain_plan()
    plain["source"]["fit"] |= {"index": fit, "structure": seen.structure}
    plain["baseline"]["config"] = seen.config
    plain["config"] = with_batch(seen.config, *batch)
    return file.write(Plan.model_validate(plain), folder / "plan.yaml")


@pytest.mark.usefixtures("programs_are_kept")
@pytest.mark.parametrize("shape", EACH)
def test_a_script_trains_with_its_own_number_of_updates(client, spec, observations, scripts, tmp_path, forked, shape):
    script, fit, batch, _, expected = SHAPES[shape]
    seen = observations.get(shape) or observed(client, spec(script, fit))
    plan = plan_for(seen, fit, batch, tmp_path)
    finished = forked(
        ["-m", "autoplan.runtime", "train", "--plan", str(plan), "--fit", str(fit), *script.split()], scripts
    )
    assert finished.returncode == 0, finished.stderr
    assert json.loads(finished.stdout.splitlines()[-1]).items() >= expected.items()
    assert f"fit {fit}: float32, {with_batch(seen.config, *batch).batch.describe()}" in finished.stderr


SHORT = """
import keras, numpy as np, time
class Rows(keras.utils.PyDataset):
    def __len__(self):
        return 6
    def __getitem__(self, index):
        time.sleep({pause})
        x = np.random.default_rng(index).normal(size=(32, 8)).astype("float32")
        return x, x[:, :1]
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit({data}, verbose=0{more})
"""


@pytest.fixture
def short(tmp_path):
    def write(data, pause=0.0, more=""):
        (tmp_path / "train.py").write_text(SHORT.format(data=data, pause=pause, more=more))
        return source.resolve(str(tmp_path / "train.py"))

    return write


@pytest.mark.parametrize("more", [", steps_per_epoch=4, epochs=3", *slow("")])
def test_a_generator_that_ends_early_is_measured_as_far_as_it_goes(client, short, more):
    spec = short("(batch for batch in Rows())", more=more)
    own = Observation.model_validate(answered(client, JobKind.OBSERVE, spec)).config
    for config in (own, with_batch(own, 8, 4)):
        found = Measurement.model_validate(
            answered(client, JobKind.MEASURE, spec, config=config, baseline=own, options=QUICK)
        )
        assert 0 < found.micro_step_seconds < found.first_step_seconds
        assert found.groups >= 1
        assert 0 < found.micro_steps <= 24


def test_a_group_that_is_too_short_counts_where_no_other_was_timed(client, short):
    spec = short("(batch for batch, _ in zip(Rows(), range(2)))")
    found = Measurement.model_validate(
        answered(client, JobKind.MEASURE, spec, options={**QUICK, "group_seconds": 60.0})
    )
    assert found.micro_steps == 1
    assert found.micro_step_seconds < found.first_step_seconds


def test_a_slow_dataset_is_input_bound(client, short):
    spec = short("Rows()", pause=0.03)
    found = Measurement.model_validate(answered(client, JobKind.MEASURE, spec, options=QUICK))
    assert found.input_bound
    assert found.micro_step_seconds > 0.03 > found.compute_micro_step_seconds


@pytest.mark.parametrize("data", ["Rows(workers=2)", *slow("(batch for _ in range(9) for batch in Rows())")])
def test_losses_do_not_depend_on_the_micro_batches_of_a_stream(client, short, data):
    spec = short(data, more=", steps_per_epoch=6" if "range" in data else "")
    own = Observation.model_validate(answered(client, JobKind.OBSERVE, spec)).config
    alone, cut = (
        answered(client, JobKind.NUMERICS, spec, config=config, baseline=own, options={"updates": 8})["runs"][0][
            "losses"
        ]
        for config in (own, with_batch(own, 8, 4))
    )
    assert len(alone) == 8
    assert cut == pytest.approx(alone, rel=1e-5)


BATCHES_DIFFER = """
import keras, numpy as np
class Rows(keras.utils.PyDataset):
    def __len__(self):
        return 10
    def __getitem__(self, index):
        rows, length = (8, 128) if index == 3 else (32, 8)
        x = np.random.default_rng(index).integers(0, 50, (rows, length))
        return x.astype("int32"), x[:, :1].astype("float32")
class Attend(keras.layers.Layer):
    def call(self, x):
        return keras.ops.matmul(keras.ops.softmax(keras.ops.matmul(x, keras.ops.transpose(x, (0, 2, 1)))), x)
model = keras.Sequential([keras.Input((None,), dtype="int32"), keras.layers.Embedding(50, 4), Attend(),
                          keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(Rows(), shuffle=False, verbose=0)
"""


def test_batches_that_differ_are_measured_by_their_rows_and_their_largest(client, tmp_path):
    """Nine batches have 32 rows, one has 8, whose scores take 8 x 128 x 128 float32."""
    (tmp_path / "train.py").write_text(BATCHES_DIFFER)
    spec = source.resolve(str(tmp_path / "train.py"))
    jobs = JobRunner(client, spec, "jax", cluster(), Clock.start(None), tracer=client)
    seen = jobs.observe()
    own = seen.config
    assert (own.batch.global_size, seen.rebatchable, seen.samples) == (32, False, 9 * 32 + 8)
    jobs = jobs.with_(baseline=own)
    _, workload = jobs.trace(own)
    assert (workload.largest.rows, workload.largest.usual) == (8, 32)
    found = jobs.measure(own, "trial-0", options={**QUICK, "groups": 4})
    assert isinstance(found, Measurement), found
    assert found.samples_per_micro_step == pytest.approx(29.6, rel=0.05)
    assert found.recompilations >= 1
    assert found.peak_bytes_source == "compiled"
    assert found.peak_bytes > 8 * 128 * 128 * 4
    assert found.input_bound is None


VALIDATES = """
import keras, numpy as np
x, y = np.zeros((32, 64, 64, 3), "uint8"), np.zeros(32)
xv, yv = np.zeros((2048, 64, 64, 3), "uint8"), np.zeros(2048)
model = keras.Sequential([keras.Input((64, 64, 3)), keras.layers.Conv2D(16, 3, padding="same"), keras.layers.ReLU(),
                          keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(10)])
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
model.fit(x, y, batch_size=8, validation_data=(xv, yv), validation_batch_size=2048, verbose=0)
"""


def test_a_validation_is_run_apart_from_the_training(client, tmp_path):
    """The feature maps of 2,048 images take 512 MiB, and those of 32 images 8 MiB."""
    (tmp_path / "train.py").write_text(VALIDATES)
    jobs = JobRunner(client, source.resolve(str(tmp_path / "train.py")), "jax", cluster(), Clock.start(None))
    seen = jobs.observe()
    assert (seen.validation.rows, seen.validation.fixed, seen.validation.settable) == (2048, True, True)
    limited = cluster(usable_bytes=seen.process_bytes + 300 * 2**20)
    jobs = jobs.with_(baseline=seen.config, cluster=limited, tracer=client)
    failed = jobs.validate(seen.config)
    assert failed.out_of_memory
    assert "in phase validation" in failed.message
    assert jobs.validate(seen.config, rows=32) is None
    _, workload = jobs.trace(seen.config)
    assert workload.validation.rows == 2048
