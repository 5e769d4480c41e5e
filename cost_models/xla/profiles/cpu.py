"""Lists the rules and numbers of the XLA:CPU profile; a new rule for CPUs is listed here."""

from __future__ import annotations

from cost_models.workload.workload import UNEVEN_PAD, Kind
from cost_models.xla.buffers.buffer_reuse import lent_state_buffers
from cost_models.xla.buffers.gradient_accumulation import gradient_averages
from cost_models.xla.buffers.heap import heap_packing
from cost_models.xla.buffers.loop_stacks import early_loop_stacks
from cost_models.xla.fusion.cpu_fusion import cpu_fusion
from cost_models.xla.fusion.ynnpack import ynnpack
from cost_models.xla.passes.cpu_simplifier import cpu_simplifier
from cost_models.xla.passes.cse import cse
from cost_models.xla.passes.explicit_broadcasts import explicit_broadcasts
from cost_models.xla.passes.float_normalization import float_normalization
from cost_models.xla.passes.polynomial_expansion import polynomial_expansion
from cost_models.xla.passes.select_and_scatter import select_and_scatter
from cost_models.xla.profile import Profile, Uncertainty
from cost_models.xla.profiles.gpu import FUSIBLE
from cost_models.xla.scheduling.orders import breadth_first_scheduler

CPU = Profile(
    name="cpu",
    passes=(
        select_and_scatter.using(writes_iota=True),
        cpu_simplifier,
        cse,
        float_normalization.using(products=True, rounds=True),
        polynomial_expansion,
        explicit_broadcasts,
        cse,
    ),
    fusion=cpu_fusion,
    fusion_rules=(ynnpack.using(least_elements=4096),),
    scheduler=breadth_first_scheduler,
    buffer_rules=(early_loop_stacks, gradient_averages.using(sets=2), lent_state_buffers, heap_packing),
    fusible=FUSIBLE - {Kind.RANDOM},  # drawn in a loop that writes its words (jax's threefry rolls its rounds there)
    absorbing=frozenset({Kind.REDUCE}),
    free_moves=frozenset({"pad", UNEVEN_PAD}),
    narrow=frozenset({"bfloat16"}),
    host_apart=False,
    uncertainty=Uncertainty((0.1, 0.1)),
)
