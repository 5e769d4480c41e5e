"""Enumerates all legal splits of an effective batch into accumulation x data axis x local batch, on legal meshes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from autoplan.errors import ConfigError
from autoplan.tuning.space.legal_values import Situation
from autoplan.tuning.space.limits import Limits
from autoplan.tuning.space.refusals import accumulation_is_held, no_batch
from cost_models.config import Batch, Layout, Mesh, TrainConfig


def legal_splits(situation: Situation, limits: Limits, *, shard_state: bool) -> list[tuple[Batch, Mesh, Layout]]:
    """Return every legal batch with its mesh and layout.

    shard_state   list layouts that split state over the data axis, too

    ConfigError where limits and data leave none; the message lists what would be legal.
    """
    fixed = limits.fixed.get("shard_state")
    splits = [
        (batch, mesh, layout)
        for batch, mesh in _batch_splits(situation, limits)
        for layout in _layouts(situation.baseline, mesh, fixed, shard_state=shard_state)
    ]
    if not splits:
        raise ConfigError(
            "--fix layout.shard_state=true: one device has no other device to share its state with; "
            "name hardware with more, or leave the mesh free"
        )
    return splits


def why_one_mesh(situation: Situation, limits: Limits) -> str | None:
    """Return why there is only one data axis to try; None where there are more."""
    cluster = situation.cluster
    if len(_data_axes(situation, limits)) > 1:
        return None
    if "data" in limits.fixed:
        return f"--fix sets its data axis to {limits.fixed['data']}"
    if cluster.devices > 1:
        return f"the model axis takes all {cluster.devices} devices of {cluster.name}"
    return f"{cluster.name} has one device" + (", and --devices simulates more" * (cluster.chip.kind == "cpu"))


def on_all_devices(situation: Situation) -> list[TrainConfig]:
    """Return the baseline over all devices, where there are more than it uses and its batch divides."""
    baseline = situation.baseline
    devices = situation.cluster.devices // baseline.mesh.model
    if devices <= baseline.mesh.data or baseline.batch.global_size % devices:
        return []
    return [baseline.with_(mesh=Mesh(devices, baseline.mesh.model))]


def _batch_splits(situation: Situation, limits: Limits) -> list[tuple[Batch, Mesh]]:
    data_axes, model = _data_axes(situation, limits), situation.baseline.mesh.model
    every = [(batch, Mesh(batch.data, model)) for batch in _batches(situation, limits, data_axes)]
    matching = [(batch, mesh) for batch, mesh in every if _matches(batch, limits.fixed)]
    if not matching:
        raise ConfigError(
            no_batch(
                [batch for batch, _ in every],
                situation,
                data_axes,
                limits,
                splits_over=lambda axis: bool(_batches(situation, limits, [axis])),
            )
        )
    return matching


def _batches(situation: Situation, limits: Limits, data_axes: Iterable[int]) -> list[Batch]:
    """Return every legal batch on data axes of these sizes, but for the sizes that `--fix` sets."""
    return [
        Batch.from_global(effective // accumulation, data=data, accumulation=accumulation)
        for effective in _effective_batches(situation, limits)
        for accumulation in _accumulations(effective, situation, limits)
        for data in data_axes
        if (effective // accumulation) % data == 0
    ]


def _data_axes(situation: Situation, limits: Limits) -> list[int]:
    cluster, own = situation.cluster, situation.baseline.mesh
    available = max(1, cluster.devices // own.model)
    sizes = [size for size in range(1, available + 1) if available % size == 0 or size == own.data]
    if "data" in limits.fixed:
        if limits.fixed["data"] not in sizes:
            raise ConfigError(
                f"--fix mesh=data={limits.fixed['data']}: {cluster.name} has {cluster.devices} device(s); "
                f"the data axis can be {_listed(sizes)}" + (" (see --devices)" if cluster.chip.kind == "cpu" else "")
            )
        return [int(limits.fixed["data"])]
    return sizes if "mesh" in limits.free else [own.data]


def _effective_batches(situation: Situation, limits: Limits) -> list[int]:
    own, samples = situation.baseline.batch.effective, situation.observation.samples
    if limits.effective_range is None or "batch" not in limits.free:
        return [own]
    if _rows_differ(situation):
        return [] if limits.outside_range(own) else [own]
    low, high = limits.effective_range
    if low == high and low <= (samples or low):
        return [low]
    most = min(high, samples or high)
    powers = [2**exponent for exponent in range(most.bit_length()) if low <= 2**exponent <= most]
    sizes = sorted({*powers, *([own] if low <= own <= high else [])})
    if not sizes and low == high:
        raise ConfigError(f"--effective-batch {low}: an epoch has no more than {samples} samples")
    if not sizes:
        raise ConfigError(
            f"--effective-batch {low}..{high}: no power of two lies in it"
            + (f" below the {samples} samples of an epoch" if samples else "")
            + f", and the script's own is {own}; widen the range"
        )
    return sizes


def _accumulations(effective: int, situation: Situation, limits: Limits) -> list[int]:
    """Return micro-steps an update: divisors of the effective batch whose global batch the data can give.

    One an octave, unless `--fix` sets a batch size.
    """
    own, fixed = situation.baseline.batch.accumulation, limits.fixed.get("accumulation")
    if "batch" not in limits.free and fixed is None:
        return [own]
    legal = [a for a in _divisors(effective) if _data_can_give(effective // a, a, situation)]
    if accumulation_is_held(situation.observation):
        legal = [a for a in legal if a == own]
    if fixed is not None or limits.fixed.keys() & {"global", "local"}:
        return legal
    return sorted({own} & set(legal) | set(_one_an_octave(legal, situation.observation.samples, effective)))


def _rows_differ(situation: Situation) -> bool:
    """Return whether batches that are held differ in rows, so that any number of them an update is of other samples."""
    seen = situation.observation
    return not seen.rebatchable and seen.batches is not None and seen.batches.differ_in_rows


def _data_can_give(global_batch: int, accumulation: int, situation: Situation) -> bool:
    """Return whether the script's data can come in this global batch, in whole micro-steps where it counts them."""
    seen, own = situation.observation, situation.baseline.batch.global_size
    if not seen.rebatchable or seen.ema or seen.constraint:
        # Keras averages and constrains weights at every micro-step, so another number of them an update differs.
        return global_batch == own
    if seen.splits_only and global_batch != own:  # an update has to be one batch of the script
        update_is_batch = situation.baseline.batch.accumulation == 1
        return update_is_batch and global_batch * accumulation == own
    if seen.explicit_steps_per_epoch and seen.steps_per_epoch:
        return (seen.steps_per_epoch * own) % global_batch == 0
    return seen.samples is None or global_batch <= max(seen.samples, own)


