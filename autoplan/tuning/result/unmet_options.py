"""Ends a tuning with an error where no configuration that keeps the user's options was measured.

A plan that breaks a pin would be worse than none: the user would train with it unnoticed.
"""

from __future__ import annotations

from collections.abc import Sequence

from autoplan import formatting
from autoplan.errors import NoFeasibleConfiguration, NothingMeasured
from autoplan.plan.records import FAILURES, TrialRecord
from autoplan.tuning.space.legal_configs import Space
from autoplan.tuning.trials.refused_settings import common_reason
from autoplan.tuning.trials.runner import Tried

CAUSES_SHOWN = 3
"""The number of different failures that the message lists."""


def check_options_kept(
    space: Space, tried: Tried, ranked: Sequence[TrialRecord], *, trial_seconds: float, notes: Sequence[str] = ()
) -> None:
    """Raise NoFeasibleConfiguration where options exclude the baseline and no other configuration was measured.

    notes   what was found before the trials, which may say why

    NothingMeasured where none was tried either. KeyboardInterrupt where the trials were interrupted: there is no result
    that could be written.
    """
    if space.excluded_by is None or ranked:
        return
    if tried.interrupted:
        raise KeyboardInterrupt
    legal = frozenset(space.configs)
    failed = [record for record in tried.records if record.config in legal and record.failure is not None]
    if not failed:
        raise NothingMeasured(_none_tried(space, tried, trial_seconds, notes))
    raise NoFeasibleConfiguration(_all_failed(space, failed, tried))


def _none_tried(space: Space, tried: Tried, trial_seconds: float, notes: Sequence[str]) -> str:
    seconds = formatting.duration(trial_seconds)
    found = "".join(f". Before the trials: {note}" for note in notes)
    return (
        f"no configuration {space.kept} was measured: trials ended because {tried.ended}. Your own configuration is "
        f"measured first, and a trial takes about {seconds}: give a larger --budget or more --trials"
        f"{space.advice}{found}"
    )


def _all_failed(space: Space, failed: Sequence[TrialRecord], tried: Tried) -> str:
    alike: dict[tuple[str, str], list[TrialRecord]] = {}
    for record in failed:
        kind = "" if record.failure is None else record.failure.kind.value
        alike.setdefault((kind, common_reason(record)), []).append(record)
    causes = [_cause(group) for group in alike.values()]
    by = space.excluded_by
    why = f"it would not keep {by}; leave {by} out, or change the script so that it runs with it"
    if not space.advice:
        why = f"the baseline has {by}; change the script so that it runs without it"
    more = [f"{len(causes) - CAUSES_SHOWN} more with other causes"] if len(causes) > CAUSES_SHOWN else []
    return (
        f"no configuration {space.kept} runs: {'; '.join([*causes[:CAUSES_SHOWN], *more])}. "
        f"Trials ended because {tried.ended}. No plan is written, because {why}"
    )


def _cause(alike: Sequence[TrialRecord]) -> str:
    """Return the first of several trials that failed for one reason, and how many others did."""
    first = alike[0]
    others = f", and {formatting.counted(len(alike) - 1, 'other trial')} likewise" if len(alike) > 1 else ""
    if first.failure is None:
        return first.config.describe()
    why = f"{FAILURES[first.failure.kind]}: {formatting.first_line(first.failure.message)}"
    return f"trial {first.number}, {first.config.describe()} ({why}){others}"
