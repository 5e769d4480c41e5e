"""Builds the search space: every legal TrainConfig of a training on a cluster, and the reason for each exclusion.

A legal configuration trains like the script (the same effective batch unless it is freed, whole micro-steps an epoch
where the script counts them), divides over the mesh, and is free of known issues. Memory and speed are checked later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from autoplan.errors import ConfigError
from autoplan.jobs.messages import Observation
from autoplan.plan import knobs
from autoplan.plan.knobs import FLAG, Knob, Tuning, formatted
from autoplan.plan.records import Rejection
from autoplan.tuning.space.batch_hooks import without_lost_calls
from autoplan.tuning.space.batch_splits import legal_splits, on_all_devices, why_one_mesh
from autoplan.tuning.space.known_issues import Effect, KnownIssue, Versions, applying
from autoplan.tuning.space.legal_values import Legal, Situation, choices, independent_knobs, legal
from autoplan.tuning.space.limits import Limits, check_range_is_searched, checked_range, excluding_options
from autoplan.tuning.space.options import free_fields, parse_fix
from cost_models.config import Affects, Batch, Layout, Mesh, TrainConfig
from cost_models.hardware.cluster import Cluster

Drops = dict[str, tuple[KnownIssue, list[TrainConfig]]]
"""Known issues that forbid configurations, with those that each forbids."""


@dataclass(frozen=True)
class Space:
    """The baseline, the legal configurations, what was left out and why.

    configs       the baseline first, which no known issue leaves out
    excluded_by   what excludes the baseline from `configs`: the options, as the user wrote them, or a known issue; None
                  where it is in them
    by_issue      whether that is a known issue
    """

    baseline: TrainConfig
    configs: tuple[TrainConfig, ...]
    rejected: tuple[Rejection, ...]
    excluded_by: str | None = None
    by_issue: bool = False

    @property
    def kept(self) -> str:
        """The condition that excludes the baseline, as `with --fix remat=none`; "" where nothing does."""
        if self.excluded_by is None:
            return ""
        return f"{'without' if self.by_issue else 'with'} {self.excluded_by}"

    @property
    def advice(self) -> str:
        """Advice to leave the options out that exclude the baseline, as the end of a sentence; "" for a known issue."""
        return f", or leave {self.excluded_by} out" if self.excluded_by and not self.by_issue else ""


def legal_configs(
    observation: Observation,
    cluster: Cluster,
    versions: Versions,
    *,
    fix: Mapping[str, str] | None = None,
    only: Iterable[str] = (),
    effective_batch: tuple[int, int] | None = None,
    shard_state: bool = False,
) -> Space:
    """Return every legal TrainConfig. `effective_batch` is a range LO..HI in samples; None keeps the script's own.

    shard_state   list layouts that split state over the data axis, too (ZeRO-3): only where nothing fits without

    ConfigError when `--fix` is misspelt, impossible here, or leaves nothing; the message lists what would be legal.
    """
    baseline, named = observation.config, tuple(only)
    situation, asked = Situation(observation, baseline, cluster), free_fields(named)
    free = asked - observation.held.keys()
    limits = Limits(parse_fix(fix or {}), free, checked_range(effective_batch))
    _check_held(situation, limits.fixed)
    check_range_is_searched(situation, limits)
    chosen = {knob: choices(knob, situation, limits.fixed, free) for knob in independent_knobs()}
    _check_unchangeable(baseline, limits.fixed)
    may_shard = shard_state and "layout" not in observation.held
    splits = legal_splits(situation, limits, shard_state=may_shard)
    drops: Drops = {}
    held = _held_names(limits)
    by_options = excluding_options(situation, limits)
    excluded_by = by_options or _excluding_issue(observation, versions, drops)
    others = [
        config
        for config in _combinations(baseline, splits, chosen)
        if config != baseline and not _drop(config, observation, versions, held, drops)
    ]
    # The script runs as it is where it was written, so no other known issue leaves it out.
    configs = others if excluded_by else [baseline, *others]
    if not configs:
        raise ConfigError(_nothing_left(drops, observation, cluster, limits))
    free_batch = effective_batch is not None
    configs, lost = without_lost_calls(configs, observation, limits.fixed, batch_is_free=free_batch)
    left_out = (
        *_held_back(situation, asked),
        *_not_offered(situation, limits, named),
        *_rejections(drops, observation),
        *lost,
    )
    return Space(baseline, tuple(configs), left_out, excluded_by, by_issue=bool(excluded_by and not by_options))


def baseline_alone(
    observation: Observation,
    cluster: Cluster,
    *,
    fix: Mapping[str, str] | None = None,
    only: Iterable[str] = (),
    effective_batch: tuple[int, int] | None = None,
) -> Space | None:
    """Return a space without a legal configuration, for options that exclude the baseline; None if they do not.

    It is for a backend on which the options leave nothing, while they may leave something on another one: the baseline
    is then measured to compare with.
    """
    limits = Limits(parse_fix(fix or {}), free_fields(tuple(only)), checked_range(effective_batch))
    excluded_by = excluding_options(Situation(observation, observation.config, cluster), limits)
    return None if excluded_by is None else Space(observation.config, (), (), excluded_by)


def _excluding_issue(observation: Observation, versions: Versions, drops: Drops) -> str | None:
    """Return the known issue for which the script's own configuration is no candidate; it is recorded as dropped."""
    own = observation.config
    for issue in applying(own, observation, versions):
        if issue.excludes_own:
            drops[issue.id] = (issue, [own])
            return f"the known issue {issue.id}"
    return None