def _one_an_octave(divisors: list[int], samples: int | None, effective: int) -> Iterator[int]:
    """At most one divisor in [2**k, 2**(k+1)): the batch divides the epoch, else a power of two, else the least."""

    def preference(accumulation: int) -> tuple[bool, bool, int]:
        leaves_remainder = bool(samples and samples % (effective // accumulation))
        return leaves_remainder, accumulation & (accumulation - 1) != 0, accumulation

    octaves: dict[int, list[int]] = {}
    for divisor in divisors:
        octaves.setdefault(divisor.bit_length(), []).append(divisor)
    return (min(octave, key=preference) for octave in octaves.values())


def _divisors(number: int) -> list[int]:
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def _matches(batch: Batch, fixed: Mapping[str, Any]) -> bool:
    sizes = batch.to_dict()
    return all(sizes[name] == fixed[name] for name in sizes if name in fixed)


def _layouts(baseline: TrainConfig, mesh: Mesh, fixed: bool | None, *, shard_state: bool) -> list[Layout]:
    """The baseline's own layout; sharded state needs more than one device."""
    own = baseline.layout
    if fixed is not None:
        return [Layout(fixed)] if mesh.data > 1 or not fixed else []
    return [own, Layout(shard_state=True)] if shard_state and mesh.data > 1 and not own.shard_state else [own]


def _listed(values: Iterable[int]) -> str:
    return ", ".join(str(value) for value in sorted(values))
