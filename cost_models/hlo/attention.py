"""Recognises attention in one kernel among custom calls: cuDNN's on GPUs, and JAX's splash attention on TPUs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod

from cost_models.hlo.dots import Product, stated, target_of_call
from cost_models.hlo.parser import Computation, Instruction
from cost_models.workload.splash_attention import PARTS, computes_mask
from cost_models.workload.workload import (
    ATTENTION_BACKWARD,
    ATTENTION_FORWARD,
    ATTENTION_PRODUCTS,
    CAUSAL,
)

_CUDNN = "__cudnn$fmha"
_MOSAIC = "tpu_custom_call"
_SPLASH = re.compile(rf"splash_mha_({'|'.join(PARTS)})")


@dataclass(frozen=True, slots=True)
class AttentionKernel:
    """A kernel of attention: its primitive in a Workload, and one product over its pairs of queries and keys."""

    primitive: str
    scores: Product

    @property
    def flops(self) -> int:
        """FLOPs of all its products. Causal kernels skip half of the pairs."""
        whole = self.scores.flops * ATTENTION_PRODUCTS[self.primitive.removesuffix(CAUSAL)]
        return whole // 2 if self.primitive.endswith(CAUSAL) else whole


def attention_of(instruction: Instruction, inside: Computation) -> AttentionKernel | None:
    """Return the attention that a custom call computes; None for every other instruction."""
    if instruction.opcode != "custom-call":
        return None
    target = target_of_call(instruction)
    if target.startswith(_CUDNN):
        return _of_cudnn(instruction, inside, target)
    return _of_splash(instruction, inside) if target == _MOSAIC else None


def _of_cudnn(instruction: Instruction, inside: Computation, target: str) -> AttentionKernel | None:
    scores = stated(instruction.backend_config, "intermediate_tensor_shape")
    if not isinstance(scores, dict) or len(scores.get("dimensions", ())) != 4:
        return None
    samples, heads, queries, keys = map(int, scores["dimensions"])
    query = inside.operand(instruction, 0).array
    is_causal = "CAUSAL" in str(stated(instruction.backend_config, "mask_type"))
    primitive = ATTENTION_BACKWARD if "Backward" in target else ATTENTION_FORWARD
    product = Product(samples * heads, queries, keys, query.dims[-1], query.dtype)
    return AttentionKernel(primitive + CAUSAL * is_causal, product)


def _of_splash(instruction: Instruction, inside: Computation) -> AttentionKernel | None:
    """Return a kernel of splash attention: (..., heads, length, width) of queries, then of keys, among its operands."""
    named = _SPLASH.search(instruction.op_name)
    arrays = [one.array for one in inside.inputs(instruction)]
    floats = [array for array in arrays if "float" in array.dtype]
    if named is None or len(floats) < 2:
        return None
    query, key = floats[:2]
    positions = [tuple(array.dims) for array in arrays if array.dtype == "int32"]
    is_causal = computes_mask(positions, {query.dims[-2], key.dims[-2]})
    product = Product(prod(query.dims[:-2]), query.dims[-2], key.dims[-2], query.dims[-1], query.dtype)
    return AttentionKernel(PARTS[named[1]] + CAUSAL * is_causal, product)
