"""Trainings whose updates may be split or not, each with what the probe has to find; run on one backend as a script.

The script writes what the probe found, by the name of the case, to the file that its first argument names.
"""

import json
import sys
import traceback
from pathlib import Path

import keras
import numpy as np
from keras import layers, ops

from autoplan.runtime import backends
from autoplan.runtime.data import data_facts, lookahead
from autoplan.runtime.intercept import FitCall
from autoplan.worker.split_probe.probe import probe_fit

BACKEND = backends.get(keras.backend.backend())
CASES = {}
ROWS = 144
"""Rows of the data: four batches of 32 and half of one."""


def case(function):
    CASES[function.__name__] = function
    return function


def arrays(rows=ROWS, width=6):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, width), dtype="float32")
    return x, np.tanh(x[:, :1]) + 0.1 * x[:, 1:2]


def classes(rows=ROWS):
    return np.random.default_rng(1).integers(0, 4, rows)


def model_of(*hidden, outputs=1, loss="mse", width=6, kind=keras.Sequential, **compiling):
    keras.utils.set_random_seed(3)
    model = kind([keras.Input((width,)), layers.Dense(8, "tanh"), *hidden, layers.Dense(outputs)])
    model.compile("adam", loss, **compiling)
    return model


def fit(model, x=None, y=None, batch_size=32, **more):
    own_x, own_y = arrays()
    return model, {"x": own_x if x is None else x, "y": own_y if y is None else y, "batch_size": batch_size, **more}


@case
def plain():
    return fit(model_of())


@case
def batch_of_one_row():
    return fit(model_of(), batch_size=1)


@case
def weights_in_the_data():
    return fit(model_of(), sample_weight=np.linspace(0, 2, ROWS).astype("float32"))


