"""Applies the passes of a compiler profile, which run before fusion, to a Workload in their order."""

from __future__ import annotations

from cost_models.workload.workload import Workload
from cost_models.xla.profile import Profile


def lower(workload: Workload, profile: Profile, local_batch: int | None = None) -> Workload:
    """Return the workload as the compiler sees it when it starts to fuse.

    local_batch  at which passes decide (None: the batch of the trace)
    """
    batch = workload.local_batch if local_batch is None else local_batch
    for one in profile.passes:
        workload = one(workload, profile, batch)
    return workload
