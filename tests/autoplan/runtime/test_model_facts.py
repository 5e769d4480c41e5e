"""Facts about a compiled model."""

import keras
import pytest

from autoplan.runtime import model_facts
from cost_models.config import Precision


def compiled(*layers, **arguments):
    model = keras.Sequential([keras.layers.Input((8, 4)), *layers, keras.layers.Dense(1)])
    model.compile("adam", "mse", **arguments)
    return model


def test_nested_layers_are_found():
    inner = keras.Sequential([keras.layers.Dense(4), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)])
    model = compiled(inner)
    assert model_facts.has_batch_norm(model)
    assert model_facts.has_random_layers(model)
    assert not model_facts.has_batch_norm(compiled())
    assert not model_facts.has_random_layers(compiled(keras.layers.Dropout(0.0)))


@pytest.mark.parametrize("layer", [keras.layers.LSTM(3), keras.layers.GRU(3), keras.layers.SimpleRNN(3)])
def test_recurrent_layers_are_recurrent(layer):
    assert model_facts.has_recurrent_layers(compiled(layer))
    assert not model_facts.has_recurrent_layers(compiled(keras.layers.Conv1D(3, 2)))


def test_dropout_inside_a_recurrent_layer_is_random():
    assert model_facts.has_random_layers(compiled(keras.layers.LSTM(3, dropout=0.1)))
    assert not model_facts.has_random_layers(compiled(keras.layers.LSTM(3)))


def test_custom_metrics_and_train_steps_are_found():
    class Own(keras.Sequential):
        def train_step(self, *arguments):
            return super().train_step(*arguments)

    assert model_facts.has_unweighted_metrics(compiled(metrics=["mae"]))
    assert not model_facts.has_unweighted_metrics(compiled(weighted_metrics=["mae"]))
    own = Own([keras.layers.Input((8, 4)), keras.layers.Dense(1)])
    own.compile("sgd", "mse")
    assert model_facts.has_custom_train_step(own)
    assert not model_facts.has_custom_train_step(compiled())


class Adds(keras.layers.Layer):
    def call(self, inputs):
        self.add_loss(keras.ops.mean(keras.ops.square(inputs)))
        return inputs


@pytest.mark.parametrize(
    "layer",
    [Adds(), keras.layers.Dense(3, activity_regularizer="l2"), keras.Sequential([Adds()])],
    ids=["add_loss", "activity regularizer", "nested"],
)
def test_losses_added_by_layers_are_found(layer):
    assert model_facts.has_added_losses(compiled(layer))


def test_a_weight_regularizer_is_not_an_added_loss():
    assert not model_facts.has_added_losses(compiled(keras.layers.Dense(3, kernel_regularizer="l2")))


class Pair(keras.Model):
    """Trains two networks with their own optimizers; the compiled optimizer is not used."""

    def __init__(self):
        super().__init__()
        self.first, self.second = keras.layers.Dense(1), keras.layers.Dense(1)

    def compile(self, first_optimizer, second_optimizer):
        super().compile()
        self.first_optimizer, self.second_optimizer = first_optimizer, second_optimizer

    def train_step(self, *arguments):
        return {}


def test_optimizers_of_a_custom_train_step_are_named():
    pair = Pair()
    pair.compile(keras.optimizers.Adam(), keras.optimizers.Adam())
    assert model_facts.own_optimizers(pair) == ["first_optimizer", "second_optimizer"]
    assert model_facts.own_optimizers(compiled()) == []


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_another_reference_to_the_compiled_optimizer_is_not_named(policy):
    class Renamed(keras.Sequential):
        def compile(self, optimizer):
            super().compile(optimizer, "mse")
            self.mine = optimizer

        def train_step(self, *arguments):
            return {}

    model = Renamed([keras.layers.Input((4,)), keras.layers.Dense(1, dtype=policy)], name="renamed")
    model.dtype_policy = keras.dtype_policies.get(policy)
    model.compile(keras.optimizers.SGD())
    assert model_facts.own_optimizers(model) == []


class Scaling(keras.Sequential):
    def loss_of(self, x, y):
        return self.optimizer.scale_loss(self.compute_loss(x, y, self(x)))

    def train_step(self, *arguments):
        return {"loss": self.loss_of(*arguments)}


class ThroughKeras(keras.Sequential):
    def train_step(self, *arguments):
        return super().train_step(*arguments)


class Unscaled(keras.Sequential):
    def train_step(self, *arguments):
        return {"loss": self.compute_loss(*arguments)}


class OwnLoss(keras.Sequential):
    def compute_loss(self, *arguments, **named):
        return super().compute_loss(*arguments, **named)


@pytest.mark.parametrize(
    ("kind", "unscaled"), [(Scaling, False), (ThroughKeras, False), (Unscaled, True), (OwnLoss, False)]
)
def test_a_train_step_without_loss_scaling_is_found(kind, unscaled):
    assert model_facts.has_unscaled_loss(kind([keras.layers.Dense(1)])) is unscaled


def test_the_structure_only_depends_on_shapes():
    assert model_facts.structure(compiled()) == model_facts.structure(compiled())
    assert model_facts.structure(compiled()) != model_facts.structure(compiled(keras.layers.Dense(5)))


def test_the_precision_is_that_of_the_global_policy():
    with_own = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(3, dtype="mixed_bfloat16")])
    assert model_facts.precision_of(compiled(), {"float32"}) is Precision.FLOAT32
    assert model_facts.precision_of(with_own, {"float32"}) is Precision.OTHER
    assert model_facts.precision_of(with_own, {"float32", "mixed_bfloat16"}) is Precision.MIXED_BFLOAT16
