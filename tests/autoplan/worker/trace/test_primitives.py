"""Cost rules: the FLOPs of single equations against formulas."""

import math

import jax
import jax.numpy as jnp
import keras
import pytest
from keras import layers

from autoplan.worker.synthetic_data import synthetic_specs
from autoplan.worker.trace.primitives import Cost, known_primitives, register, rule_for
from autoplan.worker.trace.train_step import trace_train_step
from cost_models.workload.affine import Affine
from cost_models.workload.workload import Kind, Phase, Role

S = jax.ShapeDtypeStruct


def price(fn, *shapes, primitive):
    """(kind, cost) of the one equation of this primitive in fn."""
    jaxpr = jax.make_jaxpr(fn)(*(S(shape, "float32") for shape in shapes)).jaxpr
    (eqn,) = (eqn for eqn in jaxpr.eqns if eqn.primitive.name == primitive)
    rule = rule_for(primitive)
    return rule.kind, rule.price(eqn)


def test_a_batched_product():
    g, m, n, k = 3, 4, 5, 6
    found = price(lambda a, b: jnp.einsum("gmk,gkn->gmn", a, b), (g, m, k), (g, k, n), primitive="dot_general")
    assert found == (Kind.DOT, Cost(2 * g * m * n * k, (g, m, n, k)))


def convolve(image, kernel, **options):
    return jax.lax.conv_general_dilated(image, kernel, dimension_numbers=("NHWC", "HWIO", "NHWC"), **options)


