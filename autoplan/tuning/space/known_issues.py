"""Reads `known_issues.yaml` (settings that Keras rejects or computes wrongly), and matches it to configurations.

The issues are data in `known_issues.yaml`, each with its citation. This module reads them, checks them and matches them
against a configuration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import Any, Protocol

import yaml
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from autoplan import formatting
from autoplan.errors import ConfigError
from autoplan.jobs.messages import LAYER_FACTS
from autoplan.plan import knobs
from cost_models.config import Batch, TrainConfig


class Effect(StrEnum):
    """The effect of an issue on a configuration that meets its conditions."""

    REJECTED = "rejected"
    WRONG = "wrong"
    NO_GAIN = "no_gain"
    HANDLED = "handled"
    NOTED = "noted"


class ModelFacts(Protocol):
    """The facts of a model that an issue can depend on. `jobs.Observation` has them."""

    @property
    def batch_norm(self) -> bool: ...
    @property
    def random_layers(self) -> bool: ...
    @property
    def recurrent(self) -> bool: ...
    @property
    def custom_train_step(self) -> bool: ...
    @property
    def unscaled_train_step(self) -> bool: ...
    @property
    def layer_kinds(self) -> list[str]: ...
    def layers_with(self, fact: str) -> list[str]: ...


@dataclass(frozen=True)
class Versions:
    """The versions and the hardware that a configuration would run on.

    An unknown version ("") matches every range, so that an issue is never missed.

    hardware   kind of the device: cpu | gpu | tpu
    """

    keras: str = ""
    backend: str = ""
    hardware: str = ""


LAYERS_SHOWN = 3
"""Layers that a reason names; the others are counted."""
MODEL_FACTS = frozenset({"batch_norm", "random_layers", "recurrent", "custom_train_step", "unscaled_train_step"})


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class AtLeast(_Strict):
    """A knob whose value is a number of at least this."""

    at_least: int


class When(_Strict):
    """The conditions of an issue. All must hold; a condition that is left out always holds."""

    backend: list[str] = []
    keras: str = ""
    backend_version: str = ""
    hardware: list[str] = []
    model: dict[str, bool] = {}
    layer_kinds: list[str] = []
    layers_with: str = ""
    config: dict[str, AtLeast | list[str | int | bool]] = Field(min_length=1)

    @field_validator("keras", "backend_version")
    @classmethod
    def _is_range(cls, text: str) -> str:
        try:
            SpecifierSet(text)
        except InvalidSpecifier:
            raise ValueError(f"{text!r} is not a version range; expected for example '>=3.13,<3.16'") from None
        return text

    @field_validator("model")
    @classmethod
    def _names_facts(cls, facts: dict[str, bool]) -> dict[str, bool]:
        return _only_known(facts, MODEL_FACTS)

    @field_validator("layers_with")
    @classmethod
    def _names_layer_fact(cls, name: str) -> str:
        return next(iter(_only_known({name: True}, LAYER_FACTS))) if name else name

    @field_validator("config")
    @classmethod
    def _names_knobs(cls, conditions: dict[str, Any]) -> dict[str, Any]:
        return _only_known(conditions, frozenset(knobs.values(TrainConfig(Batch(1)))))


class KnownIssue(_Strict):
    """One issue: its conditions, its effect, the reason, and the citation.

    excludes_own   the script's own configuration is no candidate for a plan either
    """

    id: str
    when: When
    effect: Effect
    reason: str = Field(min_length=10)
    citation: str = Field(min_length=5)
    excludes_own: bool = False

    @property
    def drops(self) -> bool:
        """Return whether a configuration with this issue is left out of the space."""
        return self.effect not in (Effect.HANDLED, Effect.NOTED)

    def describe(self, facts: ModelFacts) -> str:
        """Return the reason with its citation, as plans show it, and the layers that it is about."""
        layers = facts.layers_with(self.when.layers_with) if self.when.layers_with else []
        more = [f"{len(layers) - LAYERS_SHOWN} more"] if len(layers) > LAYERS_SHOWN else []
        named = formatting.listed([*layers[:LAYERS_SHOWN], *more])
        return f"{self.reason}{f': {named}' if named else ''} [{self.citation}]"


class _File(_Strict):
    schema_: int = Field(alias="schema", ge=1, le=1)
    issues: list[KnownIssue]


def parse(text: str) -> tuple[KnownIssue, ...]:
    """Return the issues of a YAML text. ConfigError names the entry that does not follow the schema."""
    try:
        issues = _File.model_validate(yaml.safe_load(text)).issues
    except (ValidationError, yaml.YAMLError) as error:
        raise ConfigError(f"known issues that cannot be read: {error}") from None
    seen: set[str] = set()
    for issue in issues:
        if issue.id in seen:
            raise ConfigError(f"known issue {issue.id!r} is written twice; each id may occur once")
        seen.add(issue.id)
    return tuple(issues)


@cache
def known_issues() -> tuple[KnownIssue, ...]:
    """Return the issues that ship with this version."""
    return parse(files("autoplan.tuning.space").joinpath("known_issues.yaml").read_text(encoding="utf-8"))


def applying(
    config: TrainConfig, facts: ModelFacts, versions: Versions, issues: Sequence[KnownIssue] | None = None
) -> list[KnownIssue]:
    """Return the issues whose conditions this configuration meets, for this model and these versions."""
    candidates = known_issues() if issues is None else issues
    return [one for one in candidates if _holds_for(one.when, config, versions) and _holds_of(one.when, facts)]


def still_applies(issue_id: str, config: TrainConfig, versions: Versions) -> KnownIssue | None:
    """Return an issue that was found to apply to a model, if it holds for this configuration and these versions."""
    found = next((issue for issue in known_issues() if issue.id == issue_id), None)
    return found if found is not None and _holds_for(found.when, config, versions) else None


def _holds_for(when: When, config: TrainConfig, versions: Versions) -> bool:
    """Return whether the conditions hold that are not about the model."""
    values = knobs.values(config)
    return (
        (not when.backend or config.backend in when.backend)
        and (not when.hardware or versions.hardware in when.hardware)
        and all(_meets(values[name], condition) for name, condition in when.config.items())
        and _in_range(versions.keras, when.keras)
        and _in_range(versions.backend, when.backend_version)
    )


def _holds_of(when: When, facts: ModelFacts) -> bool:
    return (
        all(getattr(facts, name) is wanted for name, wanted in when.model.items())
        and (not when.layers_with or bool(facts.layers_with(when.layers_with)))
        and (not when.layer_kinds or not set(when.layer_kinds).isdisjoint(facts.layer_kinds))
    )


def _meets(value: Any, condition: AtLeast | list[str | int | bool]) -> bool:
    if isinstance(condition, AtLeast):
        return bool(value >= condition.at_least)
    return any(value == allowed and type(value) is type(allowed) for allowed in condition)


def _in_range(version: str, allowed: str) -> bool:
    if not allowed or not version:
        return True
    try:
        return SpecifierSet(allowed).contains(Version(version), prereleases=True)
    except InvalidVersion:
        return True


def _only_known(mapping: dict[str, Any], known: frozenset[str]) -> dict[str, Any]:
    unknown = sorted(set(mapping) - known)
    if unknown:
        raise ValueError(f"unknown {', '.join(unknown)}; expected any of {', '.join(sorted(known))}")
    return mapping