def _held_names(limits: Limits) -> frozenset[str]:
    """Return the flat names of knobs that the user does not let change."""
    frozen = {knob.name for name in knobs.tunable_fields() if name not in limits.free for knob in knobs.parts_of(name)}
    return frozenset(frozen | set(limits.fixed))


def _check_held(situation: Situation, fixed: Mapping[str, Any]) -> None:
    """Raise ConfigError where `--fix` sets another value than the source allows."""
    own = knobs.values(situation.baseline)
    for name, reason in situation.observation.held.items():
        for knob in knobs.parts_of(name):
            if knob.name in fixed and fixed[knob.name] != own.get(knob.name, fixed[knob.name]):
                raise ConfigError(
                    f"--fix {knob.spelling}={formatted(fixed[knob.name])}: it stays {formatted(own[knob.name])} here, "
                    f"because {reason}"
                )


def _check_unchangeable(baseline: TrainConfig, fixed: Mapping[str, Any]) -> None:
    """Raise ConfigError where `--fix` changes a knob that tuning does not change."""
    for knob in knobs.KNOBS:
        if knob.tuning in (Tuning.FIXED, Tuning.CHOSEN_BEFORE):
            own = knob.value(baseline)
            if fixed.get(knob.name, own) != own:
                raise ConfigError(
                    f"--fix {knob.spelling}={fixed[knob.name]}: not tuned; this training has {knob.spelling}={own}, "
                    "and --fix can only repeat that value"
                )


def _held_back(situation: Situation, asked: frozenset[str]) -> Iterator[Rejection]:
    """Yield one Rejection for each reason that holds knobs, with a configuration that it left out."""
    others = _held_values(situation)
    by_reason: dict[str, list[str]] = {}
    for name, reason in situation.observation.held.items():
        if name in asked and others.get(name):
            by_reason.setdefault(reason, []).append(name)
    for reason, names in by_reason.items():
        yield Rejection(
            config=others[names[0]][0],
            stage="held",
            reason=f"{' and '.join(names)} cannot be tuned here: {reason}",
            figures={"configurations": sum(len(others[name]) for name in names)},
        )


def _held_values(situation: Situation) -> dict[str, list[TrainConfig]]:
    """Return, for each field that a model or its source may hold, the baseline with the field's other values."""
    baseline = situation.baseline
    found = {"mesh": on_all_devices(situation)}
    for knob in independent_knobs():
        if Affects.PROCESS not in knob.affects:
            others = [value for value in legal(knob, situation).values if value != knob.value(baseline)]
            found[knob.field] = [knob.set(baseline, value) for value in others]
    return found


