"""MLP-Mixer on small images: patches, token and channel mixing, an adapted normalization layer, a schedule on plateaus."""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np
from keras import layers, ops


class Patches(layers.Layer):
    def __init__(self, patch_size, **kwargs):
        super().__init__(**kwargs)
        self.patch_size = patch_size

    def call(self, x):
        patches = ops.image.extract_patches(x, self.patch_size)
        shape = ops.shape(patches)
        return ops.reshape(patches, (shape[0], shape[1] * shape[2], shape[3]))


class MLPMixerLayer(layers.Layer):
    def __init__(self, num_patches, hidden_units, **kwargs):
        super().__init__(**kwargs)
        self.mlp1 = keras.Sequential([layers.Dense(num_patches, activation="gelu"), layers.Dense(num_patches)])
        self.mlp2 = keras.Sequential([layers.Dense(hidden_units, activation="gelu"), layers.Dense(hidden_units)])
        self.normalize = layers.LayerNormalization(epsilon=1e-6)

    def build(self, input_shape):
        return super().build(input_shape)

    def call(self, inputs):
        x = self.normalize(inputs)
        mixed = ops.transpose(self.mlp1(ops.transpose(x, axes=(0, 2, 1))), axes=(0, 2, 1))
        x = mixed + inputs
        return x + self.mlp2(self.normalize(x))


keras.utils.set_random_seed(12)
rng = np.random.default_rng(12)
labels = rng.integers(0, 5, 640)
images = (rng.random((640, 16, 16, 3)) * 200 + labels[:, None, None, None] * 10).astype("float32")
normalization = layers.Normalization()
normalization.adapt(images)

inputs = keras.Input((16, 16, 3))
x = layers.Dense(16)(Patches(4)(normalization(inputs)))
for _ in range(2):
    x = MLPMixerLayer(16, 16)(x)
x = layers.GlobalAveragePooling1D()(x)
model = keras.Model(inputs, layers.Dense(5)(x))
model.compile(
    optimizer=keras.optimizers.AdamW(learning_rate=0.005, weight_decay=0.0001),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=[keras.metrics.SparseCategoricalAccuracy(name="acc")],
)
reduce_lr = keras.callbacks.ReduceLROnPlateau(monitor="val_loss", factor=0.5, patience=5)
model.fit(images, labels, batch_size=48, epochs=3, validation_split=0.1, callbacks=[reduce_lr], verbose=2)
