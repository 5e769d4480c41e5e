"""Convolutional networks of the published rows that `keras.applications` lacks, in plain Keras layers.

Architectures follow their papers: He et al. 2015 (ResNet; v1.5 strides in the 3x3 convolution), Xie et al. 2017
(ResNeXt), Hu et al. 2018 (SE), Radosavovic et al. 2020 (RegNet), Bello et al. 2021 (ResNet-RS).
"""

from __future__ import annotations

from typing import Any

import keras
from keras import layers

BLOCKS = {
    18: (2, 2, 2, 2), 26: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3),
    270: (4, 29, 53, 4), 420: (4, 44, 87, 4),
}  # fmt: skip

# (initial width, slope, quantization, group width, depth, squeeze): Radosavovic et al. 2020, as timm states them
REGNETS = {
    "x_002": (24, 36.44, 2.49, 8, 13, 0.0), "x_004": (24, 24.48, 2.54, 16, 22, 0.0),
    "x_006": (48, 36.97, 2.24, 24, 16, 0.0), "x_008": (56, 35.73, 2.28, 16, 16, 0.0),
    "x_016": (80, 34.01, 2.25, 24, 18, 0.0), "x_064": (184, 60.83, 2.07, 56, 17, 0.0),
    "x_080": (80, 49.56, 2.88, 120, 23, 0.0), "x_120": (168, 73.36, 2.37, 112, 19, 0.0),
    "x_160": (216, 55.59, 2.1, 128, 22, 0.0), "x_320": (320, 69.86, 2.0, 168, 23, 0.0),
    "y_002": (24, 36.44, 2.49, 8, 13, 0.25), "y_004": (48, 27.89, 2.09, 8, 16, 0.25),
    "y_008": (56, 38.84, 2.4, 16, 14, 0.25), "y_016": (48, 20.71, 2.65, 24, 27, 0.25),
    "y_040": (96, 31.41, 2.24, 64, 22, 0.25), "y_064": (112, 33.22, 2.27, 72, 25, 0.25),
    "y_080": (192, 76.82, 2.19, 56, 17, 0.25), "y_320": (232, 115.89, 2.53, 232, 20, 0.25),
}  # fmt: skip


def _conv(x: Any, filters: int, kernel: int, *, stride: int = 1, groups: int = 1, relu: bool = True) -> Any:
    if kernel > 1 and stride > 1:
        x = layers.ZeroPadding2D(kernel // 2)(x)
    padding = "valid" if kernel > 1 and stride > 1 else "same"
    x = layers.Conv2D(filters, kernel, strides=stride, padding=padding, groups=groups, use_bias=False)(x)
    x = layers.BatchNormalization()(x)
    return layers.ReLU()(x) if relu else x


def _squeeze(x: Any, width: int) -> Any:
    gate = layers.GlobalAveragePooling2D(keepdims=True)(x)
    gate = layers.Conv2D(width, 1, activation="relu")(gate)
    return layers.Multiply()([x, layers.Conv2D(x.shape[-1], 1, activation="sigmoid")(gate)])


def _block(x: Any, width: int, out: int, stride: int, options: dict[str, Any]) -> Any:
    """A bottleneck block, or with `basic` a block of two 3x3 convolutions."""
    shortcut, groups = x, options.get("groups", 1)
    if options.get("basic"):
        y = _conv(x, out, 3, stride=stride)
        y = _conv(y, out, 3, relu=False)
    else:
        y = _conv(x, width, 1)
        y = _conv(y, width, 3, stride=stride, groups=groups)
        y = _squeeze(y, options["inner_squeeze"](x.shape[-1])) if "inner_squeeze" in options else y
        y = _conv(y, out, 1, relu=False)
    if "squeeze" in options:
        y = _squeeze(y, round(out * options["squeeze"]))
    if stride > 1 or x.shape[-1] != out:
        if stride > 1 and options.get("average"):
            shortcut = layers.AveragePooling2D(2, padding="same")(shortcut)
            stride = 1
        shortcut = _conv(shortcut, out, 1, stride=stride, relu=False)
    return layers.ReLU()(layers.Add()([y, shortcut]))


def resnet(depth: int, image: int, *, base: int = 64, groups: int = 1, deep: bool = False, **options: Any) -> Any:
    """ResNet v1.5 and its variants. `base` is the width of the 3x3 convolution in the first stage, over all groups."""
    options |= {"groups": groups, "basic": depth in (18, 34)}
    inputs = x = layers.Input((image, image, 3))
    x = _conv(_conv(_conv(x, 32, 3, stride=2), 32, 3), 64, 3) if deep else _conv(x, 64, 7, stride=2)
    if options.pop("striding_stem", False):
        x = _conv(x, 64, 3, stride=2)
    else:
        x = layers.MaxPooling2D(3, strides=2, padding="same")(x)
    expansion = 1 if options["basic"] else 4
    for stage, count in enumerate(BLOCKS[depth]):
        for index in range(count):
            stride = 2 if stage and not index else 1
            x = _block(x, base * 2**stage, 64 * 2**stage * expansion, stride, options)
    return _classifier(inputs, x)


def regnet(name: str, image: int) -> Any:
    """RegNetX and RegNetY: stage widths from a quantized line."""
    first, slope, factor, group, depth, squeeze = REGNETS[name]
    inputs = layers.Input((image, image, 3))
    x = _conv(inputs, 32, 3, stride=2)
    widths = []
    for index in range(depth):
        exponent = round(_log((first + slope * index) / first, factor))
        widths.append(int(round(first * factor**exponent / 8) * 8))
    last = 0
    for width in widths:
        here = min(group, width)
        width = int(round(width / here) * here)
        options: dict[str, Any] = {"groups": width // here}
        if squeeze:
            options["inner_squeeze"] = lambda channels: round(squeeze * channels)
        x = _block(x, width, width, 2 if width != last else 1, options)
        last = width
    return _classifier(inputs, x)


def _log(value: float, base: float) -> float:
    import math

    return math.log(value) / math.log(base)


def vgg(stages: tuple[int, ...], image: int, *, norm: bool) -> Any:
    """VGG (Simonyan & Zisserman 2014) with its three dense layers."""
    inputs = x = layers.Input((image, image, 3))
    for stage, count in enumerate(stages):
        filters = min(64 * 2**stage, 512)
        for _ in range(count):
            if norm:
                x = layers.Conv2D(filters, 3, padding="same")(x)
                x = layers.ReLU()(layers.BatchNormalization()(x))
            else:
                x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
        x = layers.MaxPooling2D(2)(x)
    x = layers.Flatten()(x)
    for _ in range(2):
        x = layers.Dropout(0.5)(layers.Dense(4096, activation="relu")(x))
    return keras.Model(inputs, layers.Dense(1000)(x))


def _classifier(inputs: Any, x: Any) -> Any:
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(1000)(x))
