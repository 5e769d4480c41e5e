"""The models of the study: what users train, from a plain MLP to ImageNet networks and transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from keras import layers


def mlp() -> Any:
    model = keras.Sequential(
        [
            keras.Input((64,)),
            layers.Dense(1024, "relu"),
            layers.Dense(1024, "gelu"),
            layers.Dense(1024, "relu"),
            layers.Dense(10),
        ]
    )
    model.compile(optimizer="adam", loss="mse")
    return model


def cnn() -> Any:
    model = keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.BatchNormalization(),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(128, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dropout(0.5),
            layers.Dense(10, "softmax"),
        ]
    )
    return _classifier(model)


def conv1d() -> Any:
    x = inputs = keras.Input((4096, 16))
    for filters in (64, 128, 256):
        x = layers.Conv1D(filters, 9, padding="same", activation="relu")(x)
        x = layers.MaxPooling1D(4)(layers.BatchNormalization()(x))
    x = layers.Dense(5, "softmax")(layers.GlobalAveragePooling1D()(x))
    return _classifier(keras.Model(inputs, x), "rmsprop")


def unet() -> Any:
    x = inputs = keras.Input((128, 128, 3))
    skips = []
    for filters in (32, 64, 128):
        for _ in range(2):
            x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
        skips.append(x)
        x = layers.MaxPooling2D()(x)
    x = layers.Conv2D(256, 3, padding="same", activation="relu")(x)
    for filters, skip in zip((128, 64, 32), reversed(skips), strict=True):
        x = layers.Concatenate()([layers.Conv2DTranspose(filters, 2, strides=2)(x), skip])
        x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
    model = keras.Model(inputs, layers.Conv2D(1, 1, activation="sigmoid")(x))
    model.compile(optimizer="adam", loss="binary_crossentropy")
    return model


def _block(x: Any, width: int, heads: int, dropout: float, causal: bool, activation: str) -> Any:
    y = layers.LayerNormalization(epsilon=1e-5)(x)
    x = x + layers.MultiHeadAttention(heads, width // heads, dropout=dropout)(y, y, use_causal_mask=causal)
    y = layers.Dense(4 * width, activation=activation)(layers.LayerNormalization(epsilon=1e-5)(x))
    y = layers.Dense(width)(y)
    return x + (layers.Dropout(dropout)(y) if dropout else y)


def decoder(dropout: float = 0.0, activation: str = "gelu") -> Any:
    width, length, vocabulary = 512, 512, 8192
    tokens = keras.Input((length,), dtype="int32")
    x = layers.Embedding(vocabulary, width)(tokens) + layers.Embedding(length, width)(keras.ops.arange(length))
    for _ in range(6):
        x = _block(x, width, 8, dropout, True, activation)
    model = keras.Model(tokens, layers.Dense(vocabulary)(layers.LayerNormalization(epsilon=1e-5)(x)))
    model.compile(optimizer="adamw", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def decoder_drop() -> Any:
    return decoder(0.1, "relu")


def encoder() -> Any:
    tokens = keras.Input((128,), dtype="int32")
    x = layers.Dropout(0.1)(layers.Embedding(8192, 256)(tokens))
    for _ in range(4):
        x = _block(x, 256, 4, 0.1, False, "relu")
    x = layers.Dense(4, "softmax")(layers.GlobalAveragePooling1D()(x))
    return _classifier(keras.Model(tokens, x), "adam")


def vit() -> Any:
    inputs = keras.Input((128, 128, 3))
    x = layers.Reshape((64, 256))(layers.Conv2D(256, 16, strides=16)(inputs))
    for _ in range(6):
        x = _block(x, 256, 4, 0.0, False, "gelu")
    model = keras.Model(inputs, layers.Dense(100)(layers.GlobalAveragePooling1D()(x)))
    model.compile(optimizer="adamw", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def rnn() -> Any:
    tokens = keras.Input((100,), dtype="int32")
    x = layers.LSTM(256, return_sequences=True)(layers.Embedding(5000, 128)(tokens))
    model = keras.Model(tokens, layers.Dense(10, "softmax")(layers.GRU(256)(x)))
    model.compile(optimizer="adam", loss="sparse_categorical_crossentropy")
    return model


def _classifier(model: Any, optimizer: Any = None) -> Any:
    model.compile(
        optimizer=optimizer or keras.optimizers.SGD(0.1, momentum=0.9),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


def _application(name: str, optimizer: str | None = None) -> Callable[[], Any]:
    return lambda: _classifier(getattr(keras.applications, name)(weights=None), optimizer)


MODELS: dict[str, Callable[[], Any]] = {
    "mlp": mlp,
    "cnn": cnn,
    "conv1d": conv1d,
    "unet": unet,
    "decoder": decoder,
    "decoder_drop": decoder_drop,
    "encoder": encoder,
    "vit": vit,
    "rnn": rnn,
    "resnet50": _application("ResNet50"),
    "vgg16": _application("VGG16"),
    "mobilenetv2": _application("MobileNetV2"),
    "effnetb0": _application("EfficientNetB0", "adam"),
    "densenet121": _application("DenseNet121"),
    "convnext": _application("ConvNeXtTiny", "adamw"),
}
