"""A model with a training step of its own: consistency between two noisy views, written for JAX's stateless interface."""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import keras
import numpy as np


class NoisyRegressor(keras.Model):
    def compute_loss_and_updates(self, trainable, non_trainable, x, y):
        predicted, non_trainable = self.stateless_call(trainable, non_trainable, x, training=True)
        shifted, non_trainable = self.stateless_call(trainable, non_trainable, x + 0.01, training=True)
        loss = self.compute_loss(x, y, predicted) + ((predicted - shifted) ** 2).mean()
        return loss, non_trainable

    def train_step(self, state, data):
        trainable, non_trainable, optimizer_variables, metrics_variables = state
        x, y = data
        step = jax.value_and_grad(self.compute_loss_and_updates, has_aux=True)
        (loss, non_trainable), gradients = step(trainable, non_trainable, x, y)
        trainable, optimizer_variables = self.optimizer.stateless_apply(optimizer_variables, gradients, trainable)
        tracker = self.metrics[0]
        metrics_variables = tracker.stateless_update_state(metrics_variables, loss, sample_weight=x.shape[0])
        return {"loss": tracker.stateless_result(metrics_variables)}, (
            trainable,
            non_trainable,
            optimizer_variables,
            metrics_variables,
        )


keras.utils.set_random_seed(9)
x = np.random.default_rng(9).normal(size=(1024, 16)).astype("float32")
y = x[:, :1] ** 2

inputs = keras.Input((16,))
hidden = keras.layers.Dense(64, activation="relu")(inputs)
model = NoisyRegressor(inputs, keras.layers.Dense(1)(hidden))
model.compile(optimizer="adam", loss="mse")
model.fit(x, y, batch_size=32, epochs=2, verbose=2)
