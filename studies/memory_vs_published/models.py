"""Models of the published rows that `studies.time_vs_published` does not have: decoders as litgpt fine-tunes them.

The operations are those of `litgpt/model.py` and `litgpt/lora.py` (commit 26857050): norms in float32, rotary
positions, keys and values repeated for all heads, low-rank updates beside frozen products, and a head and a loss in
chunks of 128 positions.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import layers, ops

CHUNK = 128
"""Positions whose scores of words are computed at once (`lm_head_chunk_size` in `litgpt/finetune/*.py`)."""


@keras.saving.register_keras_serializable("memory_vs_published")
class SparseCrossEntropy(keras.losses.Loss):
    """PyTorch's cross-entropy: one kernel for the logarithms in the dtype of the scores, then a gather."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return -ops.take_along_axis(ops.log_softmax(y_pred), ops.cast(y_true, "int32")[..., None], axis=-1)[..., 0]


@keras.saving.register_keras_serializable("memory_vs_published")
class Product(layers.Layer):
    """A matrix product. With `rank` it is frozen, and a low-rank update is added to it (Hu et al. 2021).

    parts   widths of the slices of the output, and whether each has an update; () for one slice
    """

    def __init__(
        self, units: int, *, bias: bool, rank: int, dropout: float, parts: tuple[tuple[int, bool], ...] = ()
    ) -> None:
        super().__init__()
        self.units, self.bias, self.rank, self.dropout = units, bias, rank, dropout
        self.parts = parts or ((units, True),)

    def build(self, shape: Any) -> None:
        self.dense = layers.Dense(self.units, use_bias=self.bias)
        self.dense.build(shape)
        self.updated = [width for width, updated in self.parts if updated]
        if not self.rank or not self.updated:
            return
        self.dense.trainable = False
        self.drop = layers.Dropout(self.dropout)
        self.down = layers.Dense(self.rank * len(self.updated), use_bias=False)
        self.down.build(shape)
        self.ups = [layers.Dense(width, use_bias=False) for width in self.updated]
        for up in self.ups:
            up.build((*shape[:-1], self.rank))

    def call(self, x: Any) -> Any:
        product = self.dense(x)
        if not self.rank or not self.updated:
            return product
        low = ops.split(self.down(self.drop(x)), len(self.updated), axis=-1)
        made = iter(up(part) for up, part in zip(self.ups, low, strict=True))
        slices = [next(made) if updated else ops.zeros_like(product[..., :width]) for width, updated in self.parts]
        update = slices[0] if len(slices) == 1 else ops.concatenate(slices, axis=-1)
        return product + update * 0.5


@keras.saving.register_keras_serializable("memory_vs_published")
class Norm(layers.Layer):
    """Root-mean-square normalization in float32 by single operations (`litgpt/model.py`, `RMSNorm`)."""

    def build(self, shape: Any) -> None:
        self.scale = self.add_weight((shape[-1],), initializer="ones", name="scale")

    def call(self, x: Any) -> Any:
        exact = ops.cast(x, "float32")
        normed = exact * ops.rsqrt(ops.mean(exact * exact, axis=-1, keepdims=True) + 1e-5)
        return ops.cast(normed * ops.cast(self.scale, "float32"), x.dtype)


