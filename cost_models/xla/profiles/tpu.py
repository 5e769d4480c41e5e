"""Lists the rules and numbers of the XLA:TPU profiles by generation; a new rule for TPUs is listed here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cost_models.workload.workload import UNEVEN_PAD, Kind
from cost_models.xla.buffers.heap import heap_packing
from cost_models.xla.buffers.program_code import program_code
from cost_models.xla.buffers.vmem import vmem
from cost_models.xla.fusion.gemm_epilogue import gemm_epilogue
from cost_models.xla.fusion.priority_fusion import priority_fusion
from cost_models.xla.fusion.recompute_cost import recompute_cost
from cost_models.xla.passes.attention_layout import attention_layout
from cost_models.xla.passes.embedding_layout import embedding_layout
from cost_models.xla.passes.product_rounding import product_operand_rounding
from cost_models.xla.profile import Profile, Uncertainty
from cost_models.xla.profiles.gpu import FUSIBLE
from cost_models.xla.scheduling.orders import list_scheduler

_V4_COSTS = (("div", 3.0), ("exp", 2.5), ("expm1", 2.5), ("logistic", 5.5), ("tanh", 5.5), ("erfc", 12.0))
"""Costs between the bounds that this compiler's choices give. It keeps attention's probabilities in bfloat16 (div: more
than 2), silu (exp and div: more than 4), exp (more than 2) and the factor of exact GELU. It recomputes a softmax in
bfloat16 (div: less than 4), elu (expm1: less than 4), softplus, and the gradients of logits (exp: less than 6) and of
attention's scores (div: less than 6). In the same steps v5e recomputes all but exp, tanh and logistic."""
_ERFC = (("erfc", 12.0),)
"""The factor of exact GELU is kept, as on v4; silu, elu, softplus and softmax are computed again, as on v5e."""

V5E = Profile(
    name="tpu",
    passes=(product_operand_rounding, embedding_layout, attention_layout),
    fusion=priority_fusion,
    fusion_rules=(gemm_epilogue,),
    scheduler=list_scheduler,
    buffer_rules=(vmem.using(room=112 * 2**20), heap_packing, program_code),
    fusible=FUSIBLE,
    absorbing=frozenset({Kind.REDUCE, Kind.DOT, Kind.CONV}),
    free_moves=frozenset({"transpose", "pad", UNEVEN_PAD}),
    product_dtype="bfloat16",
    tile_rows=8,
    tile_lanes=128,
    uncertainty=Uncertainty((0.08, 0.33), loops=(0.25, 0.25)),
)


def _with_costs(name: str, costs: tuple[tuple[str, float], ...]) -> Profile:
    return replace(V5E, name=name, fusion_rules=(*V5E.fusion_rules, recompute_cost.using(costs=costs)))


BY_CHIP: Mapping[str, Profile] = {
    "tpu-v4": _with_costs("tpu v4", _V4_COSTS),
    "tpu-v5p": _with_costs("tpu v5p", _ERFC),
    "tpu-v6e": _with_costs("tpu v6e", _ERFC),
    "tpu-v7x": _with_costs("tpu v7x", _ERFC),
}
"""Chips whose compiler differs from that of v5e."""