@pytest.mark.parametrize("groups", [1, 2, 8])
def test_a_grouped_convolution(groups):
    b, side, channels, filters = 2, 8, 8, 16
    found = price(
        lambda x, w: convolve(x, w, window_strides=(1, 1), padding="SAME", feature_group_count=groups),
        (b, side, side, channels),
        (3, 3, channels // groups, filters),
        primitive="conv_general_dilated",
    )
    k = 9 * channels // groups
    positions = b * side * side
    assert found == (Kind.CONV, Cost(2 * positions * filters * k, (groups, positions, filters // groups, k)))


def test_the_zeros_of_a_dilated_input_cost_nothing():
    b, side, channels, filters = 2, 8, 4, 6
    _, cost = price(
        lambda x, w: convolve(x, w, window_strides=(1, 1), padding=((2, 1), (2, 1)), lhs_dilation=(2, 2)),
        (b, side, side, channels),
        (3, 3, channels, filters),
        primitive="conv_general_dilated",
    )
    out = 2 * side
    assert cost.flops == 2 * b * out * out * filters * 9 * channels // 4


@pytest.mark.parametrize(
    ("fn", "primitive", "kind", "flops"),
    [
        (jnp.exp, "exp", Kind.ELEMENTWISE, 60),
        (lambda x: jax.lax.reduce_sum_p.bind(x, axes=(0,), out_sharding=None), "reduce_sum", Kind.REDUCE, 60),
        (jax.lax.erf_inv, "erf_inv", Kind.EXPENSIVE, 16 * 60),
        (lambda x: jnp.cumsum(x, axis=1), "cumsum", Kind.CUMULATIVE, 60),
        (jax.lax.sort, "sort", Kind.SORT, 60 * math.ceil(math.log2(6))),
        (lambda x: jnp.reshape(x, (60,)), "reshape", Kind.VIEW, 0),
        (jnp.transpose, "transpose", Kind.MOVE, 0),
        (lambda x: jax.lax.broadcast_in_dim(x, (2, 10, 6), (1, 2)), "broadcast_in_dim", Kind.BROADCAST, 0),
    ],
)
def test_kinds_and_costs_of_single_operations(fn, primitive, kind, flops):
    def plain(x):
        return fn(x)

    jaxpr = jax.make_jaxpr(plain)(S((10, 6), "float32")).jaxpr
    eqns = [eqn for eqn in _flat(jaxpr) if eqn.primitive.name == primitive]
    rule = rule_for(primitive)
    assert (rule.kind, rule.price(eqns[0]).flops) == (kind, flops)


def _flat(jaxpr):
    for eqn in jaxpr.eqns:
        inner = eqn.params.get("jaxpr")
        if inner is None:
            yield eqn
        else:
            yield from _flat(inner.jaxpr)


def test_pooling_looks_at_every_window():
    window = (1, 2, 2, 1)
    kind, cost = price(
        lambda x: jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, window, "VALID"),
        (2, 8, 8, 3),
        primitive="reduce_window_max",
    )
    assert (kind, cost.flops) == (Kind.POOL, 2 * 4 * 4 * 3 * 4)


def test_a_scatter_costs_its_updates():
    kind, cost = price(lambda t, u: t.at[jnp.arange(4)].add(u), (100, 8), (4, 8), primitive="scatter-add")
    assert (kind, cost.flops) == (Kind.SCATTER, 32)


def test_a_second_rule_for_a_primitive_is_an_error():
    with pytest.raises(ValueError, match=r"'dot_general' already has a rule \(dot\)"):
        register(Kind.CUSTOM, "dot_general")(lambda eqn: Cost())


def test_unknown_primitives_have_no_rule():
    assert rule_for("a_primitive_of_tomorrow") is None
    assert {"dot_general", "conv_general_dilated", "threefry2x32"} <= known_primitives()


def traced(*stack, shape, dtype="float32"):
    """The workload of a stack of layers, trained to reproduce what it is given."""
    model = keras.Sequential([keras.Input(shape, dtype=dtype), *stack])
    model.compile(optimizer="sgd", loss="mse")
    return trace_train_step(model, synthetic_specs(model, 6), local_batch=6)


def flops(ops, *kinds, phase=None):
    own = Affine.sum(op.flops for op in ops if op.kind in kinds and phase in (None, op.phase))
    return own + Affine.sum(flops(op.body, *kinds, phase=phase) * op.repeat for op in ops if op.body)


def per_sample(workload, phase=None):
    found = flops(workload.ops, Kind.DOT, Kind.CONV, phase=phase)
    assert found.fixed == 0
    return found.per_sample


S_, C_, F_ = 12, 4, 6  # side, channels, filters

CONVOLUTIONS = {
    "one dimension": (layers.Conv1D(F_, 3, padding="same"), (S_, C_), S_ * F_ * 3 * C_),
    "three dimensions": (layers.Conv3D(F_, 3, padding="same"), (S_, S_, S_, C_), S_**3 * F_ * 27 * C_),
    "strided": (layers.Conv2D(F_, 3, strides=2, padding="same"), (S_, S_, C_), (S_ // 2) ** 2 * F_ * 9 * C_),
    "dilated": (layers.Conv2D(F_, 3, dilation_rate=2, padding="same"), (S_, S_, C_), S_**2 * F_ * 9 * C_),
    "grouped": (layers.Conv2D(8, 3, groups=4, padding="same"), (S_, S_, C_), S_**2 * 8 * 9 * C_ // 4),
    "depthwise": (layers.DepthwiseConv2D(3, padding="same"), (S_, S_, C_), S_**2 * C_ * 9),
    "depthwise, twice as many": (
        layers.DepthwiseConv2D(3, depth_multiplier=2, padding="same"),
        (S_, S_, C_),
        S_**2 * 2 * C_ * 9,
    ),
    # Each position of the input is multiplied with the whole kernel: Dumoulin and Visin 2016, section 4.
    "transposed": (layers.Conv2DTranspose(F_, 3, padding="same"), (S_, S_, C_), S_**2 * F_ * 9 * C_),
    "transposed, strided": (
        layers.Conv2DTranspose(F_, 4, strides=2, padding="same"),
        (S_, S_, C_),
        S_**2 * F_ * 16 * C_,
    ),
}


@pytest.mark.parametrize(("layer", "shape", "multiply_adds"), CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_convolutions_of_every_kind_forward_and_backward(layer, shape, multiply_adds):
    """The gradient of the kernel needs the same FLOPs; that of the model's input is not computed."""
    workload = traced(layer, shape=shape)
    assert per_sample(workload, Phase.FORWARD) == 2 * multiply_adds
    assert per_sample(workload, Phase.BACKWARD) == 2 * multiply_adds


@pytest.mark.parametrize(
    ("layer", "multiply_adds"),
    [
        (layers.Dense(F_), S_ * C_ * F_),
        (layers.EinsumDense("abc,cde->abde", (S_, 3, F_)), S_ * C_ * 3 * F_),
    ],
    ids=["dense", "einsum"],
)
def test_products_forward_and_backward(layer, multiply_adds):
    workload = traced(layer, shape=(S_, C_))
    assert per_sample(workload, Phase.FORWARD) == per_sample(workload, Phase.BACKWARD) == 2 * multiply_adds


def test_attention_whose_queries_share_keys_and_values():
    """Projections of queries and result, and of fewer keys and values; scores and weighted sums per head."""
    width, heads, shared, dim = 32, 4, 2, 8
    inputs = keras.Input((S_, width))
    outputs = layers.GroupQueryAttention(dim, heads, shared, use_bias=False)(inputs, inputs)
    model = keras.Model(inputs, outputs)
    model.compile(optimizer="sgd", loss="mse")
    workload = trace_train_step(model, synthetic_specs(model, 6), local_batch=6)
    projected = width * heads * dim + 2 * width * shared * dim
    given_back = heads * dim * width
    mixing = 2 * S_ * heads * dim
    assert per_sample(workload, Phase.FORWARD) == 2 * S_ * (projected + given_back + mixing)
    assert per_sample(workload, Phase.BACKWARD) == 2 * S_ * (projected + 2 * given_back + 2 * mixing)


RECURRENT = {"SimpleRNN": 1, "GRU": 3, "LSTM": 4}


@pytest.mark.parametrize(("name", "gates"), RECURRENT.items())
def test_recurrent_loops_cost_every_iteration_of_every_gate(name, gates):
    """Forward: input and state. Backward: the gradients of the state and of both kernels, but not of the input."""
    units = 5
    workload = traced(getattr(layers, name)(units), shape=(S_, C_))
    on_input, on_state = 2 * C_ * gates * units, 2 * units * gates * units
    assert per_sample(workload, Phase.FORWARD) == S_ * (on_input + on_state)
    assert per_sample(workload, Phase.BACKWARD) == S_ * (on_input + 2 * on_state)
    assert any(op.kind is Kind.LOOP and op.repeat == S_ for op in workload.ops)


def test_an_embedding_is_a_gather_and_its_gradient_a_scatter():
    words, width = 50, 8
    workload = traced(layers.Embedding(words, width), shape=(S_,), dtype="int32")
    assert per_sample(workload) == 0
    (lookup,) = (op for op in workload.ops if op.kind is Kind.GATHER)
    assert workload.tensors[lookup.writes[0]].elements == Affine(0, S_ * width)
    (scatter,) = (op for op in workload.ops if op.kind is Kind.SCATTER)
    assert (scatter.phase, scatter.flops) == (Phase.BACKWARD, Affine(0, S_ * width))
    assert workload.tensors[scatter.writes[0]].elements == Affine(words * width)


NORMALISATIONS = {
    # layer, sums over its input forward, weights and statistics of a channel. The sums are those of a mean, of the mean
    # that JAX's variance takes for itself, and of the squares.
    "BatchNormalization": (layers.BatchNormalization(), 3, 2, 2),
    "LayerNormalization": (layers.LayerNormalization(), 3, 2, 0),
    "GroupNormalization": (layers.GroupNormalization(2), 3, 2, 0),
    "RMSNormalization": (layers.RMSNormalization(), 1, 1, 0),
}


@pytest.mark.parametrize(("layer", "sums", "weights", "statistics"), NORMALISATIONS.values(), ids=NORMALISATIONS)
def test_normalisations_sum_over_their_input(layer, sums, weights, statistics):
    workload = traced(layer, shape=(S_, S_, C_))
    elements = S_ * S_ * C_
    of_layer = [op for op in workload.ops if op.phase is Phase.FORWARD and layer.name in op.layer]
    large = [op for op in of_layer if op.kind is Kind.REDUCE and op.flops == Affine(0, elements)]
    assert len(large) == sums
    assert workload.variable_bytes(Role.TRAINABLE) == 4 * weights * C_
    assert workload.variable_bytes(Role.STATE) == 4 * statistics * C_
