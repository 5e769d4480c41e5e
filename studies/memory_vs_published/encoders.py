"""BERT in blocks, as HuggingFace's code runs it under PyTorch's autocast and with checkpoints of its blocks."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers, ops


@keras.saving.register_keras_serializable("memory_vs_published")
class Block(layers.Layer):
    """A block of attention and MLP with norms after the sums. With `remat` the backward pass repeats its forward pass.

    Softmax and norms are in float32, as in autocast's list of operations.
    """

    def __init__(self, arch: dict[str, Any], *, remat: bool, dropout: float = 0.1) -> None:
        super().__init__()
        self.arch, self.remat, self.rate = arch, remat, dropout

    def build(self, shape: Any) -> None:
        width = shape[-1]
        self.query, self.key, self.value, self.out = (layers.Dense(width) for _ in range(4))
        self.up, self.down = layers.Dense(self.arch["ffn"]), layers.Dense(width)
        self.act = layers.Activation("gelu")
        self.softmax = layers.Softmax(dtype="float32")
        self.norms = [layers.LayerNormalization(epsilon=1e-12, dtype="float32") for _ in range(2)]
        self.drops = [layers.Dropout(self.rate) for _ in range(3)]
        for part in (self.query, self.key, self.value, self.out, self.up, *self.norms):
            part.build(shape)
        self.down.build((*shape[:-1], self.arch["ffn"]))

    def forward(self, x: Any) -> Any:
        heads, (length, width) = self.arch["heads"], x.shape[1:]
        split = (-1, length, heads, width // heads)
        query, key, value = (ops.reshape(of(x), split) for of in (self.query, self.key, self.value))
        scores = ops.einsum("bqhd,bkhd->bhqk", query, key) * (width // heads) ** -0.5
        weights = self.drops[0](self.softmax(scores))
        mixed = ops.einsum("bhqk,bkhd->bqhd", ops.cast(weights, value.dtype), value)
        mixed = self.drops[1](self.out(ops.reshape(mixed, (-1, length, width))))
        x = self.norms[0](x + ops.cast(mixed, x.dtype))
        inner = self.drops[2](self.down(self.act(self.up(x))))
        return self.norms[1](x + ops.cast(inner, x.dtype))

    def call(self, x: Any) -> Any:
        return keras.remat(self.forward)(x) if self.remat else self.forward(x)


def classifier(arch: dict[str, Any], length: int, *, remat: bool) -> Any:
    """BERT with a head for two classes."""
    tokens = layers.Input((length,), dtype="int32")
    width = arch["d_model"]
    x = layers.Embedding(arch["vocab"], width)(tokens) + layers.Embedding(512, width)(ops.arange(length))
    x = x + layers.Embedding(2, width)(ops.zeros_like(tokens))
    x = layers.Dropout(0.1)(layers.LayerNormalization(epsilon=1e-12, dtype="float32")(x))
    for _ in range(arch["layers"]):
        x = Block(arch, remat=remat)(x)
    pooled = layers.Dense(width, activation="tanh")(x[:, 0])
    return keras.Model(tokens, layers.Dense(2)(layers.Dropout(0.1)(pooled)))
