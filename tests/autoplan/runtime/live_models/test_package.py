"""Live models as sources: packing, jobs in workers, and models that cannot be packed."""

import base64
import json
import os
import subprocess
import sys
import textwrap
import threading

import keras
import numpy as np
import pytest
from keras import layers

from autoplan.errors import SourceError
from autoplan.jobs.client import Client
from autoplan.jobs.messages import Job, JobKind, Observation
from autoplan.plan.records import FailureKind, Measurement
from autoplan.runtime.live_models import object_pickle, package
from autoplan.runtime.live_models.keras_serialization import global_policy
from autoplan.sources.source import PROCESS_ALREADY_STARTED
from tests.builders.slow import slow
from tests.models import live

QUICK = {"groups": 3, "group_seconds": 0.05, "max_seconds": 20}


@pytest.fixture(scope="module")
def ask():
    with Client() as client:

        def run(kind, spec, *, baseline=None, **options):
            changes = options.pop("changes", None)
            config = None if changes is None else baseline.to_dict() | changes
            job = Job(kind=kind, source=spec, config=config, baseline=baseline, options=options)
            return client.run(job, time_limit_seconds=120)

        yield run


@pytest.fixture(scope="module")
def packed():
    """Each kind of model, trained for an epoch, as a source with its data in batches of 32."""
    specs = {}
    for kind in live.KINDS:
        model, x, y = live.trained(kind)
        specs[kind] = package.pack(model, {"x": x, "y": y, "batch_size": 32, "shuffle": False})
    return specs


@pytest.fixture(scope="module")
def observed(ask, packed):
    found = {}
    for kind, spec in packed.items():
        result = ask(JobKind.OBSERVE, spec)
        assert result.failure is None, result.failure
        found[kind] = Observation.model_validate(result.value)
    return found


@pytest.mark.parametrize("kind", live.KINDS)
def test_a_worker_observes_the_live_models_training(observed, kind):
    facts = observed[kind]
    assert (facts.samples, facts.rebatchable, facts.data) == (96, True, "arrays")
    assert facts.config.precision == "float32"
    assert facts.config.batch.global_size == 32
    assert facts.config.jit_compile is True
    assert facts.batch_norm == (kind == "functional")
    assert facts.intercepted == []


@pytest.mark.parametrize("kind", ["sequential", *slow("functional", "subclassed")])
def test_trials_start_from_the_live_models_weights_and_optimizer(ask, packed, observed, kind):
    model, x, y = live.trained(kind)
    for generator in (g for layer in model._flatten_layers() for g in layer._seed_generators):
        generator.state.assign([0, 0])
    baseline = observed[kind].config
    result = ask(JobKind.NUMERICS, packed[kind], baseline=baseline, changes={}, seeds=[1], updates=3)
    assert result.failure is None, result.failure
    losses = []
    for at in range(3):
        rows = slice(32 * at, 32 * at + 32)
        batch = {name: one[rows] for name, one in x.items()} if isinstance(x, dict) else x[rows]
        model.reset_metrics()
        losses.append(float(model.train_on_batch(batch, y[rows], return_dict=True)["loss"]))
    # Dropout is drawn anew in a worker.
    tolerance = 1e-5 if kind == "sequential" else 0.2
    np.testing.assert_allclose(result.value["runs"][0]["losses"], losses, rtol=tolerance)


@pytest.mark.slow
def test_draws_of_a_training_differ_by_the_order_of_its_data(ask, packed, observed):
    baseline = observed["sequential"].config

    def losses(seed):
        result = ask(JobKind.NUMERICS, packed["sequential"], baseline=baseline, changes={}, seeds=[seed], updates=3)
        return result.value["runs"][0]["losses"]

    own, other = losses(1), losses(2)
    assert own != other
    assert losses(2) == other
    assert np.mean(own) == pytest.approx(np.mean(other), rel=0.3)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        pytest.param(
            "functional", {"precision": "mixed_float16", "remat": {"mode": "activations"}}, marks=pytest.mark.slow
        ),
        pytest.param(
            "sequential",
            {"batch": {"local": 8, "global": 8, "accumulation": 4, "effective": 32}},
            marks=pytest.mark.slow,
        ),
        ("subclassed", {"batch": {"local": 8, "global": 8, "accumulation": 4, "effective": 32}, "jit_compile": False}),
    ],
)
def test_every_kind_of_model_is_measured_under_another_configuration(ask, packed, observed, kind, changes):
    baseline = observed[kind].config
    result = ask(JobKind.MEASURE, packed[kind], baseline=baseline, changes=changes, checkpoint=True, **QUICK)
    assert result.failure is None, result.failure
    measured = Measurement.model_validate(result.value)
    assert measured.micro_step_seconds > 0
    assert measured.notes == ["weights" if kind == "subclassed" else "checkpoint"]  # it has no config to save


