"""Facts about a compiled model."""

import keras
import pytest

from autoplan.runtime import model_facts
from cost_models.config import AttentionMode, Precision


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


def stepping(step):
    return type("Net", (keras.Sequential,), {"train_step": step})([keras.layers.Input((4,)), keras.layers.Dense(1)])


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (lambda self, state, data: None, ""),
        (lambda self, *arguments: None, ""),
        (lambda self, state, data, more=1: None, ""),
        (
            lambda self, data: None,
            "Net.train_step(data) is written for TensorFlow or PyTorch",
        ),
        (
            lambda self, x, y, z: None,
            "Net.train_step(x, y, z) cannot be called with (state, data), as Keras does on jax",
        ),
    ],
    ids=["JAX", "any", "with a default", "TensorFlow", "neither"],
)
def test_a_train_step_for_another_backend_is_found(step, reason):
    assert model_facts.why_step_cannot_run(stepping(step)).partition(";")[0] == reason
    assert model_facts.why_step_cannot_run(compiled()) == ""


def test_a_train_step_for_jax_is_found_elsewhere(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "torch")
    found = model_facts.why_step_cannot_run(stepping(lambda self, state, data: None))
    assert found == "Net.train_step(state, data) is written for JAX; on torch Keras calls train_step(data)"
    assert model_facts.why_step_cannot_run(stepping(lambda self, data: None)) == ""


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


def test_other_models_are_those_with_weights_of_their_own():
    tuned = compiled(keras.layers.Dense(2))
    before = model_facts.other_models(tuned)
    base = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(2)], name="base_of_teacher")
    teacher = keras.Sequential([keras.layers.Input((4,)), base, keras.layers.Dense(1)], name="teacher")
    shared = keras.Model(tuned.inputs, tuned.layers[0].output, name="features")
    without = keras.Sequential([keras.layers.Input((4,)), keras.layers.Flatten()], name="flattening")
    assert set(model_facts.other_models(tuned)) - set(before) == {"teacher"}
    del base, teacher, shared, without
    assert "teacher" not in model_facts.other_models(tuned)


class CountsSteps(keras.layers.Layer):
    def build(self, shape):
        self.step = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, inputs):
        self.step.assign_add(1)
        return inputs


def test_code_that_counts_micro_steps_is_named():
    assert model_facts.counting_code(compiled(CountsSteps())) == ["CountsSteps"]
    assert model_facts.counting_code(compiled(metrics=["mae"])) == []


def attending(**arguments):
    inputs = keras.Input((8, 4))
    return keras.Model(
        inputs, keras.layers.MultiHeadAttention(2, 4, kernel_initializer="zeros", **arguments)(inputs, inputs)
    )


def test_attention_is_as_it_was_set_when_the_layers_were_created():
    auto = attending()
    keras.config.disable_flash_attention()
    try:
        unfused, own = attending(), attending(flash_attention=True)
        assert model_facts.attention_of(auto) is AttentionMode.AUTO
        assert model_facts.attention_of(compiled()) is AttentionMode.UNFUSED, "no layer says it"
        both = keras.Sequential([keras.Input((8, 4)), auto, unfused])
    finally:
        keras.config.enable_flash_attention()
    assert model_facts.attention_of(unfused) is AttentionMode.UNFUSED
    assert model_facts.attention_of(own) is AttentionMode.AUTO, "it does not follow the setting"
    assert model_facts.attention_of(both) is AttentionMode.AUTO


def test_flash_attention_false_of_a_layer_is_lost_unless_the_process_says_the_same():
    lost = attending(flash_attention=False)
    assert model_facts.lost_flash_attention(lost) == [lost.layers[1].path]
    assert model_facts.lost_flash_attention(attending()) == []
    assert model_facts.lost_flash_attention(attending(flash_attention=True)) == []
    keras.config.disable_flash_attention()
    try:
        assert model_facts.lost_flash_attention(attending(flash_attention=False)) == []
    finally:
        keras.config.enable_flash_attention()


class _Margin(keras.losses.Loss):
    def __init__(self, margin):
        super().__init__()
        self.margin = margin

    def call(self, y_true, y_pred):
        return keras.ops.maximum(self.margin - y_true * y_pred, 0.0)


def _compiled(loss, **arguments):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", loss, **arguments)
    return model_facts.losses_of(model)


def test_equal_losses_have_equal_descriptions():
    def own():
        return lambda y, p: keras.ops.abs(y - p)

    for make in (lambda: "mse", lambda: _Margin(1.0), keras.losses.MeanSquaredError, own, lambda: {"dense": "mse"}):
        assert _compiled(make()) == _compiled(make())
    every = ["mse", "mae", _Margin(1.0), _Margin(2.0), keras.losses.MeanSquaredError(), own(), None]
    assert len({*map(_compiled, every), _compiled("mse", loss_weights=[2.0])}) == len(every) + 1


def test_own_functions_among_the_metrics_are_found():
    def f1_m(y_true, y_pred):
        return keras.ops.mean(y_true * y_pred)

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])

    class Nearest(keras.metrics.Mean):
        """Judges a row among the others of its batch."""

    model.compile("sgd", "mse", metrics=["mae", f1_m, keras.metrics.F1Score(), Nearest(name="nearest")])
    assert model_facts.own_metrics(model) == ["f1_m", "nearest"]
    model.compile("sgd", "mse", metrics=["mae", keras.metrics.mean_squared_error])
    assert model_facts.own_metrics(model) == []
