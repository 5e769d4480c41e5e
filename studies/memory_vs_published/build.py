"""Builds the model of a trace: of this study, or of `studies.time_vs_published`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras

from studies.memory_vs_published import encoders, models
from studies.time_vs_published import convnets, transformers, zoo

_HERE = {"finetuned": models, "classifier": encoders}
"""Kinds of models that this study builds, and their modules."""


def build(kind: str, size: int, optimizer: str, options: dict[str, Any]) -> Any:
    """Return a compiled model. `size` is the side of the image or the length of the sequence."""
    if kind not in _HERE:
        return zoo.build(kind, size, optimizer, options)
    if kind == "classifier":
        model = encoders.classifier(options["arch"], size, remat=options["remat"])
        loss: Any = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    else:
        model = models.finetuned(options["arch"], options["lora"], size)
        dtype = keras.config.dtype_policy().compute_dtype
        loss = [models.SparseCrossEntropy(dtype=dtype) for _ in model.outputs]
    model.compile(optimizer=zoo.OPTIMIZERS[optimizer](), loss=loss)
    return model


def sources(kind: str) -> list[Path]:
    """Return the files that a model of this kind is made by."""
    modules = (_HERE[kind],) if kind in _HERE else (convnets, transformers, zoo)
    return [Path(str(module.__file__)) for module in modules]