def test_a_step_is_traced_in_the_requested_precision(ask, packed, observed):
    baseline = observed["functional"].config
    changes = {"precision": "mixed_bfloat16"}
    result = ask(JobKind.TRACE, packed["functional"], baseline=baseline, changes=changes, abstract=True)
    assert result.failure is None, result.failure
    dtypes = {dtype for dtype, _ in result.value["workload"]["tensors"]}
    assert "bfloat16" in dtypes


def test_a_model_that_cannot_be_rebuilt_has_fixed_process_wide_knobs(packed):
    held = packed["subclassed"].held
    assert set(held) == {"keep_freed_memory", "precision", "remat", "attention", "mesh", "layout"}
    assert held["mesh"] == (
        "Subclassed is a subclassed model, whose __init__ cannot be called again; to tune them, pass a function that "
        "builds and compiles the model"
    )
    assert packed["functional"].held == packed["sequential"].held == {"keep_freed_memory": PROCESS_ALREADY_STARTED}


def test_attention_settings_of_single_layers_are_kept_by_pickling_the_model():
    def attending(**arguments):
        inputs = keras.Input((8, 4))
        model = keras.Model(inputs, layers.MultiHeadAttention(2, 4, **arguments)(inputs, inputs))
        model.compile("sgd", "mse")
        return model

    held = package.pack(attending(flash_attention=True)).held
    assert held["attention"].startswith("its attention layers have flash_attention settings of their own")
    assert "attention" not in package.pack(attending()).held


def test_the_source_has_notes_about_assumptions(packed):
    [note] = packed["sequential"].notes
    assert "layers with the dtype policy float32 are assumed to follow the global policy" in note
    assert note.endswith("output layers stay float32 (out)")
    assert packed["subclassed"].notes == []


def test_a_model_with_only_output_layers_has_a_fixed_precision():
    model = keras.Sequential([keras.Input((8,)), layers.Dense(4)])
    model.compile("sgd", "mse")
    assert "output layers, which stay float32" in package.pack(model).held["precision"]


def test_packing_changes_neither_the_model_nor_the_process():
    model, x, y = live.trained("functional")
    config = json.dumps(model.get_config(), default=str)
    before = [variable.numpy() for variable in model.variables]
    keras.utils.set_random_seed(5)
    package.pack(model, (x, y))
    packed_first = np.random.rand(), layers.Dense(1).name.rpartition("_")[0]
    keras.utils.set_random_seed(5)
    assert (np.random.rand(), "dense") == packed_first
    assert json.dumps(model.get_config(), default=str) == config
    assert keras.config.dtype_policy().name == "float32"
    for variable, kept in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), kept)
    model.fit(x, y, verbose=0)


def test_global_settings_of_the_process_are_set_in_a_worker(ask):
    with global_policy("mixed_bfloat16"), keras.RematScope(mode="activations"):
        model = live.sequential()
    with global_policy("mixed_bfloat16"):
        spec = package.pack(model, live.samples())
    facts = Observation.model_validate(ask(JobKind.OBSERVE, spec).value)
    assert facts.config.precision == "mixed_bfloat16"
    assert facts.config.remat.mode == "activations"


def test_a_data_function_is_called_in_the_worker(ask):
    spec = package.pack(live.sequential(), live.samples)
    assert Observation.model_validate(ask(JobKind.OBSERVE, spec).value).samples == 96


def test_without_data_trials_run_on_synthetic_batches(ask):
    spec = package.pack(live.functional())
    facts = Observation.model_validate(ask(JobKind.OBSERVE, spec).value)
    assert facts.data == "synthetic"


def test_a_model_that_was_never_called_is_built_where_it_is_trained(ask):
    model = live.subclassed()
    facts = Observation.model_validate(ask(JobKind.OBSERVE, package.pack(model, live.samples())).value)
    assert facts.parameters > 0
    assert not model.built


