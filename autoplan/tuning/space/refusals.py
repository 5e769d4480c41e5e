"""Explains why no batch of a training is legal under the user's options: the cause, and the options that would work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from autoplan import formatting
from autoplan.jobs.messages import Observation
from autoplan.tuning.space.held_batch import why_batch_held, why_not_split
from autoplan.tuning.space.legal_values import Situation
from autoplan.tuning.space.limits import Limits
from cost_models.config import Batch

_SIZES = ("global", "local", "accumulation", "effective")


def accumulation_is_held(observation: Observation) -> bool:
    """Return whether not even another effective batch may have another number of micro-steps per update."""
    per_micro_step = observation.ema or bool(observation.constraint) or bool(observation.own_optimizers)
    return per_micro_step or why_not_split(observation) is not None


def no_batch(
    every: Sequence[Batch],
    situation: Situation,
    data_axes: Sequence[int],
    limits: Limits,
    splits_over: Callable[[int], bool],
) -> str:
    """Return why no batch is left, and what works in the same command.

    every        the batches that are legal but for the sizes that `--fix` sets
    splits_over  whether some batch is legal on a data axis of this size
    """
    held, asked = why_batch_held(situation.observation), _asked(limits)
    own = situation.baseline.batch.effective
    if held is not None and (asked or limits.outside_range(own)):
        return _held(situation, held, asked or limits.range_option, limits)
    if every:
        return _no_such_size(every, situation, limits)
    return _no_such_mesh(situation, data_axes, limits, splits_over)


def _held(situation: Situation, reason: str, asked: str, limits: Limits) -> str:
    own, wanted = situation.baseline.batch, int(limits.fixed.get("accumulation", 0))
    message = f"{asked}: the batch stays {_split(own)} here, because {reason}"
    may_accumulate = wanted > 0 and not accumulation_is_held(situation.observation)
    if may_accumulate and not limits.fixed.keys() & {"global", "local", "effective"}:
        effective = own.global_size * wanted
        return (
            f"{message}. An accumulation of {wanted} only goes with another effective batch, which is another "
            f"training: add --effective-batch {effective}, or leave {asked} out"
        )
    return f"{message}; leave {asked} out"


def _no_such_size(every: Sequence[Batch], situation: Situation, limits: Limits) -> str:
    """Return the legal values of the sizes that are set: each with the others' values where that is possible."""
    names = [name for name in _SIZES if name in limits.fixed]
    legal = "; ".join(f"{name}: {_listed(_values(name, names, every, limits))}" for name in names)
    own = situation.baseline.batch.effective
    same = f" with an effective batch of {own}" if limits.effective_range is None else ""
    freed = limits.fixed.get("effective", own)
    other = "" if freed == own else f"; --effective-batch {freed} allows another one, which is another training"
    return f"{_asked(limits)}: no batch of this training can be split like this{same}; legal values are {legal}{other}"


def _values(name: str, names: Sequence[str], every: Sequence[Batch], limits: Limits) -> set[int]:
    sizes = [batch.to_dict() for batch in every]
    with_others = {
        one[name] for one in sizes if all(one[other] == limits.fixed[other] for other in names if other != name)
    }
    return with_others or {one[name] for one in sizes}


def _no_such_mesh(
    situation: Situation, data_axes: Sequence[int], limits: Limits, splits_over: Callable[[int], bool]
) -> str:
    effective = situation.baseline.batch.effective
    size = limits.range_option if limits.effective_range else f"the effective batch of {effective}"
    devices = formatting.counted(max(data_axes), "device")
    available = max(1, situation.cluster.devices // situation.baseline.mesh.model)
    works = [axis for axis in range(1, available + 1) if available % axis == 0 and splits_over(axis)]
    helps = [f"--fix mesh=data={axis}" for axis in works]
    held = why_batch_held(situation.observation)
    if held is None:
        helps.append(f"--effective-batch {_next_multiple(effective, max(data_axes))}, which is another training")
    stays = "" if held is None else f", and it stays because {held}"
    works_here = formatting.listed(helps, "or")
    return f"{size} cannot be split over {devices} on the data axis{stays}; what works here: {works_here}"


def _next_multiple(number: int, of: int) -> int:
    return -(-number // of) * of


def _asked(limits: Limits) -> str:
    return " ".join(f"--fix batch.{name}={limits.fixed[name]}" for name in _SIZES if name in limits.fixed)


def _split(batch: Batch) -> str:
    """Return the global batch and the accumulation: `64`, or `64 with an accumulation of 2`."""
    return f"{batch.global_size}" + (f" with an accumulation of {batch.accumulation}" if batch.accumulation > 1 else "")


def _listed(values: Iterable[int]) -> str:
    return ", ".join(str(value) for value in sorted(values))
