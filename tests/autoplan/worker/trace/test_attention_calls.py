"""The calls of dot-product attention that real models make."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import jax
import keras
import numpy as np
import pytest
from keras.src.backend.jax import nn

import autoplan
from autoplan.runtime.data import data_facts
from autoplan.tuning.space.known_issues import Versions
from autoplan.tuning.space.legal_configs import legal_configs
from autoplan.worker.trace.attention_calls import attention_calls
from cost_models.config import AttentionMode
from cost_models.hardware.lookup import cluster as hardware_cluster
from tests.builders import plans
from tests.builders.observations import config, observation
from tests.models.scripts import builder_encoder

LAYERS, HEAD_WIDTH = keras.layers, builder_encoder.WIDTH // builder_encoder.HEADS
ZEROS = {"kernel_initializer": "zeros"}  # random numbers would be compiled for each shape


class OwnCode(LAYERS.Layer):
    def call(self, x):
        heads = keras.ops.reshape(x, (-1, 32, 2, 8))
        return keras.ops.reshape(keras.ops.dot_product_attention(heads, heads, heads, is_causal=True), (-1, 32, 16))


class Nested(LAYERS.Layer):
    def __init__(self):
        super().__init__()
        self.inner = LAYERS.MultiHeadAttention(2, 8, **ZEROS)

    def call(self, x):
        return self.inner(x, x, use_causal_mask=True)


class OnlyTrainStep(keras.Model):
    def __init__(self):
        super().__init__()
        self.part = keras.Sequential([LAYERS.Input((32, 16)), Nested()])

    def train_step(self, *arguments):
        return {}


def functional(*attention):
    x = inputs = keras.Input((32, 16))
    for layer in attention:
        x = layer(x)
    return keras.Model(inputs, LAYERS.Dense(1, **ZEROS)(x))


def calls(model):
    model.compile("sgd", "mse")
    arguments = {"x": np.zeros((4, 32, 16), "float32"), "y": np.zeros((4, 32, 1), "float32")}
    return attention_calls(model, arguments, data_facts.describe(arguments))


def attending(layer, **more):
    return lambda x: layer(x, x, **more)


def test_shapes_masks_and_layers_are_recorded_in_their_order():
    encoder, window = (
        LAYERS.MultiHeadAttention(2, 8, **ZEROS),
        LAYERS.GroupQueryAttention(8, 4, 2, **ZEROS, sliding_window=4),
    )
    nested = Nested()
    found = calls(functional(attending(encoder), attending(window), nested, OwnCode()))
    assert [(one.layer.split("/")[-1], one.query, one.causal, one.masked, one.follows_setting) for one in found] == [
        (encoder.name, [1, 32, 2, 8], False, False, True),
        (window.name, [1, 32, 4, 8], False, True, True),
        (nested.inner.name, [1, 32, 2, 8], True, False, True),
        ("own_code", [1, 32, 2, 8], True, False, False),
    ]
    assert {one.dtype for one in found} == {"float32"}
    assert found[1].key == found[1].value == [1, 32, 4, 8], "repeated for each query head"


def test_a_layers_own_flash_attention_wins_over_the_setting_and_needs_no_kernel_here():
    (own,) = calls(functional(attending(LAYERS.MultiHeadAttention(2, 8, **ZEROS, flash_attention=True))))
    assert not own.follows_setting


@pytest.mark.parametrize(
    "layer",
    [
        attending(LAYERS.MultiHeadAttention(2, 8, **ZEROS, dropout=0.1)),
        lambda x: LAYERS.Attention()([x, x]),
        LAYERS.Dense(16, **ZEROS),
    ],
)
def test_layers_that_keep_their_scores_make_no_call(layer):
    assert calls(functional(layer)) == []


def test_an_operation_outside_of_layers_is_recorded():
    def attention(x):
        heads = keras.ops.reshape(x, (-1, 32, 2, 8))
        return keras.ops.reshape(keras.ops.dot_product_attention(heads, heads, heads), (-1, 32, 16))

    (found,) = calls(functional(attention))
    assert (found.follows_setting, found.query) == (False, [1, 32, 2, 8])


def test_a_model_without_a_forward_pass_has_a_call_of_unknown_shapes_for_each_layer():
    (found,) = calls(OnlyTrainStep())
    assert found.query is None
    assert found.follows_setting


@pytest.fixture
def kernel_runs(monkeypatch):
    """Let Keras find a TPU, interpret its Pallas kernel on this CPU, and return a list that grows with each use."""

    class Jax:
        def __getattr__(self, name):
            return getattr(jax, name)

        def devices(self):
            return [SimpleNamespace(platform="tpu")]

    runs, wrapped = [], nn.wrap_flash_attention

    def counted(query, *arguments, **more):
        result = wrapped(query, *arguments, **more)
        runs.append(query.shape)
        return result

    kernels = nn.splash_attention_kernel
    monkeypatch.setattr(nn, "jax", Jax())
    monkeypatch.setattr(nn, "wrap_flash_attention", counted)
    monkeypatch.setattr(kernels, "make_splash_mha", functools.partial(kernels.make_splash_mha, interpret=True))
    return runs


@pytest.mark.parametrize(
    ("length", "source_length", "more", "taken"),
    [
        (128, 128, {}, True),
        (384, 384, {}, True),
        (196, 196, {}, False),
        (64, 64, {}, False),
        (256, 128, {}, False),
        (128, 128, {"use_causal_mask": True}, False),
        (128, 128, {"attention_mask": np.ones((1, 128, 128), bool)}, False),
    ],
)
def test_keras_uses_its_tpu_kernel_where_it_is_expected(kernel_runs, length, source_length, more, taken):
    query, value = keras.Input((length, 16)), keras.Input((source_length, 16))
    layer = LAYERS.MultiHeadAttention(2, 8, **ZEROS)
    model = keras.Model([query, value], layer(query, value, **more))
    model.compile("sgd", "mse")
    x = [np.zeros((1, length, 16), "float32"), np.zeros((1, source_length, 16), "float32")]
    arguments = {"x": x, "y": x[0]}
    (found,) = attention_calls(model, arguments, data_facts.describe(arguments))
    assert not kernel_runs, "the recorded pass needs no kernel"
    jax.jit(lambda one, other: model.stateless_call(model.trainable_variables, [], [one, other])[0]).lower(*x)
    assert bool(kernel_runs) is found.fuses_on_tpu is taken


def trained(**more):
    """Return the losses of two updates."""
    keras.utils.set_random_seed(0)
    model, history = builder_encoder.build_model(**more), Batches()
    model.fit(**builder_encoder.train_data(), verbose=0, callbacks=[history])
    return history.losses


def loss(*, causal=False, larger_scores=1.0):
    """Return the loss before any update."""
    keras.utils.set_random_seed(0)
    model = builder_encoder.build_model(causal=causal)
    for layer in model.layers:
        if isinstance(layer, LAYERS.MultiHeadAttention):
            layer.query_dense.kernel.assign(layer.query_dense.kernel * larger_scores)
    data = builder_encoder.train_data()
    return model.test_on_batch(data["x"], data["y"])


class Batches(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.losses = []

    def on_train_batch_end(self, batch, logs=None):
        self.losses.append(logs["loss"])


def test_an_encoder_planned_for_a_tpu_trains_as_without_the_kernel(kernel_runs, monkeypatch):
    arguments = builder_encoder.train_data()
    calls_made = attention_calls(builder_encoder.build_model(), arguments, data_facts.describe(arguments))
    own, there = config(2), hardware_cluster("tpu-v5e-1")
    versions = Versions("3.15.1", "0.10.2", "tpu")
    found = legal_configs(observation(own, attention_calls=calls_made), there, versions, only=["attention"])
    (chosen,) = found.configs
    assert chosen == own.with_(attention=AttentionMode.UNFUSED)
    with autoplan.scope(plans.plan(config=chosen.to_dict())):
        planned = trained()
    assert not kernel_runs
    monkeypatch.setattr(nn, "jax", jax)
    np.testing.assert_allclose(planned, trained(), rtol=1e-5)


def test_the_tpu_kernel_computes_causal_attention_without_its_scale(kernel_runs, monkeypatch):
    with_kernel = loss()
    assert len(kernel_runs) >= 3
    monkeypatch.setattr(nn, "jax", jax)
    np.testing.assert_allclose(with_kernel, loss(causal=True, larger_scores=HEAD_WIDTH**0.5), rtol=1e-5)
    assert abs(with_kernel - loss()) > 1e-3
    assert abs(with_kernel - loss(causal=True)) > 1e-3
