"""The models to measure, and the smallest batch of each."""

from __future__ import annotations

import hashlib

FIRST = {
    "mlp_small": 64,
    "mlp_wide": 32,
    "convnet": 16,
    "resnet": 16,
    "depthwise": 8,
    "unet": 4,
    "decoder": 4,
    "encoder": 8,
    "vit": 8,
    "mixer": 16,
    "lstm": 16,
    "gru": 16,
    "conv1d": 16,
    "embeddings": 256,
    "subclassed": 256,
}
"""Models in `models.py`, with nine configurations each."""
LATER = {
    "inverted": 16,
    "textcnn": 16,
    "autoencoder": 8,
    "bilstm": 16,
    "crossnet": 128,
    "volumes": 4,
    "dense_block": 8,
    "seq2seq": 8,
    "wide_silu": 32,
    "convnext": 4,
    "gated_conv": 8,
    "tcn": 16,
    "bert": 8,
    "convlstm": 2,
    "dense_autoencoder": 64,
    "gru_words": 16,
    "vgg": 8,
    "recommender": 512,
}
"""Models in `later_models.py`, with five configurations each."""
GROUPS = ("developed on", "held out", "later")


def module_of(model: str) -> str:
    """Return the name of the module that builds the model, importable from the folder of the checkout."""
    return f"{__package__}.{'later_models' if model in LATER else 'models'}"


def group(model: str) -> str:
    """Return the group of a model. A held-out model has an odd hash, and no constant was set with its measurements."""
    if model in LATER:
        return "later"
    odd = int(hashlib.sha256(model.encode()).hexdigest(), 16) % 2 == 1
    return "held out" if odd else "developed on"
