"""Registers a cost rule for each JAX primitive: its kind, FLOPs and GEMM sizes.

FLOPs follow XLA's convention (HloCostAnalysis): a multiply-add counts as two, an elementwise operation as one per
output element, a reduction as one per input element.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from cost_models.workload.workload import Kind


@dataclass(frozen=True, slots=True)
class Cost:
    """FLOPs of one execution. `gemm` is (groups, m, n, k), or () if the operation is not a product."""

    flops: int = 0
    gemm: tuple[int, ...] = ()


Price = Callable[[Any], Cost]


@dataclass(frozen=True, slots=True)
class PrimitiveRule:
    """The kind of a primitive, and a function that returns the cost of one of its equations."""

    kind: Kind
    price: Price


_RULES: dict[str, PrimitiveRule] = {}


def register(kind: Kind, *primitives: str) -> Callable[[Price], Price]:
    """Register a function as the rule of these primitives. ValueError if a primitive already has a rule."""

    def bind(price: Price) -> Price:
        for primitive in primitives:
            if primitive in _RULES:
                raise ValueError(f"the primitive {primitive!r} already has a rule ({_RULES[primitive].kind})")
            _RULES[primitive] = PrimitiveRule(kind, price)
        return price

    return bind


def rule_for(primitive: str) -> PrimitiveRule | None:
    """Return the rule of a primitive; None if it has none. The caller then counts its bytes and reports it."""
    return _RULES.get(primitive)


def known_primitives() -> frozenset[str]:
    """Return all primitives that have a rule."""
    return frozenset(_RULES)


def output_elements(eqn: Any) -> int:
    """Return the number of elements of the largest output."""
    return max((math.prod(var.aval.shape) for var in eqn.outvars), default=0)


def input_elements(eqn: Any) -> int:
    """Return the number of elements of the largest input."""
    return max((math.prod(var.aval.shape) for var in eqn.invars), default=0)


def _size_of(shape: tuple[int, ...], dims: Iterable[int]) -> int:
    return math.prod(shape[dim] for dim in dims)


@register(
    Kind.ELEMENTWISE,
    *("abs", "add", "add_any", "add_jaxvals", "and", "atan2", "cbrt", "ceil", "clamp", "clz", "complex", "conj"),
    *("convert_element_type", "cos", "cosh", "div", "eq", "eq_to", "exp", "exp2", "expm1", "floor", "ge", "gt"),
    *("imag", "integer_pow", "is_finite", "le", "le_to", "log", "log1p", "logistic", "lt", "lt_to", "max", "min"),
    *("mul", "mulhi", "ne", "neg", "nextafter", "not", "or", "population_count", "pow", "real", "reduce_precision"),
    *("rem", "round", "rsqrt", "select_n", "shift_left", "shift_right_arithmetic", "shift_right_logical", "sign"),
    *("sin", "sinh", "sqrt", "square", "sub", "tan", "tanh", "xor", "acos", "acosh", "asin", "asinh", "atan", "atanh"),
    *("erf", "reciprocal", "stochastic_round"),
)
def _elementwise(eqn: Any) -> Cost:
    return Cost(output_elements(eqn))


@register(
    Kind.EXPENSIVE,
    *(
        "erfc",
        "erf_inv",
        "lgamma",
        "digamma",
        "polygamma",
        "igamma",
        "igammac",
        "igamma_grad_a",
        "regularized_incomplete_beta",
    ),
    *("bessel_i0e", "bessel_i1e", "random_gamma_grad", "zeta"),
)
def _expensive(eqn: Any) -> Cost:
    return Cost(16 * output_elements(eqn))  # polynomials of about this many terms


@register(Kind.RANDOM, "random_bits", "threefry2x32", "rng_bit_generator", "rng_uniform")
def _random(eqn: Any) -> Cost:
    return Cost(50 * output_elements(eqn))  # threefry-2x32: 20 rounds of add, rotate, xor for two words


@register(
    Kind.VIEW,
    *("reshape", "squeeze", "expand_dims", "bitcast_convert_type", "stop_gradient", "copy", "copy_p", "name"),
    *("sharding_constraint", "device_put", "random_seed", "random_wrap", "random_unwrap", "random_fold_in"),
    *("random_split", "random_clone", "pvary", "mesh_cast", "reshard", "layout_constraint", "pin", "unpin"),
)
def _free(eqn: Any) -> Cost:
    return Cost()


register(Kind.BROADCAST, "broadcast_in_dim", "broadcast_to", "iota", "empty", "empty2", "full", "zeros_like")(_free)
register(Kind.MOVE, "transpose", "slice", "pad", "concatenate", "rev", "dynamic_slice", "split", "tile", "roll")(_free)
register(Kind.BARRIER, "optimization_barrier")(_free)
register(Kind.GATHER, "gather")(_free)


@register(Kind.SCATTER, "scatter", "scatter-add", "scatter-mul", "scatter-min", "scatter-max", "scatter-sub")
def _scatter(eqn: Any) -> Cost:
    return Cost(math.prod(eqn.invars[2].aval.shape))


register(Kind.SCATTER, "dynamic_update_slice")(_free)


@register(
    Kind.REDUCE,
    *("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or", "reduce_xor", "reduce"),
    *("argmax", "argmin"),
)
def _reduce(eqn: Any) -> Cost:
    return Cost(input_elements(eqn))


@register(Kind.CUMULATIVE, "cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")
def _cumulative(eqn: Any) -> Cost:
    return Cost(input_elements(eqn))


@register(Kind.SORT, "sort", "top_k", "approx_top_k")
def _sort(eqn: Any) -> Cost:
    elements = input_elements(eqn)
    axis = eqn.params.get("dimension", -1)
    along = eqn.invars[0].aval.shape[axis] if eqn.invars[0].aval.shape else 1
    return Cost(elements * max(1, math.ceil(math.log2(max(along, 2)))))


@register(
    Kind.POOL, "reduce_window_max", "reduce_window_sum", "reduce_window_min", "reduce_window", "reduce_window_and"
)
def _pool(eqn: Any) -> Cost:
    return Cost(output_elements(eqn) * math.prod(eqn.params["window_dimensions"]))


@register(Kind.POOL_GRADIENT, "select_and_scatter_add", "select_and_gather_add", "select_and_scatter")
def _pool_gradient(eqn: Any) -> Cost:
    return Cost(2 * math.prod(eqn.invars[0].aval.shape) * math.prod(eqn.params["window_dimensions"]))


@register(Kind.DOT, "dot_general")
def _dot(eqn: Any) -> Cost:
    """Return 2 g m n k, where g is the product of the batch dimensions, k of the contracted dimensions."""
    (contract_l, _), (batch_l, batch_r) = eqn.params["dimension_numbers"]
    contract_r = eqn.params["dimension_numbers"][0][1]
    left, right = eqn.invars[0].aval.shape, eqn.invars[1].aval.shape
    groups, k = _size_of(left, batch_l), _size_of(left, contract_l)
    m = _size_of(left, (d for d in range(len(left)) if d not in (*contract_l, *batch_l)))
    n = _size_of(right, (d for d in range(len(right)) if d not in (*contract_r, *batch_r)))
    return Cost(2 * groups * m * n * k, (groups, m, n, k))


@register(Kind.DOT, "ragged_dot", "ragged_dot_general")
def _ragged_dot(eqn: Any) -> Cost:
    """Return 2 m n k for (m, k) x (g, k, n) with each row in one group, for any g."""
    (m, k), right = eqn.invars[0].aval.shape[-2:], eqn.invars[1].aval.shape
    return Cost(2 * m * k * right[-1], (1, m, right[-1], k))


@register(Kind.CONV, "conv_general_dilated")
def _conv(eqn: Any) -> Cost:
    """Return 2 x (batch x output positions) x output features x (kernel positions x input features per group).

    A good kernel skips the zeros of a dilated input, so the count is divided by the input's dilation.
    `feature_group_count` and `batch_group_count` split the product into that many smaller products.
    """
    numbers = eqn.params["dimension_numbers"]
    kernel, output = eqn.invars[1].aval.shape, eqn.outvars[0].aval.shape
    out_batch, out_feature, *out_space = (output[dim] for dim in numbers.out_spec)
    contracted = _size_of(kernel, numbers.rhs_spec[1:])
    dilation = math.prod(eqn.params["lhs_dilation"])
    groups = eqn.params["feature_group_count"] * eqn.params["batch_group_count"]
    positions = out_batch * math.prod(out_space)
    flops = 2 * positions * out_feature * contracted // dilation
    return Cost(flops, (groups, max(1, positions // dilation), max(1, out_feature // groups), contracted))


@register(Kind.CUSTOM, "cholesky")
def _cholesky(eqn: Any) -> Cost:
    return Cost(input_elements(eqn) * eqn.invars[0].aval.shape[-1] // 3)


@register(Kind.CUSTOM, "triangular_solve", "lu", "qr", "geqrf", "householder_product", "lu_pivots_to_permutation")
def _factorization(eqn: Any) -> Cost:
    return Cost(input_elements(eqn) * eqn.invars[0].aval.shape[-1])


@register(Kind.CUSTOM, "svd", "eigh", "eig")
def _spectral(eqn: Any) -> Cost:
    return Cost(22 * input_elements(eqn) * eqn.invars[0].aval.shape[-1])  # Golub & Van Loan, table 8.6.1: about 22 n^3


@register(Kind.CUSTOM, "fft")
def _fft(eqn: Any) -> Cost:
    """Return 5 n log2 n real operations per transform (Cooley-Tukey)."""
    length = math.prod(eqn.params["fft_lengths"])
    return Cost(round(5 * output_elements(eqn) * math.log2(max(length, 2))))


register(Kind.COLLECTIVE, "psum", "psum2", "all_gather", "all_to_all", "ppermute", "reduce_scatter", "pmax", "pmin")(
    _free
)
