"""XLA:TPU: one profile for v5e, which v2 and v3 share, and those of chips whose compiler differs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cost_models.workload.workload import UNEVEN_PAD, Kind
from cost_models.xla.buffers.heap import packing
from cost_models.xla.buffers.state_layout_copies import turned
from cost_models.xla.buffers.vmem import on_chip
from cost_models.xla.fusion.fusion import kernels_of
from cost_models.xla.fusion.gemm_epilogue import gemm_epilogue
from cost_models.xla.fusion.joined_lanes import joined_lanes
from cost_models.xla.fusion.recompute_cost import recompute_cost
from cost_models.xla.fusion.row_maximum import row_maximum
from cost_models.xla.passes.embedding_layout import embedding_layout
from cost_models.xla.passes.layout_copies import conv_image_layout, feature_relayout
from cost_models.xla.passes.product_rounding import product_operand_rounding
from cost_models.xla.passes.relu_mask_packing import relu_mask_packing
from cost_models.xla.profile import Profile, Uncertainty
from cost_models.xla.profiles.gpu import FUSIBLE
from cost_models.xla.scheduling.orders import list_scheduler

# Rows of 8,192 elements were one kernel with their maximum, of 10,000 were not; 2,048 and 4,096 of products.
_ROW_MAXIMUM = row_maximum.using(longest=8192, longest_of_product=2048)
_UNPACKED = (("erfc", 6.0),)
"""v5e keeps exact GELU's factor in bfloat16 (more than 4), not in float32 (8)."""
_V4_COSTS = (("div", 3.0), ("exp", 2.5), ("expm1", 2.5), ("logistic", 5.5), ("tanh", 5.5), ("erfc", 12.0))
"""Between bounds that this compiler's choices give. It keeps attention's probabilities in bfloat16 (div: more than 2),
silu (exp and div: more than 4), exp (more than 2) and the factor of exact GELU; it computes again a softmax in bfloat16
(div: less than 4), elu (expm1: less than 4), softplus, and the gradients of logits (exp: less than 6) and of
attention's scores (div: less than 6). Of the same steps v5e computes all but exp, tanh and logistic again."""
_ERFC = (("erfc", 12.0),)
"""The factor of exact GELU is kept, as on v4; silu, elu, softplus and softmax are computed again, as on v5e."""

V5E = Profile(
    name="tpu",
    passes=(relu_mask_packing, product_operand_rounding, conv_image_layout, embedding_layout, feature_relayout),
    fusion=kernels_of,
    materialized=(_ROW_MAXIMUM, joined_lanes),
    fusion_rules=(gemm_epilogue, recompute_cost.using(unpacked=_UNPACKED)),
    scheduler=list_scheduler,
    buffer_rules=(on_chip.using(room=112 * 2**20), packing),
    fusible=FUSIBLE,
    absorbing=frozenset({Kind.REDUCE, Kind.DOT, Kind.CONV}),
    free_moves=frozenset({"transpose", "pad", UNEVEN_PAD}),
    product_dtype="bfloat16",
    tile_rows=8,
    tile_lanes=128,
    uncertainty=Uncertainty((0.08, 0.08)),
)


def _with_costs(name: str, costs: tuple[tuple[str, float], ...]) -> Profile:
    return replace(V5E, name=name, fusion_rules=(gemm_epilogue, recompute_cost.using(always=costs, unpacked=_UNPACKED)))


V4 = _with_costs("tpu v4", _V4_COSTS)
V5P = _with_costs("tpu v5p", _ERFC)
V7X = replace(
    V5P.without(relu_mask_packing.name),
    name="tpu v7x",
    materialized=(_ROW_MAXIMUM.using(wide_apart=True), joined_lanes),
    fusion_rules=(
        gemm_epilogue.using(leaves_to_products=True),
        recompute_cost.using(always=_ERFC, unpacked=_UNPACKED),
    ),
)
V6E = replace(V7X, name="tpu v6e", buffer_rules=(*V7X.buffer_rules, turned))

BY_CHIP: Mapping[str, Profile] = {"tpu-v4": V4, "tpu-v5p": V5P, "tpu-v6e": V6E, "tpu-v7x": V7X}
"""Chips whose compiler differs from that of v5e."""
