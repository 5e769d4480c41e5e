"""Variational autoencoder with a train_step of its own for JAX: a sampling layer, losses summed over pixels."""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import keras
import numpy as np
from keras import layers, ops


class Sampling(layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seed_generator = keras.random.SeedGenerator(1337)

    def call(self, inputs):
        z_mean, z_log_var = inputs
        epsilon = keras.random.normal(shape=ops.shape(z_mean), seed=self.seed_generator)
        return z_mean + ops.exp(0.5 * z_log_var) * epsilon


class VAE(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.encoder = keras.Sequential([layers.Flatten(), layers.Dense(32, activation="relu")])
        self.mean, self.log_var = layers.Dense(2), layers.Dense(2)
        self.sampling = Sampling()
        self.decoder = keras.Sequential([layers.Dense(32, activation="relu"), layers.Dense(64, activation="sigmoid")])
        self.loss_tracker = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.loss_tracker]

    def call(self, x, training=None):
        hidden = self.encoder(x)
        z_mean, z_log_var = self.mean(hidden), self.log_var(hidden)
        return self.decoder(self.sampling([z_mean, z_log_var])), z_mean, z_log_var

    def compute_loss_and_updates(self, trainable_variables, non_trainable_variables, x):
        (reconstruction, z_mean, z_log_var), non_trainable_variables = self.stateless_call(
            trainable_variables, non_trainable_variables, x, training=True
        )
        target = ops.reshape(x, (ops.shape(x)[0], 64))
        crossentropy = ops.sum(
            -target * ops.log(reconstruction + 1e-6) - (1 - target) * ops.log(1 - reconstruction + 1e-6), axis=1
        )
        kl = -0.5 * ops.sum(1 + z_log_var - ops.square(z_mean) - ops.exp(z_log_var), axis=1)
        return ops.mean(crossentropy) + ops.mean(kl), non_trainable_variables

    def train_step(self, state, data):
        trainable_variables, non_trainable_variables, optimizer_variables, metrics_variables = state
        (x,) = data if isinstance(data, tuple) else (data,)
        grad_fn = jax.value_and_grad(self.compute_loss_and_updates, has_aux=True)
        (loss, non_trainable_variables), grads = grad_fn(trainable_variables, non_trainable_variables, x)
        trainable_variables, optimizer_variables = self.optimizer.stateless_apply(
            optimizer_variables, grads, trainable_variables
        )
        metrics_variables = self.loss_tracker.stateless_update_state(metrics_variables, loss)
        logs = {"loss": self.loss_tracker.stateless_result(metrics_variables)}
        return logs, (trainable_variables, non_trainable_variables, optimizer_variables, metrics_variables)


keras.utils.set_random_seed(6)
images = np.random.default_rng(6).random((333, 8, 8, 1)).astype("float32").round()
vae = VAE()
vae(images[:2])
vae.compile(optimizer=keras.optimizers.Adam())
vae.fit(images, epochs=3, batch_size=32, verbose=2)
