"""The Python API for training under a plan."""

import random

import keras
import numpy as np
import pytest

import autoplan
from autoplan.errors import PlanError
from autoplan.plan.records import Plan
from autoplan.runtime import model_facts
from tests.builders.plans import config, plain_plan


def build_model(optimizer=None):
    model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(16, "tanh"), keras.layers.Dense(1)])
    model.compile(optimizer or keras.optimizers.SGD(0.1), "mse")
    return model


def plan(baseline=None, **changes):
    plain = plain_plan()
    plain["source"]["fit"]["structure"] = model_facts.structure(build_model())
    plain["baseline"]["config"] = config(**(baseline or {"batch": (32, 1)}))
    plain["config"] = config(**changes)
    return Plan.model_validate(plain)


def samples(count=96):
    x = np.random.default_rng(0).standard_normal((count, 8)).astype("float32")
    return x, x[:, :1]


def test_fit_under_a_plan_makes_the_same_updates():
    x, y = samples()
    keras.utils.set_random_seed(0)
    own = build_model()
    own.fit(x, y, batch_size=32, epochs=2, verbose=0)
    accumulating = plan(batch=(8, 4))
    keras.utils.set_random_seed(0)
    with autoplan.scope(accumulating):
        model = build_model()
    autoplan.compile(accumulating, model)
    autoplan.fit(accumulating, model, x, y, epochs=2, verbose=0)
    assert int(model.optimizer.iterations) == int(own.optimizer.iterations) == 6
    for one, two in zip(own.get_weights(), model.get_weights(), strict=True):
        assert np.allclose(one, two, rtol=1e-5, atol=1e-6)


def test_the_scope_sets_what_must_be_set_before_building_and_leaves_no_trace():
    low = plan(precision="mixed_bfloat16", remat={"mode": "activations"}, batch=(32, 1))
    with autoplan.scope(low):
        model = build_model()
    assert model.layers[0].compute_dtype == "bfloat16"
    assert keras.config.dtype_policy().name == "float32"
    autoplan.compile(low, model)
    assert build_model().layers[0].compute_dtype == "float32"


@pytest.mark.parametrize(
    ("own", "wanted", "before", "inside"),
    [
        ("auto", "unfused", None, False),
        ("unfused", "auto", False, None),
        ("unfused", "unfused", False, False),
        ("auto", "auto", False, False),
    ],
)
def test_the_scope_sets_attention_and_sets_it_back(own, wanted, before, inside):
    kept = keras.config.is_flash_attention_enabled
    if before is False:
        keras.config.disable_flash_attention()
    try:
        with autoplan.scope(plan({"batch": (32, 1), "attention": own}, batch=(32, 1), attention=wanted)):
            assert kept() is inside
        assert kept() is before
    finally:
        keras.config.enable_flash_attention()


def test_attention_that_was_built_outside_the_scope_is_an_error():
    unfused = plan(batch=(32, 1), attention="unfused")

    def attending():
        inputs = keras.Input((8, 4))
        model = keras.Model(inputs, keras.layers.MultiHeadAttention(2, 4)(inputs, inputs))
        model.compile("sgd", "mse")
        return model

    with autoplan.scope(unfused):
        model = attending()
    assert autoplan.compile(unfused, model) is model
    with pytest.raises(PlanError, match=r"built outside the plan's scope, so it lacks attention unfused; build it"):
        autoplan.compile(unfused, attending())


def test_a_c_library_without_the_memory_setting_causes_a_warning(monkeypatch):
    keeping = plan(keep_freed_memory=True, batch=(32, 1))
    monkeypatch.setattr("autoplan.machine.processes.can_keep_freed_memory", lambda: False)
    with pytest.warns(UserWarning, match="keep_freed_memory cannot be set to true"), autoplan.scope(keeping):
        build_model()


def test_a_plan_that_trains_differently_causes_a_warning():
    plain = plain_plan()
    plain["source"]["fit"]["structure"] = model_facts.structure(build_model())
    plain["config"] = plain["baseline"]["config"] = config(batch=(32, 1))
    plain["verification"] |= {"numerics": "outside", "numerics_detail": "a loss differs by 3%"}
    words = r"Training gives different results than with the baseline \(a loss differs by 3%\)\."
    with pytest.warns(UserWarning, match=words) as warned:
        autoplan.fit(Plan.model_validate(plain), build_model(), *samples(), verbose=0)
    assert len(warned) == 1


def test_a_model_that_was_built_outside_the_scope_is_an_error():
    low = plan(precision="mixed_bfloat16", remat={"mode": "activations"}, batch=(32, 1))
    with pytest.raises(
        PlanError, match=r"built outside the plan's scope, so it lacks precision mixed_bfloat16 .*remat"
    ):
        autoplan.compile(low, build_model())


def test_another_model_is_an_error():
    narrow = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(1)])
    narrow.compile("sgd", "mse")
    with pytest.raises(PlanError, match="differ in shape"):
        autoplan.fit(plan(batch=(8, 4)), narrow, *samples())


def test_compile_takes_keras_arguments_or_a_compiled_model():
    compiled = plan(batch=(32, 1), jit_compile=False)
    model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(16, "tanh"), keras.layers.Dense(1)])
    with pytest.raises(PlanError, match="not compiled"):
        autoplan.compile(compiled, model)
    autoplan.compile(compiled, model, optimizer="sgd", loss="mse")
    assert not model.jit_compile


def test_a_plan_for_another_backend_is_an_error():
    with pytest.raises(PlanError, match="for the torch backend, but Keras runs on jax"):
        autoplan.compile(plan(backend="torch"), build_model())


class Unbuilt(keras.Model):
    """`build_model` as a class whose loss is its own: nothing but its layers is unbuilt before its fit."""

    def __init__(self):
        super().__init__()
        self.inner = keras.Sequential([keras.layers.Dense(16, "tanh"), keras.layers.Dense(1)])

    def call(self, x):
        return self.inner(x)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return keras.ops.mean(keras.ops.square(y_pred))


def pipeline(x, y):
    tf = pytest.importorskip("tensorflow")
    return {"x": tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x)).batch(32), "shuffle": False}


@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # the length of the split pipeline is open
@pytest.mark.parametrize(
    "data", [pytest.param(lambda x, y: {"x": x, "y": y}, id="arrays"), pytest.param(pipeline, id="tf.data")]
)
def test_a_model_that_is_unbuilt_trains_under_a_plan_on_the_same_batches(data):
    ended = []
    for under in (None, plan(batch=(16, 2))):
        keras.utils.set_random_seed(0)
        model, arguments = Unbuilt(), {**data(*samples()), "epochs": 2, "verbose": 0}
        model.compile(keras.optimizers.SGD(0.1))
        model.fit(**arguments) if under is None else autoplan.fit(under, model, **arguments)
        ended.append((model.get_weights(), random.random()))
    (own, own_draw), (ours, draw) = ended
    assert draw == own_draw
    for one, two in zip(own, ours, strict=True):
        assert np.allclose(one, two, rtol=1e-5, atol=1e-6)
