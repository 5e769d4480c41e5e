"""A transformer layer as Korthikanti et al. count it (2205.05198, section 4.1): every norm keeps its input alone, as
fused kernels do, and GELU its input; everything is stored in 16 bits."""

import keras
from keras import layers, ops


@ops.custom_gradient
def norm(x):
    """Without scale and shift; the backward pass starts from the input again."""

    def gradient(*arguments, upstream=None):
        incoming = upstream if upstream is not None else arguments[0]
        centred = x - ops.mean(x, axis=-1, keepdims=True)
        scale = ops.rsqrt(ops.mean(ops.square(centred), axis=-1, keepdims=True) + 1e-5)
        normed = centred * scale
        projected = incoming - ops.mean(incoming, axis=-1, keepdims=True)
        return scale * (projected - normed * ops.mean(incoming * normed, axis=-1, keepdims=True))

    centred = x - ops.mean(x, axis=-1, keepdims=True)
    return centred * ops.rsqrt(ops.mean(ops.square(centred), axis=-1, keepdims=True) + 1e-5), gradient


@ops.custom_gradient
def gelu(x):
    """Its sigmoid form; the backward pass starts from the input again."""

    def gradient(*arguments, upstream=None):
        incoming = upstream if upstream is not None else arguments[0]
        gate = ops.sigmoid(1.702 * x)
        return incoming * (gate + 1.702 * x * gate * (1 - gate))

    return x * ops.sigmoid(1.702 * x), gradient


class Apply(layers.Layer):
    """One of the functions above as a layer."""

    def __init__(self, function, **kwargs):
        super().__init__(**kwargs)
        self.function = function

    def call(self, x):
        return self.function(x)


def megatron(count, *, length, width, heads):
    """`count` such layers on sequences of vectors, compiled with SGD, in bfloat16."""
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("bfloat16")
    try:
        model = _built(count, length, width, heads)
    finally:
        keras.config.set_dtype_policy(policy)
    model.compile("sgd", "mse")
    return model


def _built(count, length, width, heads):
    inputs = keras.Input((length, width))
    x = inputs
    for _ in range(count):
        normed = Apply(norm)(x)
        mixed = layers.MultiHeadAttention(heads, width // heads, dropout=0.1)(normed, normed)
        x = x + layers.Dropout(0.1)(mixed)
        fed = layers.Dense(width)(Apply(gelu)(layers.Dense(4 * width)(Apply(norm)(x))))
        x = x + layers.Dropout(0.1)(fed)
    return keras.Model(inputs, x)
