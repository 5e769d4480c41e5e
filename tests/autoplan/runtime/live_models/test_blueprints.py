"""A model rebuilt from its blueprint: equivalent under its own policy, and under another one like a new build."""

import keras
import numpy as np
import pytest
from keras import layers

from autoplan.runtime.live_models import blueprints, state
from autoplan.runtime.live_models.keras_serialization import global_policy
from autoplan.runtime.live_models.package import rebuild
from tests.builders.slow import slow
from tests.models import live


def again(model, policy=None, *, seeds=True):
    blueprint = blueprints.record(model)
    with global_policy(policy or blueprint.policy):
        return rebuild(blueprint, state.capture(model), seeds=seeds)


def policies(model):
    """Return the dtype policies of the layers with explicit names."""
    return {layer.name: layer.dtype_policy.name for layer in model._flatten_layers(include_self=False)}


@pytest.mark.parametrize("kind", ["functional", *slow("sequential")])
def test_a_rebuilt_model_predicts_and_trains_the_same(kind):
    model, x, y = live.trained(kind)
    other = again(model)
    np.testing.assert_array_equal(other.predict(x, verbose=0), model.predict(x, verbose=0))
    histories = [one.fit(x, y, batch_size=32, epochs=2, shuffle=False, verbose=0).history for one in (model, other)]
    assert histories[0] == histories[1]
    for ours, theirs in zip(model.variables, other.variables, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


def test_a_policy_applies_to_every_layer_that_had_the_global_policy():
    model = live.functional()
    found = policies(again(model, "mixed_bfloat16"))
    assert found["shares"] == "float32"  # explicit, and the output besides
    low = ("shared", "within", "norm", "block", "drop", "logits")
    assert {found[name] for name in low} == {"mixed_bfloat16"}
    inner = again(model, "mixed_bfloat16").get_layer("block").inner
    assert inner.compute_dtype == "bfloat16"  # made in the __init__ of a layer of the user's
    assert set(policies(model).values()) == set(policies(again(model)).values()) == {"float32"}


def test_a_rebuilt_model_computes_in_the_policy_of_its_build():
    model, x, _ = live.trained("functional")
    low = again(model, "mixed_bfloat16")
    full, found = model.predict(x, verbose=0), low.predict(x, verbose=0)
    assert found.dtype == "float32"
    assert 0 < np.abs(full - found).max() < 0.05


def test_output_layers_stay_float32_and_are_named():
    model = live.sequential()
    assert blueprints.record(model).float32_outputs == ["out"]
    assert policies(again(model, "mixed_float16"))["out"] == "float32"


def test_a_layers_own_policy_does_not_depend_on_the_global_policy():
    with global_policy("mixed_bfloat16"):
        model = keras.Sequential(
            [
                keras.Input((8,)),
                layers.Dense(8, name="low"),
                layers.Dense(8, dtype="float32", name="full"),
                layers.Dense(8, name="low_too"),
                layers.Dense(4, name="out"),
            ]
        )
    model.compile("sgd", "mse")
    assert blueprints.main_policy(model) == "mixed_bfloat16"
    assert blueprints.record(model).float32_outputs == []
    own = {"low": "mixed_bfloat16", "full": "float32", "low_too": "mixed_bfloat16", "out": "mixed_bfloat16"}
    assert policies(again(model)).items() >= own.items()
    assert set(policies(again(model, "float32")).values()) == {"float32"}
    half = {"low": "mixed_float16", "full": "float32", "low_too": "mixed_float16", "out": "mixed_float16"}
    assert policies(again(model, "mixed_float16")).items() >= half.items()


def outputs_of(*outputs):
    inputs = keras.Input((8,), name="in")
    model = keras.Model(inputs, [make(layers.Dense(4, name="before")(inputs)) for make in outputs])
    return [layer.name for layer in blueprints.output_layers(model)]


def test_output_layers_are_found_through_operations_and_nested_models():
    nested = keras.Sequential([layers.Dense(4, name="first"), layers.Dense(4, name="last")], name="nested")
    assert outputs_of(layers.Dense(4, name="plain")) == ["plain"]
    assert outputs_of(keras.ops.softmax) == ["before"]
    assert outputs_of(nested) == ["last"]
    both = layers.Add(name="sum")
    assert outputs_of(lambda x: both([x, layers.Dense(4, name="side")(x)])) == ["sum"]
    head = live.Block(4, name="head")
    head.inner.name, head.outer.name = "inner", "outer"
    assert outputs_of(head) == ["head", "inner", "outer"]


def test_a_custom_output_layer_and_its_sublayers_stay_float32():
    inputs = keras.Input((8,))
    model = keras.Model(inputs, live.Block(8, name="head")(layers.Dense(8, name="body")(inputs)))
    model.compile("sgd", "mse")
    low = again(model, "mixed_bfloat16")
    assert low.get_layer("body").compute_dtype == "bfloat16"
    assert {layer.compute_dtype for layer in low.get_layer("head")._flatten_layers()} == {"float32"}
    assert low.output.dtype == "float32"


def test_frozen_layers_and_their_sublayers_stay_frozen():
    model = live.functional()
    model.get_layer("block").trainable = False
    model.get_layer("inner").trainable = False
    model.compile("sgd", "mse")
    other = again(model)
    assert [v.trainable for v in other.variables] == [v.trainable for v in model.variables]
    assert other.get_layer("block").inner.kernel.trainable is False


class Halved(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule without a config."""

    def __init__(self, start):
        self.start = start

    def __call__(self, step):
        return self.start / (1 + keras.ops.cast(step, "float32"))


class Squared(keras.losses.Loss):
    """Its config omits its weight."""

    def __init__(self, weight):
        super().__init__(name="squared")
        self.weight = weight

    def call(self, y, y_pred):
        return self.weight * keras.ops.mean((y - y_pred) ** 2, axis=-1)


class Largest(keras.metrics.Metric):
    def __init__(self, name="largest", **kwargs):
        super().__init__(name=name, **kwargs)
        self.seen = self.add_variable((), "zeros", name="seen")

    def update_state(self, y, y_pred, sample_weight=None):
        self.seen.assign(keras.ops.maximum(self.seen, keras.ops.max(y_pred)))

    def result(self):
        return self.seen.value


def test_compile_arguments_are_restored():
    model = live.sequential()
    model.compile(
        keras.optimizers.AdamW(Halved(0.1), weight_decay=0.01, gradient_accumulation_steps=2),
        loss=[Squared(2.0)],
        loss_weights=[0.5],
        metrics=[Largest(), live.mean_error],
        weighted_metrics=["mse"],
        steps_per_execution=3,
        jit_compile=False,
    )
    other = again(model)
    assert (other.steps_per_execution, other.jit_compile, other.run_eagerly) == (3, False, False)
    assert other.optimizer.gradient_accumulation_steps == 2
    assert other.optimizer._learning_rate.start == 0.1
    x, y = live.samples()
    fits = [one.fit(x, y, shuffle=False, verbose=0).history for one in (model, other)]
    assert fits[0] == fits[1]
    assert set(fits[0]) == {"loss", "largest", "mean_error", "mse"}


def test_a_learning_rate_that_was_set_after_compile_is_restored():
    model = live.sequential()
    model.optimizer.learning_rate = 0.003
    assert float(again(model).optimizer.learning_rate) == pytest.approx(0.003)


def test_loss_scaling_depends_on_the_policy_of_the_build():
    model = live.sequential()
    half = again(model, "mixed_float16")
    assert isinstance(half.optimizer, keras.optimizers.LossScaleOptimizer)
    with global_policy("mixed_float16"):
        own = live.sequential()
    assert isinstance(own.optimizer, keras.optimizers.LossScaleOptimizer)
    assert isinstance(again(own).optimizer, keras.optimizers.LossScaleOptimizer)
    assert isinstance(again(own, "float32").optimizer, keras.optimizers.SGD)
    with global_policy("mixed_float16"):
        unscaled = live.sequential()
        unscaled.compile("sgd", "mse", auto_scale_loss=False)
    assert isinstance(again(unscaled).optimizer, keras.optimizers.SGD)


def test_an_unbuilt_model_is_rebuilt_unbuilt():
    model = keras.Sequential([layers.Dense(8), layers.Dense(4)])
    model.compile("sgd", "mse")
    other = again(model)
    assert not other.built
    assert not model.built
    other.fit(*live.samples(), verbose=0)


def test_remat_depends_on_the_scope_of_the_build():
    blueprint = blueprints.record(live.sequential())
    with keras.RematScope(mode="activations"):
        other = blueprints.build(blueprint)
    assert {layer._remat_mode.mode for layer in other.layers} == {"activations"}
