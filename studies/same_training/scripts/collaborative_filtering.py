"""Collaborative filtering: users and films in one integer input, a dot product of embeddings, regularizers."""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np
from keras import layers, ops

NUM_USERS, NUM_MOVIES, EMBEDDING_SIZE = 80, 120, 12


class RecommenderNet(keras.Model):
    def __init__(self, num_users, num_movies, embedding_size, **kwargs):
        super().__init__(**kwargs)
        regularizer = keras.regularizers.l2(1e-6)
        self.user_embedding = layers.Embedding(
            num_users, embedding_size, embeddings_initializer="he_normal", embeddings_regularizer=regularizer
        )
        self.user_bias = layers.Embedding(num_users, 1)
        self.movie_embedding = layers.Embedding(
            num_movies, embedding_size, embeddings_initializer="he_normal", embeddings_regularizer=regularizer
        )
        self.movie_bias = layers.Embedding(num_movies, 1)

    def call(self, inputs):
        user_vector, user_bias = self.user_embedding(inputs[:, 0]), self.user_bias(inputs[:, 0])
        movie_vector, movie_bias = self.movie_embedding(inputs[:, 1]), self.movie_bias(inputs[:, 1])
        dot = ops.sum(user_vector * movie_vector, axis=1, keepdims=True)
        return ops.nn.sigmoid(dot + user_bias + movie_bias)


keras.utils.set_random_seed(7)
rng = np.random.default_rng(7)
x = np.stack([rng.integers(0, NUM_USERS, 1147), rng.integers(0, NUM_MOVIES, 1147)], axis=1)
y = ((x[:, 0] * 7 + x[:, 1] * 3) % 10 / 10).astype("float32")
model = RecommenderNet(NUM_USERS, NUM_MOVIES, EMBEDDING_SIZE)
model.compile(loss=keras.losses.BinaryCrossentropy(), optimizer=keras.optimizers.Adam(learning_rate=0.001))
model.fit(x=x[:1047], y=y[:1047], batch_size=64, epochs=2, verbose=2, validation_data=(x[1047:], y[1047:]))
