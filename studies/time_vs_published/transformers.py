"""Transformers of the published rows in plain Keras layers: decoders (GPT, MPT, Llama), encoders (BERT, ELECTRA), ViT.

Vaswani et al. 2017, Devlin et al. 2018, Radford et al. 2019, Touvron et al. 2023, Dosovitskiy et al. 2020, Tolstikhin
et al. 2021 (MLP-Mixer), Clark et al. 2020 (ELECTRA).
"""

from __future__ import annotations

from typing import Any

import keras
from keras import layers, ops


@keras.saving.register_keras_serializable("time_vs_published")
class Attention(layers.Layer):
    """Self-attention with `ops.dot_product_attention`, which backends may fuse, and without dropout."""

    def __init__(self, heads: int, kv_heads: int, head_dim: int, *, causal: bool, bias: bool, rotary: bool) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim, self.causal, self.rotary = heads, kv_heads, head_dim, causal, rotary
        self.bias = bias

    def build(self, shape: Any) -> None:
        self.qkv = layers.Dense((self.heads + 2 * self.kv_heads) * self.head_dim, use_bias=self.bias)
        self.out = layers.Dense(shape[-1], use_bias=self.bias)
        self.qkv.build(shape)
        self.out.build((*shape[:-1], self.heads * self.head_dim))

    def call(self, x: Any) -> Any:
        length = x.shape[1]
        together = ops.reshape(self.qkv(x), (-1, length, self.heads + 2 * self.kv_heads, self.head_dim))
        query, key, value = ops.split(together, (self.heads, self.heads + self.kv_heads), axis=2)
        if self.rotary:
            query, key = _rotated(query), _rotated(key)
        if self.kv_heads != self.heads:
            key, value = (ops.repeat(part, self.heads // self.kv_heads, axis=2) for part in (key, value))
        mixed = ops.dot_product_attention(query, key, value, is_causal=self.causal)
        return self.out(ops.reshape(mixed, (-1, length, self.heads * self.head_dim)))


def _rotated(x: Any) -> Any:
    """Rotary embedding (Su et al. 2021)."""
    half = x.shape[-1] // 2
    angles = ops.arange(x.shape[1], dtype="float32")[:, None] * ops.arange(half, dtype="float32")[None, :]
    cos, sin = (ops.cast(of(angles), x.dtype)[None, :, None, :] for of in (ops.cos, ops.sin))
    first, second = x[..., :half], x[..., half:]
    return ops.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


@keras.saving.register_keras_serializable("time_vs_published")
class Block(layers.Layer):
    """A block of norm, attention, norm and MLP. With `remat` the backward pass repeats its forward pass."""

    def __init__(self, arch: dict[str, Any], *, remat: bool) -> None:
        super().__init__()
        self.arch, self.remat = arch, remat

    def build(self, shape: Any) -> None:
        arch, width = self.arch, shape[-1]
        heads = arch["heads"]
        kv_heads, head_dim = arch.get("kv_heads", heads), arch.get("head_dim", width // heads)
        gated, bias = arch.get("gated", False), arch.get("bias", False)
        norm = layers.RMSNormalization if gated else layers.LayerNormalization
        self.before, self.between = norm(epsilon=1e-5), norm(epsilon=1e-5)
        self.attention = Attention(
            heads, kv_heads, head_dim, causal=arch.get("causal", True), bias=bias, rotary=arch.get("rotary", gated)
        )
        self.up = layers.Dense(arch["ffn"], use_bias=bias)
        self.gate = layers.Dense(arch["ffn"], use_bias=bias) if gated else None
        self.down = layers.Dense(width, use_bias=bias)
        for part in (self.before, self.between, self.attention, self.up, self.gate):
            if part is not None:
                part.build(shape)
        self.down.build((*shape[:-1], arch["ffn"]))

    def forward(self, x: Any) -> Any:
        x = x + self.attention(self.before(x))
        normed = self.between(x)
        inner = ops.gelu(self.up(normed)) if self.gate is None else ops.silu(self.gate(normed)) * self.up(normed)
        return x + self.down(inner)

    def call(self, x: Any) -> Any:
        return keras.remat(self.forward)(x) if self.remat else self.forward(x)


def decoder(arch: dict[str, Any], length: int, *, remat: bool) -> Any:
    """A language model over `arch["vocab"]` tokens; tied embeddings unless `arch["untied"]`."""
    tokens = layers.Input((length,), dtype="int32")
    embedding = layers.Embedding(arch["vocab"], arch["d_model"])
    x = embedding(tokens)
    if arch.get("positions"):
        x = x + layers.Embedding(length, arch["d_model"])(ops.arange(length))
    for _ in range(arch["layers"]):
        x = Block(arch, remat=remat)(x)
    x = (layers.RMSNormalization if arch.get("gated") else layers.LayerNormalization)(epsilon=1e-5)(x)
    logits = layers.Dense(arch["vocab"], use_bias=False)(x) if arch.get("untied") else _Logits(embedding)(x)
    return keras.Model(tokens, logits)


@keras.saving.register_keras_serializable("time_vs_published")
class _Logits(layers.Layer):
    """Scores of all words, computed with the embedding table."""

    def __init__(self, embedding: Any) -> None:
        super().__init__()
        self.embedding = embedding

    def call(self, x: Any) -> Any:
        return ops.matmul(x, ops.transpose(ops.cast(self.embedding.embeddings, x.dtype)))


def _encoded(tokens: Any, arch: dict[str, Any], *, dropout: float) -> Any:
    """BERT's encoder as in its reference code: post-normalization, and attention with dropout."""
    width, length = arch["d_model"], tokens.shape[1]
    embedded = arch.get("embedding", width)
    x = layers.Embedding(arch["vocab"], embedded)(tokens)
    x = x + layers.Embedding(512, embedded)(ops.arange(length)) + layers.Embedding(2, embedded)(ops.zeros_like(tokens))
    x = layers.Dropout(dropout)(layers.LayerNormalization(epsilon=1e-12)(x))
    x = layers.Dense(width)(x) if embedded != width else x
    for _ in range(arch["layers"]):
        if arch.get("plain"):
            mixed = _plain_attention(x, tokens, arch["heads"], dropout)
        else:
            mixed = layers.MultiHeadAttention(arch["heads"], width // arch["heads"], dropout=dropout)(x, x)
        x = layers.LayerNormalization(epsilon=1e-12)(x + layers.Dropout(dropout)(mixed))
        inner = layers.Activation("gelu")(layers.Dense(arch["ffn"])(x))
        inner = layers.Dropout(dropout)(layers.Dense(width)(inner))
        x = layers.LayerNormalization(epsilon=1e-12)(x + inner)
    return x


def _plain_attention(x: Any, tokens: Any, heads: int, dropout: float) -> Any:
    """Attention as PyTorch runs it, with one kernel each for scores, scaling, mask, softmax, dropout and mixing.

    Without tokens there is no mask, and softmax runs in float32, as with autocast.
    """
    width, length = x.shape[-1], x.shape[1]
    query, key, value = (layers.Reshape((length, heads, width // heads))(layers.Dense(width)(x)) for _ in range(3))
    scores = layers.Rescaling((width // heads) ** -0.5)(_Product("bqhd,bkhd->bhqk")([query, key]))
    weights = (
        layers.Softmax()(_Masked()([scores, tokens])) if tokens is not None else layers.Softmax(dtype="float32")(scores)
    )
    weights = layers.Dropout(dropout)(weights) if dropout else weights
    mixed = _Product("bhqk,bkhd->bqhd")([weights, value])
    return layers.Dense(width)(layers.Reshape((length, width))(mixed))


@keras.saving.register_keras_serializable("time_vs_published")
class _Product(layers.Layer):
    """A product of two activations."""

    def __init__(self, equation: str) -> None:
        super().__init__()
        self.equation = equation

    def call(self, both: Any) -> Any:
        return ops.einsum(self.equation, *both)


@keras.saving.register_keras_serializable("time_vs_published")
class _Masked(layers.Layer):
    """Scores with a large negative number at padding."""

    def call(self, both: Any) -> Any:
        scores, tokens = both
        return scores + ops.cast(ops.where(tokens > 0, 0.0, -10000.0), scores.dtype)[:, None, None, :]


def encoder(arch: dict[str, Any], length: int, *, head: str, dropout: float = 0.1) -> Any:
    """BERT with a head: "span" (question answering), "words" (masked words, 15% of the positions), "class"."""
    tokens = layers.Input((length,), dtype="int32")
    x = _encoded(tokens, arch, dropout=dropout)
    if head == "span":
        scores = layers.Dense(2)(x)
        return keras.Model(tokens, ops.transpose(scores, (0, 2, 1)))
    if head == "class":
        pooled = layers.Dense(arch["d_model"], activation="tanh")(x[:, 0])
        return keras.Model(tokens, layers.Dense(2)(layers.Dropout(dropout)(pooled)))
    masked = x[:, : max(1, round(0.15 * length))]
    masked = layers.LayerNormalization(epsilon=1e-12)(layers.Dense(arch["d_model"], activation="gelu")(masked))
    return keras.Model(tokens, layers.Dense(arch["vocab"])(masked))


def vit(width: int, depth: int, heads: int, patch: int, image: int) -> Any:
    """Vision Transformer with a class token, as PyTorch's autocast runs it: norms, softmax and residuals in float32.

    Attention is not fused (PyTorch before 2.0).
    """
    inputs = layers.Input((image, image, 3))
    x = layers.Conv2D(width, patch, strides=patch)(inputs)
    x = layers.Reshape((-1, width))(x)
    x = _ClassToken(dtype="float32")(x)
    for _ in range(depth):
        x = x + _plain_attention(_norm(x), None, heads, 0.0)
        x = x + layers.Dense(width)(layers.Activation("gelu")(layers.Dense(4 * width)(_norm(x))))
    x = _norm(x)[:, 0]
    return keras.Model(inputs, layers.Dense(1000)(x))


def _norm(x: Any) -> Any:
    return layers.LayerNormalization(epsilon=1e-6, dtype="float32")(x)


@keras.saving.register_keras_serializable("time_vs_published")
class _ClassToken(layers.Layer):
    """A learned token in front of the patches, and learned positions."""

    def build(self, shape: Any) -> None:
        self.token = self.add_weight((1, 1, shape[-1]), name="token")
        self.positions = self.add_weight((1, shape[1] + 1, shape[-1]), name="positions")

    def call(self, x: Any) -> Any:
        token = ops.repeat(self.token, ops.shape(x)[0], axis=0)
        return ops.concatenate([ops.cast(token, x.dtype), x], axis=1) + self.positions


def mixer(width: int, depth: int, patch: int, image: int) -> Any:
    """MLP-Mixer: perceptrons over patches and channels, alternating, with dtypes as in `vit`."""
    inputs = layers.Input((image, image, 3))
    x = layers.Reshape((-1, width))(layers.Conv2D(width, patch, strides=patch)(inputs))
    for _ in range(depth):
        mixed = layers.Permute((2, 1))(_norm(x))
        mixed = layers.Dense(x.shape[1])(layers.Activation("gelu")(layers.Dense(width // 2)(mixed)))
        x = x + layers.Permute((2, 1))(mixed)
        x = x + layers.Dense(width)(layers.Activation("gelu")(layers.Dense(4 * width)(_norm(x))))
    x = layers.GlobalAveragePooling1D()(_norm(x))
    return keras.Model(inputs, layers.Dense(1000)(x))
