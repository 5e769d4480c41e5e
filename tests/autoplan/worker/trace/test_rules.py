"""Rules one by one: the FLOPs of single equations against formulas."""

import math

import jax
import jax.numpy as jnp
import pytest

from autoplan.worker.trace.rules import Cost, known_primitives, register, rule_for
from cost_models.workload import Kind

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


def test_a_dilated_input_is_mostly_zeros():
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
def test_what_single_operations_are_and_cost(fn, primitive, kind, flops):
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


def test_a_scatter_costs_what_is_scattered():
    kind, cost = price(lambda t, u: t.at[jnp.arange(4)].add(u), (100, 8), (4, 8), primitive="scatter-add")
    assert (kind, cost.flops) == (Kind.SCATTER, 32)


def test_a_second_rule_for_a_primitive_is_refused():
    with pytest.raises(ValueError, match=r"'dot_general' has a rule already \(dot\)"):
        register(Kind.CUSTOM, "dot_general")(lambda eqn: Cost())


def test_unknown_primitives_have_no_rule():
    assert rule_for("a_primitive_of_tomorrow") is None
    assert {"dot_general", "conv_general_dilated", "threefry2x32"} <= known_primitives()
