"""Computes the FLOPs of HLO instructions, and the GEMM sizes of dots, convolutions and library calls.

The convention is that of traces: a multiply-add counts two, an elementwise operation one per output element, a
reduction one per input element. Window positions on padding count, holes of a dilated input do not. XLA:TPU writes
batched GEMMs as convolutions whose batch dimensions are degenerate spatial dimensions; these count only positions
inside the input.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log2, prod
from typing import Any

import numpy as np

from cost_models.errors import WorkloadError
from cost_models.hlo.parser import Computation, Instruction
from cost_models.hlo.shapes import Array, numbers

ELEMENTWISE = frozenset(
    {
        "abs",
        "add",
        "and",
        "atan2",
        "cbrt",
        "ceil",
        "clamp",
        "compare",
        "complex",
        "convert",
        "cosine",
        "count-leading-zeros",
    }
    | {"divide", "erf", "exponential", "exponential-minus-one", "floor", "imag", "is-finite", "log", "log-plus-one"}
    | {"logistic", "map", "maximum", "minimum", "multiply", "negate", "not", "or", "popcnt", "power", "real"}
    | {"reduce-precision", "remainder", "round-nearest-afz", "round-nearest-even", "rsqrt", "select", "shift-left"}
    | {"shift-right-arithmetic", "shift-right-logical", "sign", "sine", "sqrt", "stochastic-convert", "subtract", "tan"}
    | {"tanh", "xor", "acos", "acosh", "asin", "asinh", "atanh", "cosh", "sinh"}
)
_RANDOM_FLOPS = 50
"""Threefry-2x32: 20 rounds of add, rotate, xor for two words."""


@dataclass(frozen=True, slots=True)
class Product:
    """A GEMM: `groups` products of (m, k) and (k, n). `dtype` is the operands' dtype."""

    groups: int
    m: int
    n: int
    k: int
    dtype: str

    @property
    def flops(self) -> int:
        return 2 * self.groups * self.m * self.n * self.k

    @property
    def gemm(self) -> tuple[int, int, int, int]:
        return self.groups, self.m, self.n, self.k


def product_of(instruction: Instruction, inside: Computation) -> Product | None:
    """Return the GEMM of one instruction, without called computations; None where it is not a known GEMM."""
    if instruction.opcode in ("dot", "ragged-dot"):
        return _dot(instruction, inside)
    if instruction.opcode == "convolution":
        left, right = (inside.operand(instruction, index).array for index in (0, 1))
        return _convolution(instruction, left, right, instruction.array)
    if instruction.opcode == "custom-call" and len(instruction.operands) >= 2:
        return _of_library(instruction, inside)
    return None


def target_of_call(instruction: Instruction) -> str:
    """Return the target of a custom call."""
    return instruction.attributes.get("custom_call_target", "").strip('"')


def stated_flops(instruction: Instruction) -> int | None:
    """Return the FLOPs of a kernel's own cost estimate (Pallas and Mosaic write one), or None."""
    estimate = stated(instruction.backend_config, "cost_estimate")
    flops = estimate.get("flops") if isinstance(estimate, dict) else None
    return int(flops) if isinstance(flops, int | float | str) and str(flops).strip("-").isdigit() else None


def arithmetic(instruction: Instruction, inside: Computation) -> int:
    """Return the FLOPs of one execution outside GEMMs, without called computations."""
    opcode = instruction.opcode
    if opcode in ELEMENTWISE:
        return instruction.array.elements
    if opcode in ("reduce", "select-and-scatter", "reduce-window", "sort", "scatter"):
        return _of_many(instruction, inside)
    if opcode in ("rng", "rng-bit-generator"):
        return _RANDOM_FLOPS * max(array.elements for array in instruction.arrays)
    if opcode == "fft":
        length = prod(numbers(instruction.attributes.get("fft_length", "")))
        return round(5 * instruction.array.elements * log2(max(length, 2)))  # Cooley-Tukey
    if opcode in ("cholesky", "triangular-solve"):
        source = inside.operand(instruction, 0).array
        return source.elements * (source.dims[-1] if source.dims else 1)
    return 0


def _of_many(instruction: Instruction, inside: Computation) -> int:
    source = inside.operand(instruction, 0).array
    window = prod(_window(instruction, "size") or [1])
    match instruction.opcode:
        case "reduce":
            return source.elements
        case "reduce-window":
            return instruction.array.elements * window
        case "select-and-scatter":
            return 2 * source.elements * window
        case "scatter":
            return inside.operand(instruction, len(instruction.operands) - 1).array.elements
    axis = numbers(instruction.attributes.get("dimensions", "")) or (len(source.dims) - 1,)
    along = source.dims[axis[0]] if source.dims else 1
    return source.elements * max(1, ceil(log2(max(along, 2))))


