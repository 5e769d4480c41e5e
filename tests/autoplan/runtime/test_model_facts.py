"""What a compiled model is, as far as a configuration cares."""

import keras
import pytest

from autoplan.runtime import model_facts
from cost_models.config import Precision


def compiled(*layers, **arguments):
    model = keras.Sequential([keras.layers.Input((8, 4)), *layers, keras.layers.Dense(1)])
    model.compile("adam", "mse", **arguments)
    return model


def test_layers_are_found_inside_others():
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


def test_metrics_and_steps_of_their_own():
    class Own(keras.Sequential):
        def train_step(self, *arguments):
            return super().train_step(*arguments)

    assert model_facts.has_unweighted_metrics(compiled(metrics=["mae"]))
    assert not model_facts.has_unweighted_metrics(compiled(weighted_metrics=["mae"]))
    own = Own([keras.layers.Input((8, 4)), keras.layers.Dense(1)])
    own.compile("sgd", "mse")
    assert model_facts.has_custom_train_step(own)
    assert not model_facts.has_custom_train_step(compiled())


def test_structure_is_of_shapes_alone():
    assert model_facts.structure(compiled()) == model_facts.structure(compiled())
    assert model_facts.structure(compiled()) != model_facts.structure(compiled(keras.layers.Dense(5)))


def test_precision_is_that_of_the_policy_that_brought_it():
    with_own = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(3, dtype="mixed_bfloat16")])
    assert model_facts.precision_of(compiled(), {"float32"}) is Precision.FLOAT32
    assert model_facts.precision_of(with_own, {"float32"}) is Precision.OTHER
    assert model_facts.precision_of(with_own, {"float32", "mixed_bfloat16"}) is Precision.MIXED_BFLOAT16