class _Attention(layers.Layer):
    def __init__(self, arch: dict[str, Any], lora: dict[str, Any]) -> None:
        super().__init__()
        self.arch, self.lora = arch, lora

    def build(self, shape: Any) -> None:
        arch, lora = self.arch, self.lora
        self.heads, self.groups = arch["heads"], arch.get("kv_heads", arch["heads"])
        self.size = arch.get("head_dim", arch["d_model"] // self.heads)
        rest = {"bias": arch.get("bias", False), "rank": lora["rank"], "dropout": lora["dropout"]}
        widths = (self.heads * self.size, self.groups * self.size, self.groups * self.size)
        parts = tuple((width, part in lora["of"]) for width, part in zip(widths, "qkv", strict=True))
        self.qkv = Product(sum(widths), parts=parts, **rest)
        self.out = Product(shape[-1], **rest | {"rank": lora["rank"] if "all" in lora["of"] else 0})
        self.qkv.build(shape)
        self.out.build((*shape[:-1], widths[0]))
        self.out.dense.trainable = not lora["rank"]

    def call(self, x: Any) -> Any:
        length = x.shape[1]
        widths = (self.heads * self.size, (self.heads + self.groups) * self.size)
        split = zip(ops.split(self.qkv(x), widths, axis=-1), (self.heads, self.groups, self.groups), strict=True)
        query, key, value = (ops.reshape(part, (-1, length, count, self.size)) for part, count in split)
        turned = self.arch.get("rotary", 1.0)
        query, key = (_rotated(part, round(turned * self.size)) for part in (query, key))
        if self.groups != self.heads:
            key, value = (ops.repeat(part, self.heads // self.groups, axis=2) for part in (key, value))
        if "softcap" in self.arch:
            mixed = _capped(query, key, value, self.arch["softcap"])
        else:
            mixed = ops.dot_product_attention(query, key, value, is_causal=True)
        return self.out(ops.reshape(mixed, (-1, length, self.heads * self.size)))


def _capped(query: Any, key: Any, value: Any, cap: float) -> Any:
    """Attention whose scores are limited, which has no fused kernel (`litgpt/model.py`)."""
    scores = ops.einsum("bqhd,bkhd->bhqk", query, key) * query.shape[-1] ** -0.5
    scores = ops.tanh(scores / cap) * cap
    later = ops.triu(ops.ones((scores.shape[-1],) * 2, dtype=scores.dtype), k=1) * -1e30
    weights = ops.cast(ops.softmax(ops.cast(scores + later, "float32")), value.dtype)
    return ops.einsum("bhqk,bkhd->bqhd", weights, value)


def _rotated(x: Any, turned: int) -> Any:
    """Rotary positions of the first `turned` elements (Su et al. 2021)."""
    half = turned // 2
    angles = ops.arange(x.shape[1], dtype="float32")[:, None] * ops.arange(turned, dtype="float32")[None, :]
    cos, sin = (ops.cast(of(angles), x.dtype)[None, :, None, :] for of in (ops.cos, ops.sin))
    part = x[..., :turned]
    other = ops.concatenate([-part[..., half:], part[..., :half]], axis=-1)
    roped = part * cos + other * sin
    return roped if turned == x.shape[-1] else ops.concatenate([roped, x[..., turned:]], axis=-1)


class _Block(layers.Layer):
    def __init__(self, arch: dict[str, Any], lora: dict[str, Any]) -> None:
        super().__init__()
        self.arch, self.lora = arch, lora

    def build(self, shape: Any) -> None:
        arch, lora = self.arch, self.lora
        rest = {"bias": arch.get("bias", False), "dropout": lora["dropout"]}
        rest |= {"rank": lora["rank"] if "all" in lora["of"] else 0}
        self.attention = _Attention(arch, lora)
        self.up = Product(arch["ffn"], **rest)
        self.gate = Product(arch["ffn"], **rest) if arch.get("gated") else None
        self.down = Product(shape[-1], **rest)
        names = ["before", *(() if arch.get("shared_norm") else ("between",))]
        names += ["after_attention", "after_mlp"] if "softcap" in arch else []
        self.norms = {name: _norm(arch) for name in names}
        for part in (self.attention, self.up, self.gate, *self.norms.values()):
            if part is not None:
                part.build(shape)
        self.down.build((*shape[:-1], arch["ffn"]))
        if lora["rank"]:
            for part in (self.up, self.gate, self.down):
                if part is not None:
                    part.dense.trainable = False
            for norm in self.norms.values():
                norm.trainable = False

    def _inner(self, x: Any) -> Any:
        if self.gate is None:
            return self.down(ops.gelu(self.up(x), approximate=False))
        act = ops.gelu if self.arch.get("act") == "gelu" else ops.silu
        return self.down(act(self.gate(x)) * self.up(x))

    def call(self, x: Any) -> Any:
        def after(name: str, y: Any) -> Any:
            return self.norms[name](y) if name in self.norms else y

        normed = self.norms["before"](x)
        attended = after("after_attention", self.attention(normed))
        if self.arch.get("parallel"):
            other = self.norms["between"](x) if "between" in self.norms else normed
            return self._inner(other) + (attended + x)
        x = attended + x
        return after("after_mlp", self._inner(self.norms["between"](x))) + x


def _norm(arch: dict[str, Any]) -> Any:
    return Norm() if arch.get("rms", arch.get("gated")) else layers.LayerNormalization(epsilon=1e-5)


@keras.saving.register_keras_serializable("memory_vs_published")
class _Head(layers.Layer):
    """Scores of words by one product for all chunks; Gemma 2 limits them."""

    def __init__(self, arch: dict[str, Any], lora: dict[str, Any]) -> None:
        super().__init__()
        self.arch, self.lora = arch, lora

    def build(self, shape: Any) -> None:
        lora = self.lora
        rank = lora["rank"] if "all" in lora["of"] else 0
        self.product = Product(self.arch["vocab"], bias=False, rank=rank, dropout=lora["dropout"])
        self.product.build(shape)
        self.product.dense.trainable = not lora["rank"]

    def call(self, x: Any) -> Any:
        scores = [self.product(x[:, start : start + CHUNK]) for start in range(0, x.shape[1], CHUNK)]
        return [ops.tanh(one / 30.0) * 30.0 for one in scores] if "softcap" in self.arch else scores


def finetuned(arch: dict[str, Any], lora: dict[str, Any], length: int) -> Any:
    """A decoder with a head apart from the embedding. `lora["rank"]` 0 trains all weights.

    lora   rank, dropout, and of: "q", "k", "v" and "all" (the other products) have updates
    """
    tokens = layers.Input((length,), dtype="int32")
    x = layers.Embedding(arch["vocab"], arch["d_model"], trainable=not lora["rank"])(tokens)
    for _ in range(arch["layers"]):
        x = _Block(arch, lora)(x)
    last = _norm(arch)
    x = last(x)
    last.trainable = not lora["rank"]
    return keras.Model(tokens, _Head(arch, lora)(x))
