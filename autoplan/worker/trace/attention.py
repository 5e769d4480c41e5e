"""Recognises attention in one kernel: cuDNN's on GPUs, and the splash attention of JAX (Pallas) on TPUs.

FLOPs are those of the products over pairs of queries and keys. The backward pass computes the scores again, so cuDNN's
has five products beside two forward (Dao 2023, arXiv 2307.08691, section 3.1); splash attention has one kernel for the
gradients of queries (three products) and one for those of keys and values (four). Causal attention counts half of the
pairs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from cost_models.workload.splash_attention import PARTS, computes_mask
from cost_models.workload.workload import (
    ATTENTION_BACKWARD,
    ATTENTION_FORWARD,
    ATTENTION_PRODUCTS,
    CAUSAL,
)

_CUDNN: Mapping[str, str] = {
    "dot_product_attention_fwd_wrapper": ATTENTION_FORWARD,
    "dot_product_attention_bwd_wrapper": ATTENTION_BACKWARD,
}


@dataclass(frozen=True, slots=True)
class FusedAttentionCall:
    """A call of a kernel that computes attention.

    primitive  the primitive of the Workload
    flops      of all its products; half of them if it is causal
    gemm       (samples x heads, queries, keys, head width)
    """

    primitive: str
    flops: int
    gemm: tuple[int, int, int, int]


def attention_call(eqn: Any) -> FusedAttentionCall | None:
    """Return the call of attention that an equation is; None for every other equation."""
    name = eqn.primitive.name
    if name in _CUDNN:
        return _cudnn_call(eqn, _CUDNN[name])
    return _splash_call(eqn) if name == "pallas_call" else None


def is_used(atom: Any) -> bool:
    """Return whether an operand has elements: cuDNN's calls have empty arrays in the place of absent operands."""
    return bool(prod(atom.aval.shape))


def _cudnn_call(eqn: Any, primitive: str) -> FusedAttentionCall:
    batch, queries, heads, width = _in_order(eqn, 0)
    _, keys, _, _ = _in_order(eqn, 1)
    causal = "CAUSAL" in eqn.params["mask_type"].name
    return _call(primitive, (batch * heads, queries, keys, width), causal=causal)


def _in_order(eqn: Any, operand: int) -> tuple[int, int, int, int]:
    """Return (batch, length, heads, width) of an operand of cuDNN's attention."""
    from jax._src.cudnn.fused_attention_stablehlo import AttentionLayout

    batch, one, other, width = eqn.invars[operand].aval.shape
    is_head_major = eqn.params["layout"] == AttentionLayout.BNTH.value
    return (batch, other, one, width) if is_head_major else (batch, one, other, width)


def _splash_call(eqn: Any) -> FusedAttentionCall | None:
    """Return the call of a kernel of splash attention: (..., heads, length, width) of queries, keys and values."""
    family, _, rest = _kernel_name(eqn).partition("_mha_")
    primitive = PARTS.get(rest.partition("_")[0]) if family == "splash" else None
    if primitive is None:
        return None
    floats = [atom.aval for atom in eqn.invars if "float" in str(atom.aval.dtype)]
    query, key = (aval.shape for aval in floats[:2])
    positions = [atom.aval.shape for atom in eqn.invars if "int32" in str(atom.aval.dtype)]
    gemm = prod(query[:-2]), query[-2], key[-2], query[-1]
    return _call(primitive, gemm, causal=computes_mask(positions, {query[-2], key[-2]}))


def _kernel_name(eqn: Any) -> str:
    named = eqn.params.get("name") or getattr(eqn.params.get("name_and_src_info"), "name", "")
    return str(named)


def _call(primitive: str, gemm: tuple[int, int, int, int], *, causal: bool) -> FusedAttentionCall:
    flops = ATTENTION_PRODUCTS[primitive] * 2 * prod(gemm)
    return FusedAttentionCall(primitive + CAUSAL * causal, flops // 2 if causal else flops, gemm)
