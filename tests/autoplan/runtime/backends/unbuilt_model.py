"""A model that `fit` would build, trained as the conformance suite's checks train theirs."""

import keras
import numpy as np

from autoplan.runtime.apply import Change, apply_to_model
from autoplan.runtime.data import data_facts
from autoplan.runtime.fit import arguments_under
from autoplan.runtime.live_models.build import ensure_built
from cost_models.config import Batch, TrainConfig


class Unbuilt(keras.Model):
    """Nothing but its layers is unbuilt before its fit, because its loss is its own."""

    def __init__(self):
        super().__init__()
        self.hidden, self.out = keras.layers.Dense(16, "tanh"), keras.layers.Dense(1)

    def call(self, x):
        return self.out(self.hidden(x))

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return keras.ops.mean(keras.ops.square(y_pred))


def trained(wanted):
    """Return the weights and the number of updates after two epochs with 32 rows per update; None: without a plan."""
    backend = keras.backend.backend()
    keras.utils.set_random_seed(7)
    model = Unbuilt()
    model.compile("sgd", jit_compile=backend == "jax")
    x = np.random.default_rng(0).standard_normal((96, 8), dtype="float32")
    arguments = {"x": x, "y": x[:, :1], "batch_size": 32, "epochs": 2, "verbose": 0}
    if wanted is not None:
        own = TrainConfig(batch=Batch(32), backend=backend, jit_compile=backend == "jax")
        change, facts = Change(own, own.with_(batch=wanted)), data_facts.describe(arguments)
        ensure_built(model, arguments, facts)
        apply_to_model(model, change)
        arguments = arguments_under(model, arguments, facts, change)
    model.fit(**arguments)
    weights = [np.ravel(keras.ops.convert_to_numpy(weight)) for weight in model.trainable_variables]
    return np.concatenate(weights), int(model.optimizer.iterations)
