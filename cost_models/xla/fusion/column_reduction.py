"""Reductions over columns that run on too few blocks to fill a GPU, and at which batches they do.

XLA gives a block 32 columns, and splits a reduction of more than 4,096 elements in two, each about the square root
long (its tree reduction). What would be computed inside a kernel that leaves most of the device idle is computed before
it, by a kernel that does not: of narrow values, which are converted first, sooner than of float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from cost_models.workload.affine import Affine
from cost_models.workload.workload import Kind, Op, Phase, Workload
from cost_models.xla.dataflow import is_narrow
from cost_models.xla.profile import Profile
from cost_models.xla.tiling import convolutional_shapes

_WIDTH = 32  # columns a block
_UNSPLIT = 4096  # elements that one reduction sums (ReductionDimensionRaceFreeBound)
_GROUPED = 2  # dimensions of sums of groups: samples and groups
_WIDE_ROW = 128  # channels (A100, groups in half precision: of 16 samples 128 were computed apart, 96 were not)
_LONG_COLUMN = 1536  # rows (A100, float32: columns of 1,024 rows were not computed apart, of 1,536 they were)
_FEW_SAMPLES = 8  # the same: of 8 samples 64 channels were computed apart, of 16 they were not
COLUMNS, CACHED_COLUMNS, GROUPED_COLUMNS = "column-reduction", "cached-column-reduction", "grouped-column-reduction"
GATED = 2.0
"""By how much more a logistic function is to compute than what normalises (A100: 512 blocks were too few, 640 not)."""


def leaves_idle(
    workload: Workload, op: Op, profile: Profile, batch: int, times: float = 1.0, chained: bool = False
) -> bool:
    """Whether this operation is a reduction over columns that does not fill the device at a local batch.

    Of the forward pass: what the backward pass computes before one is gone again soon after.

    times    by how much more would be computed in it than usual: as many more blocks are too few
    chained  whether more than one operation would be: in float32 then as many blocks are asked for as there are cores
    """
    if _sums_groups(workload, op):
        return not chained and is_narrow(workload) and _is_held_apart(workload, op, profile, batch)
    if not _sums_columns(workload, op):
        return False
    if is_narrow(workload):
        return _blocks(workload, op, batch) < times * float(profile.setting(COLUMNS, "narrow_blocks"))
    images = workload.tensors[op.reads[0]].shape in _images(workload)  # cuDNN has their channels first in float32
    if images:
        return False
    least = float(profile.setting(COLUMNS, "chained_blocks" if chained else "wide_blocks"))
    return _blocks(workload, op, batch) < times * least


def lies_in_caches(workload: Workload, op: Op, profile: Profile, batch: int) -> bool:
    """Whether this is a reduction over long columns in float32 that are few and lie in the cores' caches."""
    if not _sums_columns(workload, op) or is_narrow(workload):
        return False
    read, made = (workload.tensors[end] for end in (op.reads[0], op.writes[0]))
    rows = read.elements.at(batch) / max(made.elements.at(batch), 1.0)
    cached = read.bytes.at(batch) < float(profile.setting(CACHED_COLUMNS, "cache_bytes"))
    return (
        rows >= _LONG_COLUMN
        and cached
        and _blocks(workload, op, batch) <= float(profile.setting(CACHED_COLUMNS, "blocks"))
    )


def column_batch(workload: Workload, profile: Profile, batch: int) -> int | None:
    """Return the batch nearest to that of the trace at which the same reductions leave the device idle as at `batch`.

    These reductions become fewer as the batch grows.
    """
    own = workload.local_batch
    if batch == own or not _candidates(workload):
        return None
    wanted = _idle(workload, profile, batch)
    if _idle(workload, profile, own) == wanted:
        return None
    near, far = own, batch
    while abs(far - near) > 1:  # `far` has the wanted ones, `near` has others
        middle = (near + far) // 2
        near, far = (near, middle) if _idle(workload, profile, middle) == wanted else (middle, far)
    return far


@lru_cache(maxsize=64)
def _candidates(workload: Workload) -> tuple[Op, ...]:
    """The reductions over columns, those of groups included."""
    return tuple(op for op in workload.ops if _sums_columns(workload, op) or _sums_groups(workload, op))


@lru_cache(maxsize=64)
def _images(workload: Workload) -> frozenset[tuple[Affine, ...]]:
    return frozenset(convolutional_shapes(workload))


_Case = tuple[int, float, bool]
_CASES = ((1.0, False), (GATED, False), (1.0, True))


def _idle(workload: Workload, profile: Profile, batch: int) -> frozenset[_Case]:
    candidates = tuple(enumerate(_candidates(workload)))
    idle = (
        (number, times, chained)
        for number, op in candidates
        for times, chained in _CASES
        if leaves_idle(workload, op, profile, batch, times, chained)
    )
    cached = ((number, 0.0, True) for number, op in candidates if lies_in_caches(workload, op, profile, batch))
    return frozenset((*idle, *cached))


def _sums_columns(workload: Workload, op: Op) -> bool:
    """Whether a reduction of the forward pass keeps the last dimension, and not the first ones alone."""
    if op.kind is not Kind.REDUCE or op.phase is not Phase.FORWARD or not op.reads:
        return False
    source, made = workload.tensors[op.reads[0]].shape, workload.tensors[op.writes[0]].shape
    return bool(made) and bool(source) and source[-1] == made[-1] and source[: len(made)] != made


def _sums_groups(workload: Workload, op: Op) -> bool:
    """Whether a reduction of the forward pass makes one value a sample and group of images with grouped channels.

    XLA makes two of it where channels come last: over columns, which keeps all channels, and then within the groups.
    """
    if op.kind is not Kind.REDUCE or op.phase is not Phase.FORWARD or not op.reads:
        return False
    source, made = workload.tensors[op.reads[0]].shape, workload.tensors[op.writes[0]].shape
    return len(made) == _GROUPED and len(source) > len(made) + 1 and made == (source[0], source[-2])


def _is_held_apart(workload: Workload, op: Op, profile: Profile, batch: int) -> bool:
    """Whether what such a reduction would compute is computed before it: of many narrow samples the gradient does."""
    source = workload.tensors[op.reads[0]].shape
    samples, channels = source[0].at(batch), source[-1].at(batch) * source[-2].at(batch)
    few = channels >= _WIDE_ROW or samples <= _FEW_SAMPLES
    return few and samples * math.ceil(channels / _WIDTH) < float(profile.setting(GROUPED_COLUMNS, "blocks"))


def _blocks(workload: Workload, op: Op, batch: int) -> float:
    """Blocks of a reduction over columns."""
    source, made = workload.tensors[op.reads[0]].shape, workload.tensors[op.writes[0]].shape
    results = _elements(made, batch)
    rows = _elements(source, batch) / max(results, 1.0)
    width = made[-1].at(batch)
    blocks = results / max(width, 1.0) * math.ceil(width / _WIDTH)
    return math.inf if rows > _UNSPLIT else blocks


def _elements(shape: Sequence[Affine], batch: int) -> float:
    return math.prod(dim.at(batch) for dim in shape)
