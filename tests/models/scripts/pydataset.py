"""Two inputs in dictionaries from a PyDataset that loads with two threads, class weights, a partial last batch."""

import json
import math
import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np


class Records(keras.utils.PyDataset):
    def __init__(self, samples, batch_size, seed, **kwargs):
        super().__init__(**kwargs)
        rng = np.random.default_rng(seed)
        self.words = rng.integers(0, 50, (samples, 6))
        self.numbers = rng.normal(size=(samples, 4)).astype("float32")
        self.labels = (self.numbers.sum(axis=1) > 0).astype("int32")
        self.batch_size = batch_size
        self.epochs_ended = 0

    def __len__(self):
        return math.ceil(len(self.labels) / self.batch_size)

    def __getitem__(self, index):
        rows = slice(index * self.batch_size, (index + 1) * self.batch_size)
        return {"words": self.words[rows], "numbers": self.numbers[rows]}, self.labels[rows]

    def on_epoch_end(self):
        self.epochs_ended += 1


keras.utils.set_random_seed(21)
words = keras.Input((6,), dtype="int32", name="words")
numbers = keras.Input((4,), name="numbers")
text = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(50, 8)(words))
hidden = keras.layers.Dense(32, activation="relu")(keras.layers.Concatenate()([text, numbers]))
model = keras.Model({"words": words, "numbers": numbers}, keras.layers.Dense(2, activation="softmax")(hidden))
model.compile("adam", "sparse_categorical_crossentropy")

train, validation = Records(460, 32, seed=1, workers=2), Records(64, 32, seed=2)
model.fit(
    train,
    epochs=3,
    validation_data=validation,
    class_weight={0: 1.0, 1: 2.0},
    callbacks=[keras.callbacks.EarlyStopping(monitor="val_loss", patience=3)],
    verbose=0,
)
print(json.dumps({"updates": int(model.optimizer.iterations), "epochs_ended": train.epochs_ended}))