def _dot(instruction: Instruction, inside: Computation) -> Product:
    left, right = (inside.operand(instruction, index).array for index in (0, 1))
    attributes = instruction.attributes
    dims = {key: numbers(attributes.get(f"{key}_dims", "")) for key in _DOT_DIMS}
    if instruction.opcode == "ragged-dot":  # every row meets the matrix of one group, however many groups there are
        k = prod(left.dims[dim] for dim in dims["lhs_contracting"])
        return Product(1, left.elements // k, instruction.array.elements * k // left.elements, k, left.dtype)
    return _contraction(left, right, dims)


_DOT_DIMS = ("lhs_contracting", "rhs_contracting", "lhs_batch", "rhs_batch")


def _contraction(left: Array, right: Array, dims: Mapping[str, Sequence[int]]) -> Product:
    groups = prod(left.dims[dim] for dim in dims["lhs_batch"])
    k = prod(left.dims[dim] for dim in dims["lhs_contracting"])
    per_group = max(1, groups * k)
    return Product(groups, left.elements // per_group, right.elements // per_group, k, left.dtype)


def _of_library(instruction: Instruction, inside: Computation) -> Product | None:
    """Return the GEMM of a library call: cuBLAS and hipBLAS state dimension numbers, cuDNN states dim_labels."""
    left, right = (inside.operand(instruction, index).array for index in (0, 1))
    result, target = instruction.array, target_of_call(instruction)
    numbered = stated(instruction.backend_config, "dot_dimension_numbers")
    if isinstance(numbered, dict):
        return _contraction(left, right, {key: _whole(numbered.get(f"{key}_dimensions", ())) for key in _DOT_DIMS})
    if "dim_labels" in instruction.attributes:
        if "BackwardInput" in target:
            return _convolution(instruction, result, right, left)
        if "BackwardFilter" in target:
            return _convolution(instruction, left, result, right)
        return _convolution(instruction, left, right, result)
    if target == "__onednn$matmul" and left.dims and result.dims:
        n = result.dims[-1]
        m = result.elements // n
        return Product(1, m, n, left.elements // max(m, 1), left.dtype)
    return None


def _convolution(instruction: Instruction, left: Array, kernel: Array, output: Array) -> Product:
    """Return the GEMM of a convolution from its input, kernel and output, of which it computes any."""
    labels = re.fullmatch(r"(\w+)_(\w+)->(\w+)", instruction.attributes.get("dim_labels", ""))
    if labels is None:
        raise WorkloadError(f"convolution %{instruction.name} does not name its dimensions (dim_labels)")
    lhs, rhs, out = labels.groups()
    groups = _group_count(instruction, "feature") * _group_count(instruction, "batch")
    features = output.dims[out.index("f")]
    m, k, dilation, batch = output.dims[out.index("b")], kernel.dims[rhs.index("i")], 1, 1
    for place, label in enumerate(sorted(label for label in rhs if label.isdigit())):
        met = _Dimension.of(instruction, place, left.dims[lhs.index(label)], output.dims[out.index(label)])
        span = kernel.dims[rhs.index(label)]
        if met.degenerate(span):
            batch *= met.pairs(span)
        else:
            m, k, dilation = m * met.outputs, k * span, dilation * met.dilation
    return Product(groups * batch, max(1, m // dilation), max(1, features // groups), k, left.dtype)


@dataclass(frozen=True, slots=True)
class _Dimension:
    """One spatial dimension of a convolution: sizes, stride, padding and dilation."""

    inputs: int
    outputs: int
    stride: int
    low: int
    dilation: int
    window_dilation: int

    @classmethod
    def of(cls, instruction: Instruction, place: int, inputs: int, outputs: int) -> _Dimension:
        def of_place(key: str, default: int) -> int:
            found = _window(instruction, key)
            return found[place] if place < len(found) else default

        low = _window(instruction, "pad")
        return cls(
            inputs=inputs,
            outputs=outputs,
            stride=of_place("stride", 1),
            low=low[place] if place < len(low) else 0,
            dilation=of_place("lhs_dilate", 1),
            window_dilation=of_place("rhs_dilate", 1),
        )

    def degenerate(self, span: int) -> bool:
        """Return whether it is a batch dimension: strides over holes, or padding around a single element."""
        alone = self.low >= span - 1 and (self.inputs == 1 or self.stride >= span)
        return span > 1 and (alone or (self.stride > 1 and self.dilation > 1))

    def pairs(self, span: int) -> int:
        """Return the number of (output, kernel) positions on an element of the input."""
        outputs, taps = np.arange(self.outputs) * self.stride, np.arange(span) * self.window_dilation
        places = np.add.outer(outputs, taps) - self.low
        inside = (places >= 0) & (places <= (self.inputs - 1) * self.dilation) & (places % self.dilation == 0)
        return int(inside.sum())


def _window(instruction: Instruction, key: str) -> list[int]:
    """Return one row of `window={size=3x3 pad=1_1x1_1}`; for padding, the lower sides."""
    found = re.search(rf"\b{key}=([\d_x\-]+)", instruction.attributes.get("window", ""))
    return [int(part.split("_")[0]) for part in found[1].split("x")] if found else []


def _group_count(instruction: Instruction, which: str) -> int:
    return int(instruction.attributes.get(f"{which}_group_count", "1"))


def _whole(values: Any) -> tuple[int, ...]:
    return tuple(int(value) for value in values) if isinstance(values, list | tuple) else ()


def stated(config: Any, key: str) -> Any:
    """Return the value of a key anywhere in a nested configuration."""
    if isinstance(config, Mapping):
        if key in config:
            return config[key]
        config = list(config.values())
    if isinstance(config, list):
        return next((found for part in config if (found := stated(part, key)) is not None), None)
    return None
