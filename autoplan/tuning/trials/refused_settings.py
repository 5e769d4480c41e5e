"""Finds the candidates that share the settings for which trials were refused, so that a refusal is met once or twice.

A refusal is a failure of kind "unsupported": the script, Keras or the backend raised an exception under a candidate.
One refusal ends the candidates that differ from it in the batch only. Two refusals with the same message end all that
have what both changed. A setting with which a trial was measured is never ended.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any

from autoplan.formatting import first_line
from autoplan.plan.records import FailureKind, TrialRecord
from cost_models.config import Affects, TrainConfig
from cost_models.execution import Executor

Changes = frozenset[tuple[str, Any]]
"""Settings in which a configuration differs from the baseline, with their values. The batch has no value here."""
_BATCH = ("batch", None)
_NUMBERS = re.compile(r"\d+")


def refused_by(config: TrainConfig, baseline: TrainConfig, records: Sequence[TrialRecord]) -> TrialRecord | None:
    """Return the trial whose refusal rules out a configuration; None where no refusal does."""
    refused = [one for one in records if one.failure is not None and one.failure.kind is FailureKind.UNSUPPORTED]
    measured = [one.config for one in records if one.measurement is not None]
    for one in refused:
        if _same_but_for_the_batch(config, one.config, baseline) and not _runs(one.config, baseline, measured):
            return one
    for one, other in combinations(refused, 2):
        if common_reason(one) != common_reason(other):
            continue
        common = changed(one.config, baseline) & changed(other.config, baseline)
        executors = {Executor.of(one.config), Executor.of(other.config)}
        if (
            common
            and _has(config, baseline, common, executors)
            and not any(_has(ran, baseline, common, executors) for ran in measured)
        ):
            return other
    return None


def changed(config: TrainConfig, baseline: TrainConfig) -> Changes:
    """Return the settings in which a configuration differs from the baseline, but for those of the process alone."""
    names = [
        name
        for name in config.settings()
        if getattr(config, name) != getattr(baseline, name) and config.affects(name) != Affects.PROCESS
    ]
    return frozenset(_BATCH if name == "batch" else (name, getattr(config, name)) for name in names)


def common_reason(record: TrialRecord) -> str:
    """Return the first line of a failure without its configuration and without numbers, which depend on the batch."""
    message = first_line(record.failure.message) if record.failure is not None else ""
    return _NUMBERS.sub("#", message.replace(record.config.describe(), ""))


def _same_but_for_the_batch(config: TrainConfig, refused: TrainConfig, baseline: TrainConfig) -> bool:
    """Return whether two configurations differ in the batch only, and the batch is not what was refused."""
    tried, theirs = changed(config, baseline), changed(refused, baseline)
    return tried - {_BATCH} == theirs - {_BATCH} != frozenset() and (_BATCH not in theirs or _BATCH in tried)


def _runs(refused: TrainConfig, baseline: TrainConfig, measured: Iterable[TrainConfig]) -> bool:
    """Return whether the refused settings run under another batch."""
    settings = changed(refused, baseline) - {_BATCH}
    return any(changed(one, baseline) - {_BATCH} == settings for one in measured)


def _has(config: TrainConfig, baseline: TrainConfig, settings: Changes, executors: Iterable[Executor]) -> bool:
    return settings <= changed(config, baseline) and Executor.of(config) in executors
