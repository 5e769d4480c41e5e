"""What a rescue found, in a plan's values and in words: the least change that runs, and why no smaller one.

`ladder` decides what is tried.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from autoplan import formatting
from autoplan.plan.knobs import changes
from autoplan.plan.records import Evidence, Failure, Rescue, Rung, TrialRecord
from autoplan.tuning.oom_rescue.search import Change, Ladder, kinds_of_change
from autoplan.tuning.space.prune import Forecast
from cost_models.config import TrainConfig

MEANING: Mapping[Change, str] = {
    Change.ACCUMULATION: "accumulation keeps the effective batch, and with it the training",
    Change.PRECISION: "another precision keeps every setting of the training and rounds its numbers otherwise",
    Change.REMAT: "rematerialization keeps every number and computes again what it does not keep",
    Change.MESH: "another mesh keeps the training and takes other devices",
    Change.PROGRAM: "another way to run the program keeps the training",
    Change.TRAINING: "another effective batch is another training, and comes last",
}
SPOKEN: Mapping[Change, str] = {
    Change.ACCUMULATION: "accumulation",
    Change.PRECISION: "precision",
    Change.REMAT: "rematerialization",
    Change.MESH: "mesh",
    Change.PROGRAM: "program",
    Change.TRAINING: "effective batch",
}


def rescue(
    ladder: Ladder,
    baseline: TrialRecord,
    forecasts: Mapping[TrainConfig, Forecast],
    *,
    usable_bytes: int | None,
    batch_norm: bool,
) -> Rescue | None:
    """The least change that runs and why, as a plan keeps it; None when nothing ran."""
    least = ladder.least
    if least is None:
        return None
    tried = [_tried(ladder.baseline, record) for record in ladder.records]
    passed_over = [_passed_over(ladder, config, forecasts.get(config)) for config in _best_of_each_kind(ladder, least)]
    return Rescue(
        config=least.to_dict(),
        changed=changes(ladder.baseline, least),
        because=_because(ladder, least, batch_norm=batch_norm),
        baseline_bytes=_held(baseline.failure),
        usable_bytes=usable_bytes,
        tried=[*tried, *passed_over],
    )


def nothing_runs(
    ladder: Ladder, baseline: TrialRecord, forecasts: Mapping[TrainConfig, Forecast], usable_bytes: int | None
) -> str:
    """What to tell where no configuration runs: what each was seen to need, the least need, and what would fit."""
    own = [f"your own configuration {_ended(baseline.failure, usable_bytes)}"]
    others = [f"{_spoken(ladder.baseline, record)} {_ended(record.failure, None)}" for record in ladder.records]
    how = "forecast" if forecasts else "taken"
    rest = [f"what was not tried is {how} to need no less"] if len(ladder.order) > len(ladder.records) else []
    known = [one for config in ladder.order if (one := forecasts.get(config)) is not None and one.needed_bytes]
    least = min(known, key=lambda one: one.needed_bytes or 0, default=None)
    forecast = ""
    if least is not None and least.needed_bytes:
        size = formatting.size(least.needed_bytes)
        forecast = f" The least that is forecast for any of them is {size} (analytic; {least.config.describe()})."
    held = [held for record in (baseline, *ladder.records) if (held := _held(record.failure)) is not None]
    more = f"more than {formatting.size(max(usable_bytes or 0, min(held)))} of memory" if held else "more memory"
    return (
        f"no configuration of this training runs in the memory there is: {'; '.join([*own, *others, *rest])}."
        f"{forecast} What would fit: {more}, a smaller model, fewer pins (--fix, --only), or a smaller effective batch "
        f"(--effective-batch 1..{ladder.baseline.batch.effective}), which is another training"
    )


def spoken_changes(baseline: TrainConfig, config: TrainConfig) -> str:
    """A change in words, with what it makes of the batch: `accumulation 4 (batch 64 -> 16x4)`."""
    words = ", ".join(changes(baseline, config)) or "no change"
    return words if config.batch == baseline.batch else f"{words} (batch {_split(baseline)} -> {_split(config)})"


def _split(config: TrainConfig) -> str:
    batch = config.batch
    return f"{batch.global_size}x{batch.accumulation}" if batch.accumulation > 1 else str(batch.global_size)


def _because(ladder: Ladder, least: TrainConfig, *, batch_norm: bool) -> str:
    """What the change keeps, what less was not enough, and what is another all the same."""
    baseline, kinds = ladder.baseline, kinds_of_change(ladder.baseline, least)
    parts = [MEANING[kind] for kind in kinds]
    parts += [f"no other {SPOKEN[kind]} is legal here" for kind in _illegal(ladder, kinds)]
    smaller = _smaller(ladder, least)
    if smaller:
        tried = [r for r in ladder.records if TrainConfig.from_dict(r.config) in smaller and r.failure is not None]
        told = formatting.listed([f"{_spoken(baseline, r)} {_ended(r.failure, None)}" for r in tried])
        over = len(smaller) - len(tried)
        passed = f"{over} more are forecast not to run or were passed over" if over else ""
        parts.append(f"less is not enough: {'; '.join(part for part in (told, passed) if part)}")
    else:
        parts.append("there is no smaller change")
    if batch_norm and baseline.batch.global_size != least.batch.global_size:
        parts.append(
            f"BatchNormalization takes its statistics over {least.batch.global_size} samples instead of "
            f"{baseline.batch.global_size}, which nothing can keep"
        )
    return "; ".join(parts)


def _illegal(ladder: Ladder, kinds: Sequence[Change]) -> list[Change]:
    """Smaller changes than these that nothing allows: pinned, or ruled out by the data or by known issues."""
    there = {kind for config in ladder.order for kind in kinds_of_change(ladder.baseline, config)}
    return [kind for kind in Change if kind < min(kinds) and kind not in there]


def _smaller(ladder: Ladder, least: TrainConfig) -> list[TrainConfig]:
    """Less change than `least`, and less need than the baseline, which is what a rescue is about."""
    own = ladder.needed[ladder.baseline].high
    before = ladder.order[: ladder.order.index(least)]
    return [config for config in before if ladder.needed[config].high < own]


def _best_of_each_kind(ladder: Ladder, least: TrainConfig) -> list[TrainConfig]:
    """Of what is less change and was not tried: of each set of kinds the one that needs least, its best hope."""
    tried = {TrainConfig.from_dict(record.config) for record in ladder.records}
    best: dict[tuple[Change, ...], TrainConfig] = {}
    for config in ladder.order[: ladder.order.index(least)]:
        kinds = kinds_of_change(ladder.baseline, config)
        known = best.get(kinds)
        if config not in tried and (known is None or ladder.needed[config].high < ladder.needed[known].high):
            best[kinds] = config
    return list(best.values())


def _tried(baseline: TrainConfig, record: TrialRecord) -> Rung:
    failure = record.failure
    outcome: Literal["runs", "out_of_memory", "failed"] = "runs"
    if failure is not None:
        outcome = "out_of_memory" if failure.out_of_memory else "failed"
    return Rung(
        config=record.config,
        changed=changes(baseline, TrainConfig.from_dict(record.config)),
        outcome=outcome,
        evidence=Evidence.MEASURED,
        reason="" if failure is None else next(iter(failure.message.splitlines()), ""),
        needed_bytes=_held(failure),
    )


def _passed_over(ladder: Ladder, config: TrainConfig, forecast: Forecast | None) -> Rung:
    return Rung(
        config=config.to_dict(),
        changed=changes(ladder.baseline, config),
        outcome="passed_over",
        evidence=Evidence.ANALYTIC,
        reason=ladder.why_not(config),
        needed_bytes=None if forecast is None else forecast.least_bytes,
    )


def _spoken(baseline: TrainConfig, record: TrialRecord) -> str:
    return ", ".join(changes(baseline, TrainConfig.from_dict(record.config))) or "no change"


def _ended(failure: Failure | None, usable_bytes: int | None) -> str:
    """`ran out of memory at 1.02 GiB`, or what else ended it."""
    if failure is None:
        return "runs"
    if not failure.out_of_memory:
        return f"failed ({failure.kind.value}: {next(iter(failure.message.splitlines()), '')})"
    held, of = failure.held_bytes, "" if usable_bytes is None else f" of {formatting.size(usable_bytes)}"
    return f"ran out of memory at {formatting.size(held)}{of}" if held is not None else "ran out of memory"


def _held(failure: Failure | None) -> int | None:
    return failure.held_bytes if failure is not None and failure.out_of_memory else None
