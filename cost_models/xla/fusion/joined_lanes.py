"""Features that are joined across the lanes of tiles are written: XLA:TPU fuses no reads of pieces of tiles."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from cost_models.workload.workload import Kind, Workload
from cost_models.xla.dataflow import Graph
from cost_models.xla.profile import Profile
from cost_models.xla.rules import rule
from cost_models.xla.tiling import storage

_BATCHES = tuple(2**power for power in range(13))  # looked at for one whose layouts are the same


def joined_batch(workload: Workload, profile: Profile, batch: int) -> int | None:
    """Return a batch that lays out joined images alike, None where no images are joined."""
    return _alike(workload, profile, batch) if _joins_features(workload) else None


@rule("joined-lanes", source="programs compiled for TPU v5e: DenseNet, Inception", structure_batch=joined_batch)
def joined_lanes(workload: Workload, graph: Graph, batch: int) -> Iterator[int]:
    """Yield joined features that lie across the lanes and that several operations read."""
    in_lanes = storage(workload, graph.profile).features_in_lanes(batch)
    joined = (op.writes[0] for op in graph.ops if op.primitive == "concatenate")
    return (tensor for tensor in joined if in_lanes[tensor] and len(graph.readers.get(tensor, ())) > 1)


@lru_cache(maxsize=64)
def _joins_features(workload: Workload) -> bool:
    """Whether a net with convolutions concatenates."""
    convolutional = any(op.kind is Kind.CONV for op in workload.ops)
    return convolutional and any(op.primitive == "concatenate" for op in workload.ops)


def _alike(workload: Workload, profile: Profile, batch: int) -> int:
    """A batch that lays out images as this one does: that of the trace, or a power of two."""
    wanted = _features_in_lanes(workload, profile, batch)
    known = (workload.local_batch, *_BATCHES)
    return next((one for one in known if _features_in_lanes(workload, profile, one) == wanted), batch)


@lru_cache(maxsize=1024)
def _features_in_lanes(workload: Workload, profile: Profile, batch: int) -> bytes:
    """Of everything that convolutions touch, whether its features lie across the lanes at this batch."""
    return storage(workload, profile).features_in_lanes(batch).tobytes()
