"""Defines the profile of eager execution: operations run one by one, and nothing is fused or recomputed."""

from __future__ import annotations

from dataclasses import replace

from cost_models.xla.buffers.workspace import dot_workspace
from cost_models.xla.fusion.priority_fusion import priority_fusion
from cost_models.xla.passes.embedding_layout import embedding_layout
from cost_models.xla.passes.select_and_scatter import select_and_scatter
from cost_models.xla.profile import Profile
from cost_models.xla.scheduling.orders import list_scheduler

_RUNS_ALONE = frozenset({select_and_scatter.name, embedding_layout.name, dot_workspace.name})
"""Expansions, layouts and scratch that kernels need one by one, too."""


def eager(profile: Profile) -> Profile:
    """Return the profile of a device that runs without a compiler."""
    return replace(
        profile.only(lambda one: one.name in _RUNS_ALONE),
        name=f"{profile.name} eager",
        fusion=priority_fusion,
        scheduler=list_scheduler,
        fusible=frozenset(),
        absorbing=frozenset(),
        free_moves=frozenset(),
        product_dtype=None,
        unseen=0.0,
    )
