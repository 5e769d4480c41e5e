"""ResNet-20 for 32x32 images (He et al., 2015, section 4.2), on random images of ten classes."""

import argparse
import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np
from keras import layers

parser = argparse.ArgumentParser()
parser.add_argument("--samples", type=int, default=256)
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--accumulation", type=int, default=None)
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--blocks", type=int, default=3, help="blocks a stage: 3 gives 20 layers")
args = parser.parse_args()


def block(x, filters, stride):
    shortcut = x
    x = layers.Conv2D(filters, 3, strides=stride, padding="same", use_bias=False)(x)
    x = layers.BatchNormalization()(x)
    x = layers.ReLU()(x)
    x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
    x = layers.BatchNormalization()(x)
    if stride != 1:
        shortcut = layers.Conv2D(filters, 1, strides=stride, use_bias=False)(shortcut)
        shortcut = layers.BatchNormalization()(shortcut)
    return layers.ReLU()(layers.Add()([x, shortcut]))


def resnet(blocks):
    inputs = keras.Input((32, 32, 3))
    x = layers.Conv2D(16, 3, padding="same", use_bias=False)(inputs)
    x = layers.BatchNormalization()(x)
    x = layers.ReLU()(x)
    for stage, filters in enumerate((16, 32, 64)):
        for index in range(blocks):
            x = block(x, filters, stride=2 if stage > 0 and index == 0 else 1)
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(10, activation="softmax")(x))


keras.utils.set_random_seed(5)
rng = np.random.default_rng(5)
labels = rng.integers(0, 10, size=args.samples)
images = rng.normal(size=(args.samples, 32, 32, 3)).astype("float32") + labels[:, None, None, None] / 10

model = resnet(args.blocks)
model.compile(
    optimizer=keras.optimizers.SGD(0.1, momentum=0.9, weight_decay=1e-4, gradient_accumulation_steps=args.accumulation),
    loss="sparse_categorical_crossentropy",
    metrics=["accuracy"],
)
model.fit(images, labels, batch_size=args.batch_size, epochs=args.epochs, verbose=2)
