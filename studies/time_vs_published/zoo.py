"""Models by name: `build` returns a compiled Keras model, and `TIMM` has the timm models that can be built.

Nothing is computed, since variables are abstract while a model is built and traced.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import keras
from keras.src.applications import convnext, efficientnet  # the scalable builders are not public

from studies.time_vs_published import convnets, transformers

_APPS = keras.applications
_EFFICIENTNETS = {
    "b0": (1.0, 1.0), "b1": (1.0, 1.1), "b2": (1.1, 1.2), "b3": (1.2, 1.4), "b4": (1.4, 1.8), "b5": (1.6, 2.2),
    "b6": (1.8, 2.6), "b7": (2.0, 3.1), "b8": (2.2, 3.6),
}  # fmt: skip
_CONVNEXTS = {
    "nano": ((2, 2, 8, 2), (80, 160, 320, 640)), "tiny": ((3, 3, 9, 3), (96, 192, 384, 768)),
    "small": ((3, 3, 27, 3), (96, 192, 384, 768)), "base": ((3, 3, 27, 3), (128, 256, 512, 1024)),
    "large": ((3, 3, 27, 3), (192, 384, 768, 1536)), "xlarge": ((3, 3, 27, 3), (256, 512, 1024, 2048)),
}  # fmt: skip
_VITS = {"tiny": (192, 12, 3), "small": (384, 12, 6), "base": (768, 12, 12), "large": (1024, 24, 16)}
_VGGS = {"11": (1, 1, 2, 2, 2), "13": (2, 2, 2, 2, 2), "16": (2, 2, 3, 3, 3), "19": (2, 2, 4, 4, 4)}


def _efficientnet(image: int, *, version: str) -> Any:
    width, depth = _EFFICIENTNETS[version]
    return efficientnet.EfficientNet(
        width, depth, image, weights=None, input_shape=(image, image, 3), classifier_activation=None, name="net"
    )


def _convnext(image: int, *, size: str) -> Any:
    depths, widths = _CONVNEXTS[size]
    return convnext.ConvNeXt(
        depths, widths, weights=None, input_shape=(image, image, 3), classifier_activation=None, name="net"
    )


def _application(image: int, *, of: str, **options: Any) -> Any:
    top = {"classifier_activation": None}
    return getattr(_APPS, of)(weights=None, input_shape=(image, image, 3), **top, **options)


def _electra(length: int, *, arch: dict[str, Any], words: str) -> Any:
    """Build ELECTRA: a generator, with a third of the width, and the discriminator (Clark et al. 2020, table 6).

    words   "everywhere": scores of words are computed at every position; then the masked positions, 15%, are
            selected (NVIDIA DeepLearningExamples, TensorFlow2 ELECTRA, `modeling.py`, `_get_masked_lm_output`)
    """
    if words != "everywhere":
        raise ValueError(f"scores of words {words!r} are not built here; only 'everywhere' is")
    tokens = keras.layers.Input((length,), dtype="int32")
    small = arch | {"d_model": 256, "heads": 4, "ffn": 1024, "embedding": 768}
    hidden = transformers._encoded(tokens, small, dropout=0.1)
    hidden = keras.layers.LayerNormalization()(keras.layers.Dense(768, activation="gelu")(hidden))
    scores = keras.layers.Dense(arch["vocab"])(hidden)[:, : max(1, round(0.15 * length))]
    replaced = keras.layers.Dense(2)(
        keras.layers.Dense(768, activation="gelu")(transformers._encoded(tokens, arch, dropout=0.1))
    )
    return keras.Model(tokens, [scores, replaced])


_BUILDERS: dict[str, Callable[..., Any]] = {
    "application": _application,
    "efficientnet": _efficientnet,
    "convnext": _convnext,
    "resnet": lambda image, **options: convnets.resnet(options.pop("depth"), image, **options),
    "regnet": lambda image, *, name: convnets.regnet(name, image),
    "vgg": lambda image, *, stages, norm: convnets.vgg(tuple(stages), image, norm=norm),
    "vit": lambda image, *, shape, patch, **_: transformers.vit(shape[0], shape[1], shape[2], patch, image),
    "mixer": lambda image, **_: transformers.mixer(768, 12, 16, image),
    "decoder": lambda length, *, arch, remat: transformers.decoder(arch, length, remat=remat),
    "encoder": lambda length, *, arch, head: transformers.encoder(arch, length, head=head),
    "electra": _electra,
}
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "nesterov": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: keras.optimizers.Adam(1e-4),
    "adamw": lambda: keras.optimizers.AdamW(1e-4),
    "adafactor": lambda: keras.optimizers.Adafactor(1e-4),
    "lamb": lambda: keras.optimizers.Lamb(1e-4),
    "rmsprop": lambda: keras.optimizers.RMSprop(1e-4, momentum=0.9),
}


def build(kind: str, size: int, optimizer: str, options: dict[str, Any]) -> Any:
    """Return a compiled model. `size` is the side of the image or the length of the sequence."""
    model = _BUILDERS[kind](size, **options)
    outputs = len(model.outputs)
    loss = [keras.losses.SparseCategoricalCrossentropy(from_logits=True) for _ in range(outputs)]
    model.compile(optimizer=OPTIMIZERS[optimizer](), loss=loss if outputs > 1 else loss[0])
    return model


def timm(model: str) -> tuple[str, dict[str, Any]] | None:
    """Return (kind, options) of a timm model, or None if Keras has no counterpart."""
    for pattern, answer in _TIMM:
        found = re.fullmatch(pattern, model)
        if found:
            return answer(*found.groups())
    return None


def _app(of: str, **options: Any) -> Any:
    return lambda *_: ("application", {"of": of, **options})


def _res(**options: Any) -> Any:
    return lambda depth, *_: ("resnet", {"depth": int(depth), **options})


_D = {"deep": True, "average": True}
_TIMM: list[tuple[str, Any]] = [
    (r"convnext_(nano|tiny|small|base|large|xlarge)(?:_384)?(?:_in22ft1k)?", lambda s: ("convnext", {"size": s})),
    (r"densenet(121|169|201)", lambda n: ("application", {"of": f"DenseNet{n}"})),
    (r"(?:tf_)?efficientnet_(b\d)a?", lambda v: ("efficientnet", {"version": v}) if v in _EFFICIENTNETS else None),
    (r"(?:tf_)?efficientnetv2_(b1|b3)", lambda v: ("application", {"of": f"EfficientNetV2{v.upper()}"})),
    (r"(?:tf_)?efficientnetv2_(s|m|l)(?:_in21ft1k)?", lambda v: ("application", {"of": f"EfficientNetV2{v.upper()}"})),
    (r"(?:gluon_|tf_)?inception_v3", _app("InceptionV3")),
    (r"mobilenetv2_(\d)(\d\d)", lambda a, b: ("application", {"of": "MobileNetV2", "alpha": float(f"{a}.{b}")})),
    (
        r"(?:tf_)?mobilenetv3_(small|large)_(075|100)",
        lambda size, a: ("application", {"of": f"MobileNetV3{size.title()}", "alpha": int(a) / 100}),
    ),
    (
        r"tf_mobilenetv3_large_minimal_100",
        lambda: ("application", {"of": "MobileNetV3Large", "minimalistic": True}),
    ),
    (r"mobilenetv3_rw", _app("MobileNetV3Large")),
    (r"nasnetalarge", _app("NASNetLarge")),
    (r"regnet([xy]_\d+)", lambda name: ("regnet", {"name": name})),
    (r"resnet(18|26|34|50)", _res()),
    (r"resnet(50)d", _res(**_D)),
    (r"resnetrs(50|101|152)", _res(squeeze=0.25, striding_stem=True, **_D)),
    (r"resnetv2_(50|101)", lambda n: ("application", {"of": f"ResNet{n}V2"})),
    (r"resnext(50)_32x4d", _res(base=128, groups=32)),
    (r"seresnet(50|101|152)", _res(squeeze=1 / 16)),
    (r"seresnext(50)_32x4d", _res(base=128, groups=32, squeeze=1 / 16)),
    (r"wide_resnet(101)_2", _res(base=128)),
    (r"vgg(\d\d)(_bn)?", lambda n, norm: ("vgg", {"stages": _VGGS[n], "norm": bool(norm)})),
    (
        r"(?:vit|deit)_(tiny|small|base|large)_patch(16|32)_\d+",
        lambda size, patch: ("vit", {"shape": _VITS[size], "patch": int(patch)}),
    ),
    (r"mixer_b16_224", lambda: ("mixer", {})),
]