class Stubborn(keras.layers.Layer):
    """Its argument cannot be part of a config."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def call(self, x):
        return self.inner(x)


def test_a_functional_model_with_an_incomplete_config_is_pickled(ask):
    model = keras.Sequential([keras.Input((8,)), Stubborn(layers.Dense(8)), layers.Dense(4)])
    model.compile("sgd", "mse")
    spec = package.pack(model, live.samples())
    assert "it cannot be rebuilt from its config (NotImplementedError" in spec.held["precision"]
    assert ask(JobKind.OBSERVE, spec).failure is None


class OwnCompile(keras.Model):
    """Its compile has additional arguments."""

    def compile(self, temperature, **arguments):
        super().compile(**arguments)
        self.temperature = temperature


def test_a_model_that_overrides_compile_is_pickled():
    inputs = keras.Input((8,))
    model = OwnCompile(inputs, layers.Dense(4)(layers.Dense(8)(inputs)))
    model.compile(temperature=2.0, optimizer="sgd", loss="mse")
    assert "OwnCompile overrides compile()" in package.pack(model).held["remat"]
    unpickled = object_pickle.loads(base64.b64decode(package.pack(model).payload))
    assert unpickled.model.temperature == 2.0


def test_a_model_that_is_not_compiled_is_an_error():
    with pytest.raises(SourceError, match=r"the model \w+ is not compiled; call model.compile"):
        package.pack(keras.Sequential([layers.Dense(1)]))


def test_an_object_that_cannot_be_pickled_is_named_with_a_remedy():
    model = live.trained("subclassed")[0]
    model.log = threading.Lock()
    with pytest.raises(SourceError, match=r"attribute 'log' of the model, a lock; pass a function that builds"):
        package.pack(model)
    with pytest.raises(SourceError, match=r"the data \(builtins.generator\) cannot be sent .* pass arrays, or a func"):
        package.pack(live.sequential(), (row for row in range(3)))


def test_a_tf_data_pipeline_must_come_as_a_function():
    tf = pytest.importorskip("tensorflow")
    data = tf.data.Dataset.from_tensor_slices(live.samples()).batch(32)
    with pytest.raises(SourceError, match=r"the data \(tensorflow.*\) cannot be sent .* a function without arguments"):
        package.pack(live.sequential(), data)


class Picky(keras.layers.Layer):
    """Only works in float32."""

    def call(self, x):
        if x.dtype != "float32":
            raise ValueError("float32 only")
        return x


def test_an_unsupported_candidate_fails_without_ending_the_study(ask):
    inputs = keras.Input((8,))
    x = Picky()(layers.Dense(8)(inputs))
    model = keras.Model(inputs, layers.Dense(4)(x))
    model.compile("sgd", "mse")
    spec = package.pack(model, live.samples())
    baseline = Observation.model_validate(ask(JobKind.OBSERVE, spec).value).config
    failure = ask(JobKind.MEASURE, spec, baseline=baseline, changes={"precision": "mixed_bfloat16"}, **QUICK).failure
    assert failure.kind is FailureKind.UNSUPPORTED
    assert "float32 only" in failure.message


FROM_MAIN = """
    import keras, numpy as np
    from autoplan.runtime.live_models import package

    class Scale(keras.layers.Layer):
        def build(self, shape):
            self.factor = self.add_weight(shape=(shape[-1],), initializer="ones")
        def call(self, x):
            return x * self.factor * POWER

    POWER = 2
    model = keras.Sequential([keras.Input((8,)), Scale(), keras.layers.Dense(4), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    print(package.pack(model, (np.ones((4, 8)), np.ones((4, 1)))).sha256)
"""


@pytest.mark.slow
def test_the_hash_is_the_same_in_every_process(tmp_path):
    def printed(script):
        (tmp_path / "main.py").write_text(textwrap.dedent(script))
        done = subprocess.run([sys.executable, "main.py"], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert printed(FROM_MAIN) == printed(FROM_MAIN)


def test_the_hash_changes_with_the_model_and_with_the_data_and_not_with_the_weights():
    model, x, y = live.trained("sequential")
    first = package.pack(model, (x, y)).sha256
    assert package.pack(model, (x + 1, y)).sha256 != first
    model.fit(x, y, verbose=0)
    assert package.pack(model, (x, y)).sha256 == first
    model.optimizer.learning_rate = 0.5
    assert package.pack(model, (x, y)).sha256 != first


ELSEWHERE = """
    import keras, numpy as np
    from autoplan.runtime.live_models import package
    from tests.models import live

    for kind in live.KINDS:
        model, x, y = live.trained(kind)
        spec = package.pack(model, {"x": x, "y": y, "batch_size": 32})
        again, data = package.unpack(spec.payload)
        assert again is not model
        np.testing.assert_array_equal(again.predict(x, verbose=0), model.predict(x, verbose=0))
        again.fit(**data, verbose=0)
        assert int(again.optimizer.iterations) == 6
        print(kind, *sorted(spec.held))
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_live_models_are_unpacked_on_other_backends(backend, root, tmp_path):
    pytest.importorskip(backend)
    (tmp_path / "main.py").write_text(textwrap.dedent(ELSEWHERE))
    environment = {**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": str(root)}
    done = subprocess.run([sys.executable, "main.py"], cwd=tmp_path, capture_output=True, text=True, env=environment)
    printed = done.stdout.splitlines()
    assert printed == [
        "functional keep_freed_memory",
        "sequential keep_freed_memory",
        "subclassed attention keep_freed_memory layout mesh precision remat",
    ], done.stderr


@pytest.mark.slow
def test_a_pickled_model_is_not_unpacked_on_another_backend(root, tmp_path):
    model, _, _ = live.trained("subclassed")
    (tmp_path / "payload").write_text(package.pack(model).payload)
    code = "from autoplan.runtime.live_models import package; package.unpack(open('payload').read())"
    environment = {**os.environ, "KERAS_BACKEND": "tensorflow", "PYTHONPATH": str(root)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert "SourceError: the live model" in done.stderr
    assert "pass a function that builds and compiles the model" in done.stderr
