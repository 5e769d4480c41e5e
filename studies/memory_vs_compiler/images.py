"""Models of images, volumes and videos: a few blocks each, on feature maps of usual sizes."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers, ops

from studies.memory_vs_compiler.heads import SPARSE, classes


def conv_bn(x: Any, filters: int, size: Any = 3, strides: int = 1, activation: str | None = "relu") -> Any:
    x = layers.Conv2D(filters, size, strides=strides, padding="same", use_bias=False)(x)
    x = layers.BatchNormalization()(x)
    return layers.Activation(activation)(x) if activation else x


def resnet50() -> Any:
    return keras.applications.ResNet50(weights=None), SPARSE


def vgg11() -> Any:
    x = inputs = keras.Input((192, 192, 3))
    for filters, count in ((64, 1), (128, 1), (256, 2), (512, 2), (512, 2)):
        for _ in range(count):
            x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
        x = layers.MaxPooling2D()(x)
    x = layers.Dense(2048, "relu")(layers.Flatten()(x))
    x = layers.Dense(2048, "relu")(layers.Dropout(0.5)(x))
    return classes(inputs, layers.Dropout(0.5)(x), 1000), SPARSE


def densenet() -> Any:
    inputs = keras.Input((128, 128, 3))
    x = layers.MaxPooling2D(3, strides=2, padding="same")(conv_bn(inputs, 64, 7))
    for block in range(3):
        if block:
            x = layers.Conv2D(x.shape[-1] // 2, 1)(layers.ReLU()(layers.BatchNormalization()(x)))
            x = layers.AveragePooling2D(2)(x)
        for _ in range(4):
            y = layers.Conv2D(128, 1, use_bias=False)(layers.ReLU()(layers.BatchNormalization()(x)))
            y = layers.Conv2D(32, 3, padding="same", use_bias=False)(layers.ReLU()(layers.BatchNormalization()(y)))
            x = layers.Concatenate()([x, y])
    return classes(inputs, layers.GlobalAveragePooling2D()(x), 100), SPARSE


def _inverted(x: Any, filters: int, strides: int, activation: str, squeeze: bool) -> Any:
    wide = 6 * x.shape[-1]
    y = conv_bn(x, wide, 1, activation=activation)
    y = layers.DepthwiseConv2D(3, strides=strides, padding="same", use_bias=False)(y)
    y = layers.Activation(activation)(layers.BatchNormalization()(y))
    if squeeze:
        gate = layers.GlobalAveragePooling2D(keepdims=True)(y)
        gate = layers.Conv2D(wide, 1, activation="sigmoid")(layers.Conv2D(wide // 24, 1, activation=activation)(gate))
        y = layers.Multiply()([y, gate])
    y = conv_bn(y, filters, 1, activation=None)
    return layers.Add()([x, y]) if strides == 1 and x.shape[-1] == filters else y


def _mobile(activation: str, squeeze: bool, side: int) -> Any:
    inputs = keras.Input((side, side, 3))
    x = conv_bn(inputs, 32, strides=2, activation=activation)
    for filters, strides in ((24, 2), (24, 1), (40, 2), (40, 1), (80, 2), (80, 1)):
        x = _inverted(x, filters, strides, activation, squeeze)
    x = layers.GlobalAveragePooling2D()(conv_bn(x, 640, 1, activation=activation))
    return classes(inputs, layers.Dropout(0.2)(x), 100), SPARSE


def mobilenetv2() -> Any:
    return _mobile("relu6", False, 224)


def efficientnet() -> Any:
    return _mobile("swish", True, 192)


class Scale(layers.Layer):
    """A layer that multiplies each channel by a learned factor."""

    def build(self, shape: Any) -> None:
        self.gamma = self.add_weight(shape=(shape[-1],), initializer="ones", name="gamma")

    def call(self, x: Any) -> Any:
        return x * self.gamma


def convnext() -> Any:
    inputs = keras.Input((160, 160, 3))
    x = layers.LayerNormalization(epsilon=1e-6)(layers.Conv2D(96, 4, strides=4)(inputs))
    for stage, filters in enumerate((96, 192, 384)):
        if stage:
            x = layers.Conv2D(filters, 2, strides=2)(layers.LayerNormalization(epsilon=1e-6)(x))
        for _ in range(2):
            y = layers.DepthwiseConv2D(7, padding="same")(x)
            y = layers.Dense(4 * filters, "gelu")(layers.LayerNormalization(epsilon=1e-6)(y))
            x = x + Scale()(layers.Dense(filters)(y))
    return classes(inputs, layers.LayerNormalization()(layers.GlobalAveragePooling2D()(x)), 100), SPARSE


def unet() -> Any:
    x = inputs = keras.Input((192, 192, 3))
    skips = []
    for filters in (32, 64, 128):
        x = conv_bn(conv_bn(x, filters), filters)
        skips.append(x)
        x = layers.MaxPooling2D()(x)
    x = layers.Dropout(0.3)(conv_bn(x, 256))
    for filters, skip in zip((128, 64, 32), reversed(skips), strict=True):
        x = layers.Concatenate()([layers.UpSampling2D(interpolation="bilinear")(x), skip])
        x = conv_bn(x, filters)
    return keras.Model(inputs, layers.Conv2D(1, 1, activation="sigmoid", dtype="float32")(x)), "binary_crossentropy"


def conv3d() -> Any:
    x = inputs = keras.Input((16, 96, 96, 3))
    for filters in (32, 64, 128):
        x = layers.Conv3D(filters, 3, padding="same", use_bias=False)(x)
        x = layers.MaxPooling3D()(layers.ReLU()(layers.BatchNormalization()(x)))
    x = layers.Conv3D(256, 3, padding="same", activation="relu")(x)
    return classes(inputs, layers.Dropout(0.4)(layers.GlobalAveragePooling3D()(x)), 101), SPARSE


def two_heads() -> Any:
    x = inputs = keras.Input((160, 160, 3))
    for filters in (32, 64, 128, 192):
        x = layers.AveragePooling2D(2)(layers.LeakyReLU()(layers.Conv2D(filters, 3, padding="same")(x)))
    flat = layers.GlobalAveragePooling2D()(x)
    kind = layers.Dense(20, "softmax", name="kind", dtype="float32")(layers.Dense(128, "relu")(flat))
    box = layers.Conv2D(4, 1, name="box", dtype="float32")(layers.Conv2D(128, 3, padding="same", activation="relu")(x))
    return keras.Model(inputs, [kind, box]), [SPARSE, "mse"]


def autoencoder() -> Any:
    x = inputs = keras.Input((128, 128, 3))
    for filters in (32, 64, 128):
        x = layers.Conv2D(filters, 3, strides=2, padding="same", activation="relu")(x)
    shape = x.shape[1:]
    x = layers.Dense(256)(layers.Flatten()(x))
    x = layers.Reshape(shape)(layers.Dense(shape[0] * shape[1] * shape[2], "relu")(x))
    for filters in (128, 64, 32):
        x = layers.Conv2DTranspose(filters, 3, strides=2, padding="same", activation="relu")(x)
    return keras.Model(inputs, layers.Conv2D(3, 3, padding="same")(x)), "mae"


def groupnorm() -> Any:
    x = inputs = keras.Input((128, 128, 3))
    x = layers.Conv2D(64, 3, padding="same")(x)
    for filters in (64, 128, 256):
        y = layers.Conv2D(filters, 3, padding="same")(layers.Activation("swish")(layers.GroupNormalization(16)(x)))
        y = layers.Conv2D(filters, 3, padding="same")(layers.Activation("swish")(layers.GroupNormalization(16)(y)))
        x = layers.AveragePooling2D(2)(layers.Conv2D(filters, 1)(x) + y)
    return classes(inputs, layers.GlobalAveragePooling2D()(x), 10), SPARSE


def inception() -> Any:
    inputs = keras.Input((192, 192, 3))
    x = layers.MaxPooling2D(3, strides=2)(conv_bn(inputs, 64, 5, strides=2))
    for block in range(3):
        one = conv_bn(x, 64, 1)
        three = conv_bn(conv_bn(x, 48, 1), 96, 3)
        tall = conv_bn(conv_bn(conv_bn(x, 32, 1), 32, (1, 7)), 64, (7, 1))
        pooled = conv_bn(layers.AveragePooling2D(3, strides=1, padding="same")(x), 32, 1)
        x = layers.Concatenate()([one, three, tall, pooled])
        if block < 2:
            x = layers.MaxPooling2D(3, strides=2)(x)
    return classes(inputs, layers.Dropout(0.2)(layers.GlobalAveragePooling2D()(x)), 1000), SPARSE


def siamese() -> Any:
    left, right = keras.Input((105, 105, 1), name="left"), keras.Input((105, 105, 1), name="right")
    tower = keras.Sequential(
        [
            keras.Input((105, 105, 1)),
            layers.Conv2D(64, 10, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(128, 7, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(128, 4, activation="relu"),
            layers.Flatten(),
            layers.Dense(1024, "sigmoid"),
        ]
    )
    distance = ops.abs(tower(left) - tower(right))
    return keras.Model([left, right], layers.Dense(1, "sigmoid", dtype="float32")(distance)), "binary_crossentropy"


def convlstm() -> Any:
    x = inputs = keras.Input((10, 64, 64, 1))
    x = layers.ConvLSTM2D(32, 3, padding="same", return_sequences=True)(x)
    x = layers.ConvLSTM2D(32, 3, padding="same", return_sequences=True)(layers.LayerNormalization()(x))
    return keras.Model(inputs, layers.Conv3D(1, 3, padding="same", activation="sigmoid", dtype="float32")(x)), "mse"