def _not_offered(situation: Situation, limits: Limits, named: Iterable[str]) -> Iterator[Rejection]:
    """Yield why a knob that `--only` names has one value only."""
    baseline, held = situation.baseline, situation.observation.held
    rows = {knob.field: knob for knob in independent_knobs()}
    for name in dict.fromkeys(word.strip().split(".")[0] for word in named):
        knob, reason, left_out = rows.get(name), None, baseline
        if name == "mesh" and name not in held:
            reason = why_one_mesh(situation, limits)
        if knob is not None:
            reason = held.get(name) if Affects.PROCESS in knob.affects else None
            reason = reason or legal(knob, situation).why_none
            left_out = knob.set(baseline, not knob.value(baseline)) if knob.kind is FLAG else baseline
        if reason:
            yield Rejection(
                config=left_out,
                stage="held",
                reason=f"{name} is not tuned here: {reason}",
                figures={"configurations": int(left_out != baseline)},
            )


def _combinations(
    baseline: TrainConfig,
    splits: list[tuple[Batch, Mesh, Layout]],
    chosen: Mapping[Knob, tuple[list[Any], Legal]],
) -> Iterator[TrainConfig]:
    """Yield every split with every value of the independent knobs that can be combined."""
    fields = _field_values(baseline, chosen)
    rules = [(rule.holds, len(listed) == 1) for listed, rule in chosen.values() if rule.holds is not None]
    for (batch, mesh, layout), *values in product(splits, *fields.values()):
        changes = dict(zip(fields, values, strict=True))
        config = baseline.with_(batch=batch, mesh=mesh, layout=layout, **changes)
        if all(holds(config, alone) for holds, alone in rules):
            yield config


def _field_values(baseline: TrainConfig, chosen: Mapping[Knob, tuple[list[Any], Legal]]) -> dict[str, list[Any]]:
    """Return the values of each field: those of its knob, or every combination where it has several knobs."""
    configs: dict[str, list[TrainConfig]] = {}
    for knob, (listed, _) in chosen.items():
        before = configs.get(knob.field, [baseline])
        configs[knob.field] = [knob.set(config, value) for config in before for value in listed]
    return {name: [getattr(config, name) for config in found] for name, found in configs.items()}


def _drop(
    config: TrainConfig, observation: Observation, versions: Versions, held: frozenset[str], drops: Drops
) -> bool:
    """Return whether a known issue forbids this configuration; the first one that does is recorded.

    A setting that gains nothing is still legal where the user holds the knob.
    """
    for issue in applying(config, observation, versions):
        held_anyway = issue.effect is Effect.NO_GAIN and issue.when.config.keys() <= held
        if issue.drops and not held_anyway:
            drops.setdefault(issue.id, (issue, []))[1].append(config)
            return True
    return False


def _rejections(drops: Drops, observation: Observation) -> Iterator[Rejection]:
    """Yield one Rejection for each issue, with the first configuration it dropped and how many there were."""
    for issue, configs in drops.values():
        yield Rejection(
            config=configs[0],
            stage="known_issue",
            reason=issue.describe(observation),
            figures={"issue": issue.id, "effect": issue.effect.value, "configurations": len(configs)},
            nearest=None,
        )


def _nothing_left(drops: Drops, observation: Observation, cluster: Cluster, limits: Limits) -> str:
    pinned = [one for one in drops.values() if one[0].when.config.keys() <= limits.fixed.keys()]
    reasons = "; ".join(
        f"{_settings(issue, configs[0])}: {issue.describe(observation)}" for issue, configs in pinned or drops.values()
    )
    if limits.fixed or limits.free != free_fields(()) - observation.held.keys():
        return f"--fix and --only leave no configuration that works: {reasons}. Fix other values, or leave knobs free"
    return f"no configuration of this training works on {cluster.name}: {reasons}"


def _settings(issue: KnownIssue, config: TrainConfig) -> str:
    """Return the settings that an issue is about, as `--fix` takes them."""
    rows = knobs.by_name()
    return ", ".join(f"{rows[name].spelling}={formatted(rows[name].value(config))}" for name in issue.when.config)
