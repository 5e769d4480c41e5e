"""Lists the rules and numbers of XLA:GPU by compute capability; a new rule for GPUs is listed here."""

from __future__ import annotations

from dataclasses import replace

from cost_models.workload.workload import Kind
from cost_models.xla.buffers.buffer_reuse import output_buffers
from cost_models.xla.buffers.gradient_accumulation import gradient_averages
from cost_models.xla.buffers.heap import heap_packing
from cost_models.xla.buffers.workspace import dot_workspace
from cost_models.xla.fusion.column_reduction import (
    LeastBlocks,
    cached_column_reduction,
    column_reduction,
    grouped_column_reduction,
)
from cost_models.xla.fusion.materialization import costly_pooling_operands, gated_products
from cost_models.xla.fusion.priority_fusion import long_chains, priority_fusion
from cost_models.xla.fusion.row_normalization import elementwise_in_place, normalised_rows
from cost_models.xla.passes.float_normalization import float_normalization
from cost_models.xla.passes.select_and_scatter import select_and_scatter
from cost_models.xla.profile import Profile, Uncertainty
from cost_models.xla.rules import Rule
from cost_models.xla.scheduling.memory_scheduler import memory_scheduler

FUSIBLE = frozenset({Kind.ELEMENTWISE, Kind.EXPENSIVE, Kind.RANDOM, Kind.BROADCAST, Kind.MOVE, Kind.GATHER})

_NATIVE = frozenset(
    {"max", "min", "abs", "neg", "exp", "log", "select_n", "reduce_max", "reduce_min", "argmax", "argmin"}
    | {"eq", "ne", "lt", "le", "gt", "ge", "eq_to", "lt_to", "le_to"}
)
"""Primitives that XLA leaves in bfloat16 on GPUs before Hopper, as its optimised text for an A100 shows."""

_CORES, _HOPPER_CORES = 108, 132
_CUBLAS_BYTES = 4 * 2**20  # as XLA allocates it before Hopper

AMPERE = Profile(
    name="gpu",
    passes=(select_and_scatter, float_normalization),
    fusion=priority_fusion,
    materialized=(normalised_rows, gated_products),
    fusion_rules=(
        # 256 blocks were computed apart, 317 were not; 32 and 48 in float32; 96 and 128 for chains.
        column_reduction.using(least=LeastBlocks(narrow=288, wide=40, chained=_CORES)),
        # 80 blocks were computed apart, 96 were not; columns of 21.0 MB were, of 25.2 MB were not.
        cached_column_reduction.using(blocks=80, cache_bytes=_CORES * 192 * 2**10),
        grouped_column_reduction.using(blocks=160),  # 128 were computed apart, 192 were not
        long_chains,
        elementwise_in_place,
    ),
    scheduler=memory_scheduler,
    buffer_rules=(gradient_averages.using(sets=1), output_buffers, heap_packing),
    fusible=FUSIBLE,
    absorbing=frozenset({Kind.REDUCE, Kind.POOL, Kind.POOL_GRADIENT}),
    free_moves=frozenset({"transpose", "pad"}),  # cuDNN pads both ends alike
    narrow=frozenset({"bfloat16"}),
    native=_NATIVE,
    unseen=0.0125,  # compiled steps hold 0.8% more on the mean of 82 (A100), 1.0% of 16 (H100), 0.0% on both medians
    # 204 of the 226 training steps that studies/memory_vs_compiler compiled for A100 and H100 are inside.
    uncertainty=Uncertainty((0.06, 0.16), plain=(0.11, 0.13), loops=(0.1, 0.1)),
)
"""The interval is widest around convolutions, where the rules know least about what stays in memory."""


def _with_settings(profile: Profile, *rules: Rule) -> Profile:
    """Return the profile with other settings of some of its fusion rules."""
    anew = {one.name: one for one in rules}
    return replace(profile, fusion_rules=tuple(anew.get(one.name, one) for one in profile.fusion_rules))


HOPPER = replace(
    _with_settings(
        AMPERE,
        # Half its cores: 64 blocks were computed apart, 128 were not.
        column_reduction.using(least=LeastBlocks(288, wide=_HOPPER_CORES // 2, chained=_HOPPER_CORES)),
        cached_column_reduction.using(blocks=80, cache_bytes=_HOPPER_CORES * 256 * 2**10),
    ),
    name="gpu hopper",
    native=_NATIVE | {"add", "add_any", "sub", "mul", "integer_pow", "square"},
    # ELU was kept in bfloat16, on an A100 it was not.
    materialized=(*AMPERE.materialized, costly_pooling_operands.using(primitives=frozenset({"expm1"}))),
)
"""Hopper has arithmetic in bfloat16."""
VOLTA = replace(
    AMPERE,
    name="gpu volta",
    buffer_rules=(*AMPERE.buffer_rules, dot_workspace.using(size=_CUBLAS_BYTES)),
)
"""Before Ampere products are the library's, which needs scratch."""

BY_CAPABILITY = ((9.0, HOPPER), (8.0, AMPERE), (0.0, VOLTA))
"""(least compute capability, profile), from the newest on."""
