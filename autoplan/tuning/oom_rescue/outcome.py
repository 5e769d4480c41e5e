"""Describes the outcome of an out-of-memory rescue: the smallest change that runs, or a message that nothing runs.

`search` decides what is tried.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from autoplan import formatting
from autoplan.jobs.messages import Observation
from autoplan.plan.knobs import Tradeoff, changes
from autoplan.plan.records import Evidence, Failure, Rescue, Rung, TrialRecord
from autoplan.tuning.candidate_estimate import CandidateEstimate
from autoplan.tuning.oom_rescue.change_order import MEANING, NAMES, kinds_of_change
from autoplan.tuning.oom_rescue.search import RescueSearch
from autoplan.tuning.space.held_batch import why_batch_held
from autoplan.tuning.space.prune import not_split
from cost_models.config import TrainConfig


def rescue(
    search: RescueSearch,
    baseline: TrialRecord,
    estimates: Mapping[TrainConfig, CandidateEstimate],
    *,
    usable_bytes: int | None,
    observation: Observation,
) -> Rescue | None:
    """Return the smallest change that runs and why, as a plan records it; None when nothing ran."""
    least = search.least
    if least is None:
        return None
    tried = [_tried(search.baseline, record) for record in search.records]
    passed_over = [_passed_over(search, config, estimates.get(config)) for config in _best_of_each_kind(search, least)]
    return Rescue(
        config=least,
        changed=changes(search.baseline, least),
        because=_because(search, least, observation),
        baseline_bytes=_held(baseline.failure),
        usable_bytes=usable_bytes,
        tried=[*tried, *passed_over],
    )


def nothing_runs(
    search: RescueSearch,
    baseline: TrialRecord,
    estimates: Mapping[TrainConfig, CandidateEstimate],
    usable_bytes: int | None,
    held: str | None = None,
) -> str:
    """Return the message where no configuration runs: what each needed, the least need, and what would fit.

    held   why the batch is not split (`held_batch.why_batch_held`)
    """
    own = [f"the baseline (your own configuration) {_ended(baseline.failure, usable_bytes)}"]
    others = [f"{_changed(search.baseline, record)} {_ended(record.failure, None)}" for record in search.records]
    basis = "estimated" if estimates else "assumed"
    rest = [f"all others are {basis} to need no less"] if len(search.order) > len(search.records) else []
    known = [one for config in search.order if (one := estimates.get(config)) is not None and one.needed_bytes]
    least = min(known, key=lambda one: one.needed_bytes or 0, default=None)
    estimate = ""
    if least is not None and least.needed_bytes:
        size = formatting.size(least.needed_bytes)
        estimate = f" The least estimate for any of them is {size} (analytic; {least.config.describe()})."
    used = [used for record in (baseline, *search.records) if (used := _held(record.failure)) is not None]
    more = f"more than {formatting.size(max(usable_bytes or 0, min(used)))} of memory" if used else "more memory"
    return (
        f"no configuration of this training runs in the available memory: {'; '.join([*own, *others, *rest])}."
        f"{estimate} What would fit: {more}, a smaller model, fewer restrictions (--fix, --only), or a smaller "
        f"effective batch (--effective-batch 1..{search.baseline.batch.effective}), which is another training"
        f"{not_split(held)}"
    )


def described_changes(baseline: TrainConfig, config: TrainConfig) -> str:
    """Return a change in words, with the batch before and after: `accumulation 4 (batch 64 → 16)`."""
    words = ", ".join(changes(baseline, config)) or "no change"
    before, after = baseline.batch.global_size, config.batch.global_size
    return words if before == after else f"{words} (batch {before} → {after})"


def _because(search: RescueSearch, least: TrainConfig, observation: Observation) -> str:
    """Return what the change keeps, why smaller changes are not enough, and what differs nevertheless."""
    baseline, kinds = search.baseline, kinds_of_change(search.baseline, least)
    parts = [f"{MEANING[kind]}{_compared(kind, observation)}" for kind in kinds]
    parts += [f"no other {NAMES[kind]} is legal here{_why(kind, observation)}" for kind in _illegal(search, kinds)]
    smaller = _smaller(search, least)
    if smaller:
        tried = [r for r in search.records if r.config in smaller and r.failure is not None]
        failed = formatting.listed([f"{_changed(baseline, r)} {_ended(r.failure, None)}" for r in tried])
        over = len(smaller) - len(tried)
        passed = f"{over} more are estimated not to run or were passed over" if over else ""
        parts.append(f"smaller changes are not enough: {'; '.join(part for part in (failed, passed) if part)}")
    else:
        parts.append("there is no smaller change")
    if observation.takes_batch_statistics and baseline.batch.global_size != least.batch.global_size:
        parts.append(
            f"BatchNormalization takes its statistics over {least.batch.global_size} samples instead of "
            f"{baseline.batch.global_size}; no configuration with this change avoids that"
        )
    return "; ".join(parts)


def _compared(kind: Tradeoff, observation: Observation) -> str:
    """Return what is known of the training with another accumulation: what a probe compared, or that none was made."""
    if kind is not Tradeoff.ACCUMULATION:
        return ""
    probe = observation.probe
    if probe is None or probe.split != "same":
        return "; whether it keeps the training was not compared"
    drawn = ", apart from random numbers" if probe.random_draws else ""
    return f", and with it the training, as far as it was compared{drawn} ({probe.compared})"


def _why(kind: Tradeoff, observation: Observation) -> str:
    """Return why the batch is held, where another accumulation is not legal; "" where `--fix` rules it out."""
    held = why_batch_held(observation) if kind is Tradeoff.ACCUMULATION else None
    return f", because {held}" if held else ""


def _illegal(search: RescueSearch, kinds: Sequence[Tradeoff]) -> list[Tradeoff]:
    """Return smaller kinds of change that are not legal: fixed, or ruled out by the data or by known issues."""
    legal = {kind for config in search.order for kind in kinds_of_change(search.baseline, config)}
    return [kind for kind in Tradeoff if kind < min(kinds) and kind not in legal]


def _smaller(search: RescueSearch, least: TrainConfig) -> list[TrainConfig]:
    """Return the configurations with less change than `least` and less need than the baseline."""
    own = search.needed[search.baseline].high
    before = search.order[: search.order.index(least)]
    return [config for config in before if search.needed[config].high < own]


def _best_of_each_kind(search: RescueSearch, least: TrainConfig) -> list[TrainConfig]:
    """Return, for each set of kinds of change smaller than `least`, the untried configuration that needs least."""
    tried = {record.config for record in search.records}
    best: dict[tuple[Tradeoff, ...], TrainConfig] = {}
    for config in search.order[: search.order.index(least)]:
        kinds = kinds_of_change(search.baseline, config)
        known = best.get(kinds)
        if config not in tried and (known is None or search.needed[config].high < search.needed[known].high):
            best[kinds] = config
    return list(best.values())


def _tried(baseline: TrainConfig, record: TrialRecord) -> Rung:
    failure = record.failure
    outcome: Literal["runs", "out_of_memory", "failed"] = "runs"
    if failure is not None:
        outcome = "out_of_memory" if failure.out_of_memory else "failed"
    return Rung(
        config=record.config,
        changed=changes(baseline, record.config),
        outcome=outcome,
        evidence=Evidence.MEASURED,
        reason="" if failure is None else formatting.first_line(failure.message),
        needed_bytes=_held(failure),
    )


def _passed_over(search: RescueSearch, config: TrainConfig, estimate: CandidateEstimate | None) -> Rung:
    return Rung(
        config=config,
        changed=changes(search.baseline, config),
        outcome="passed_over",
        evidence=Evidence.ANALYTIC,
        reason=search.why_not(config),
        needed_bytes=None if estimate is None else estimate.least_bytes,
    )


def _changed(baseline: TrainConfig, record: TrialRecord) -> str:
    return ", ".join(changes(baseline, record.config)) or "no change"


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