@case
def weights_of_classes():
    model = model_of(outputs=4, loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return fit(model, y=classes(), class_weight={0: 1.0, 1: 3.0, 2: 0.5, 3: 2.0})


@case
def several_outputs_and_dictionaries():
    left, right = keras.Input((6,), name="left"), keras.Input((6,), name="right")
    hidden = layers.Dense(8, "relu")(layers.Concatenate()([left, right]))
    outputs = {"value": layers.Dense(1, name="value")(hidden), "kind": layers.Dense(4, name="kind")(hidden)}
    model = keras.Model({"left": left, "right": right}, outputs)
    kinds = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", {"value": "mae", "kind": kinds}, loss_weights={"value": 2.0, "kind": 0.5})
    x, y = arrays()
    return fit(model, {"left": x, "right": x[::-1]}, {"value": y, "kind": classes()})


@case
def penalty_of_weights():
    return fit(model_of(layers.Dense(8, kernel_regularizer="l2")))


@case
def penalty_of_outputs():
    return fit(model_of(layers.Dense(8, activity_regularizer="l2")))


@case
def unweighted_metrics():
    return fit(model_of(metrics=["mae"]))


@case
def metrics_of_two_outputs():
    inputs = keras.Input((6,))
    outputs = {"kind": layers.Dense(3, "softmax", name="kind")(inputs), "size": layers.Dense(1, name="size")(inputs)}
    model = keras.Model(inputs, outputs)
    losses = {"kind": "sparse_categorical_crossentropy", "size": "mse"}
    model.compile("adam", losses, metrics={"kind": ["accuracy", "sparse_top_k_categorical_accuracy"], "size": ["mae"]})
    x, y = arrays(90)
    return fit(model, x, {"kind": (y[:, 0] > 0).astype("int32"), "size": y})


@case
def metric_of_the_user():
    return fit(model_of(metrics=[lambda true, predicted: ops.max(ops.abs(true - predicted))]))


@case
def metric_that_counts_rows_of_weight_zero():
    return fit(model_of(metrics=["mae"]), sample_weight=(np.arange(ROWS) % 5 > 0).astype("float32"))


@case
def weighted_metrics():
    return fit(model_of(weighted_metrics=["mae"]))


@case
def loss_over_its_rows():
    """The loss is a mean over the rows, which takes rows of weight zero into account."""

    def mean_of_all(true, predicted):
        return ops.mean(ops.square(true - predicted + 1.0))

    return fit(model_of(loss=mean_of_all))


@case
def no_remainder():
    return fit(model_of(), batch_size=36)


@case
def loss_of_pairs():

    def info_nce(_, pairs):
        left, right = pairs[:, :4], pairs[:, 4:]
        logits = ops.matmul(left, ops.transpose(right))
        return ops.sparse_categorical_crossentropy(ops.arange(ops.shape(left)[0]), logits, from_logits=True)

    return fit(model_of(outputs=8, loss=info_nce))


@case
def triplet_loss():
    def hardest_negative(labels, embedded):
        squares = ops.sum(ops.square(embedded), axis=1)
        apart = squares[:, None] + squares[None, :] - 2 * ops.matmul(embedded, ops.transpose(embedded))
        same = ops.equal(labels[:, None], labels[None, :])
        positive = ops.max(ops.where(same, apart, 0.0), axis=1)
        negative = ops.min(ops.where(same, 1e6, apart), axis=1)
        return ops.relu(positive - negative + 1.0)

    return fit(model_of(outputs=4, loss=hardest_negative), y=classes())


@case
def summed_loss():
    return fit(model_of(loss=lambda true, predicted: ops.sum(ops.square(true - predicted))))


@case
def sum_by_its_name():
    return fit(model_of(loss=keras.losses.MeanSquaredError(reduction="sum")))


@case
def loss_over_its_positives():
    """The loss is divided by the number of positive labels of a micro-step."""

    def focal(true, logits):
        true = ops.cast(true, logits.dtype)
        return ops.sum(ops.binary_crossentropy(true, logits, from_logits=True)) / ops.maximum(ops.sum(true), 1.0)

    y = np.zeros((ROWS, 1), "float32")
    y[50:60] = 1
    return fit(model_of(loss=focal), y=y)


@case
def mean_with_sample_weight():
    return fit(model_of(loss=keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")))


@case
def rows_without_a_label_at_the_end():
    y = classes()
    y[-9:] = -1
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)
    return fit(model_of(outputs=4, loss=loss), y=y)


class Counter(layers.Layer):
    def build(self, shape):
        self.calls = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False, name="calls")

    def call(self, x, training=False):
        if training:
            self.calls.assign(self.calls + 1)
            self.add_loss(ops.relu(ops.cast(self.calls, "float32") / 100 - 0.9) * ops.mean(ops.square(x)))
        return x


@case
def counted_calls():
    return fit(model_of(Counter()))


class Codebook(layers.Layer):
    """Quantizes to the nearest code, and moves codes towards the mean of their rows."""

    def build(self, shape):
        self.codes = self.add_weight(shape=(5, shape[-1]), initializer="glorot_normal", trainable=False, name="codes")

    def call(self, x, training=False):
        codes = ops.convert_to_tensor(self.codes)
        apart = ops.sum(ops.square(x[:, None] - codes[None]), axis=-1)
        chosen = ops.one_hot(ops.argmin(apart, axis=1), 5)
        if training:
            counts = ops.sum(chosen, axis=0)[:, None]
            means = ops.matmul(ops.transpose(chosen), x) / ops.maximum(counts, 1.0)
            self.codes.assign(0.9 * codes + 0.1 * ops.stop_gradient(ops.where(counts > 0, means, codes)))
        return x + ops.stop_gradient(ops.matmul(chosen, codes) - x)


@case
def codebook():
    return fit(model_of(Codebook()))


@case
def spectral_normalization():
    return fit(model_of(layers.SpectralNormalization(layers.Dense(8))))


class BatchScores(layers.Layer):
    """Standardizes each feature over the rows of a micro-step."""

    def call(self, x):
        return (x - ops.mean(x, axis=0, keepdims=True)) / (ops.std(x, axis=0, keepdims=True) + 1e-3)


@case
def standardized_over_rows():
    return fit(model_of(BatchScores(name="scores")))


@case
def batch_normalization():
    return fit(model_of(layers.BatchNormalization(name="norm")))


@case
def frozen_batch_normalization():
    frozen = layers.BatchNormalization()
    frozen.trainable = False
    return fit(model_of(frozen))


@case
def dropout():
    return fit(model_of(layers.Dropout(0.5, name="drop"), layers.GaussianNoise(0.1, name="noise")))


@case
def dropout_of_nothing():
    return fit(model_of(layers.Dropout(0.0)))


class Sampling(layers.Layer):
    """The layer of Keras's example of a variational autoencoder."""

    def __init__(self, **options):
        super().__init__(**options)
        self.seed_generator = keras.random.SeedGenerator(1337)

    def call(self, inputs):
        return inputs + keras.random.normal(ops.shape(inputs), seed=self.seed_generator)


@case
def seeds_of_an_own_layer():
    return fit(model_of(Sampling(name="sampling")))


def sentences(*, mask_to_loss):
    rng = np.random.default_rng(2)
    x = rng.integers(1, 20, (ROWS, 7))
    for row, length in enumerate(rng.integers(1, 8, ROWS)):
        x[row, length:] = 0
    words = keras.Input((7,), dtype="int32")
    hidden = layers.GRU(5, return_sequences=mask_to_loss)(layers.Embedding(20, 4, mask_zero=True)(words))
    model = keras.Model(words, layers.Dense(4)(hidden))
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return fit(model, x, rng.integers(0, 4, (ROWS, 7)) if mask_to_loss else classes())


@case
def mask_that_reaches_the_loss():
    return sentences(mask_to_loss=True)


@case
def mask_that_is_consumed():
    return sentences(mask_to_loss=False)


@case
def fixed_number_of_rows():
    keras.utils.set_random_seed(3)
    inputs = keras.Input(batch_shape=(32, 6))
    rows = layers.Dense(8)(inputs)
    model = keras.Model(inputs, layers.Dense(1)(ops.reshape(rows, (32, 8))))
    model.compile("sgd", "mse")
    return fit(model)


class OwnMicroStep(keras.Model):
    """A model with a loss of its own in its micro-step, which `compute_loss` has on every backend."""

    def __init__(self, layer, *, over_rows):
        super().__init__()
        self.layer, self.over_rows = layer, over_rows

    def call(self, x):
        return self.layer(x)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        loss = ops.mean(ops.square(y - y_pred))
        return loss - ops.std(y_pred) if self.over_rows else loss


@case
def own_micro_step():
    model = OwnMicroStep(layers.Dense(1), over_rows=False)
    model.compile("sgd")
    return fit(model)


@case
def own_micro_step_over_rows():
    model = OwnMicroStep(layers.Dense(1), over_rows=True)
    model.compile("sgd")
    return fit(model)


class Batches(keras.utils.PyDataset):
    """Batches of 32 rows, the last one of 16."""

    def __len__(self):
        return 5

    def __getitem__(self, index):
        x, y = arrays()
        return x[32 * index : 32 * index + 32], y[32 * index : 32 * index + 32]


@case
def batches_of_a_data_set():
    return model_of(), {"x": Batches()}


@case
def batches_of_a_generator():
    def generate():
        while True:
            yield arrays(32)

    return model_of(), {"x": generate(), "steps_per_epoch": 3}


class Noisy(layers.Layer):
    """Adds a number that is another one at each call, from a generator that Keras does not know."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def call(self, x):
        self.calls += 1
        return x * (1 + 0.1 * self.calls)


@case
def state_outside_of_variables():
    return fit(model_of(Noisy()))


def flooded(true, predicted):
    """The loss of flooding (Ishida et al. 2020): it turns round once the mean of a micro-step is below a level."""
    return ops.abs(ops.mean(ops.square(true - predicted)) - 0.4) + 0.4


@case
def loss_that_turns_round():
    return fit(model_of(loss=flooded))


class Switched(layers.Layer):
    """Subtracts the mean over the rows once its switch is on."""

    def build(self, shape):
        self.on = self.add_weight(shape=(), initializer="zeros", trainable=False, name="on")

    def call(self, x):
        return x - ops.cast(self.on, x.dtype) * ops.mean(x, axis=0, keepdims=True)


@case
def switch_of_a_callback():
    return fit(model_of(Switched()))


@case
def one_mask_for_all_rows():
    return fit(model_of(layers.Dropout(0.5, noise_shape=(1, 8), name="shared")))


class NoisyWeights(layers.Dense):
    """Draws a noise of its weights at each micro-step."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.seed = keras.random.SeedGenerator(1)

    def call(self, inputs, training=None):
        outputs = super().call(inputs)
        return outputs + inputs @ keras.random.normal(self.kernel.shape, seed=self.seed) if training else outputs


@case
def noise_of_weights():
    return fit(model_of(NoisyWeights(8, name="noisy")))


class Negatives(layers.Layer):
    """Pairs each row with another of its batch."""

    def __init__(self, **options):
        super().__init__(**options)
        self.seed = keras.random.SeedGenerator(1)

    def call(self, inputs):
        others = ops.take(inputs, keras.random.shuffle(ops.arange(ops.shape(inputs)[0]), seed=self.seed), axis=0)
        self.add_loss(ops.mean(ops.softplus(ops.sum(inputs * others, axis=-1))))
        return inputs


@case
def shuffled_pairs():
    return fit(model_of(Negatives(name="negatives")))


@case
def rare_labels_of_another_output():
    """The second output has labels in a few rows in the middle only, and its loss is their mean."""

    def of_known(true, predicted):
        known = ops.cast(true >= 0, "float32")
        return ops.sum(known * ops.square(true - predicted)) / ops.maximum(ops.sum(known), 1.0)

    inputs = keras.Input((6,))
    hidden = layers.Dense(8, "tanh")(inputs)
    outputs = {"all": layers.Dense(1, name="all")(hidden), "rare": layers.Dense(1, name="rare")(hidden)}
    model = keras.Model(inputs, outputs)
    model.compile("adam", {"all": "mse", "rare": of_known})
    x, y = arrays(2000)
    rare = np.full((2000, 1), -1.0, "float32")
    rare[900:1100:40] = 0.5
    return fit(model, x, {"all": y, "rare": rare})


def probed(make):
    model, arguments = make()
    call = FitCall(1, model, lookahead.buffer_first_batch(arguments), keras.Model.fit)
    return probe_fit(call, data_facts.describe(call.arguments), BACKEND, {}).model_dump(mode="json")


def main(target, *names):
    found = {}
    for name in names or CASES:
        try:
            found[name] = probed(CASES[name])
        except Exception:  # noqa: BLE001 -- the test shows it
            found[name] = {"error": traceback.format_exc()}
        Path(target).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
