"""Checks whether a plan is still valid here: compares its versions, hardware and source with the present ones."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

from autoplan import formatting
from autoplan._version import __version__
from autoplan.errors import SourceError
from autoplan.machine import hardware_profile, process_settings, this_machine
from autoplan.plan import file, knobs
from autoplan.plan.records import Environment, HardwareRecord, Plan, SourceRecord
from autoplan.tuning.space.known_issues import Versions, still_applies
from cost_models.hardware.cluster import Cluster

_DISTRIBUTIONS = {
    "jax": ("jax",),
    "tensorflow": ("tensorflow", "tensorflow-cpu", "tensorflow-macos"),
    "torch": ("torch",),
}
_LIVE = ("callable", "instance")
"""Kinds of sources that have no file."""
_NOT_INSTALLED = "not installed"
_CAPACITY_TOLERANCE = 0.05


@dataclass(frozen=True)
class Here:
    """The present state of everything that a plan depends on.

    source_sha256      None where the source cannot be read; `why` then gives the reason
    missing_settings   process settings that this system lacks, with their value here
    """

    environment: Environment
    hardware: HardwareRecord
    source_sha256: str | None
    why: str = ""
    missing_settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Difference:
    """A value that differs from the plan's. `matters`: the plan is not valid here because of it."""

    key: str
    planned: str
    here: str
    matters: bool

    def __str__(self) -> str:
        return f"{self.key}: the plan has {self.planned}; here: {self.here}"


@dataclass(frozen=True)
class Verdict:
    """The differences of a plan; it is valid when none of them matters."""

    differences: tuple[Difference, ...]

    @property
    def valid(self) -> bool:
        """Return whether no difference matters."""
        return not any(difference.matters for difference in self.differences)

    def lines(self, name: str) -> list[str]:
        """Return a line for the verdict and a line for each difference, first those that matter."""
        ordered = sorted(self.differences, key=lambda difference: not difference.matters)
        lines = [f"{'differs' if one.matters else 'changed'}: {one}" for one in ordered]
        if not self.valid:
            return [f"{name} is not valid here. Tune again, or restore the differing values:", *lines]
        return [f"{name} is valid here" + (". These changes do not affect it:" if lines else ""), *lines]

    def warnings(self, name: str) -> list[str]:
        """Return a warning for each difference that matters, for a training with the plan in spite of it."""
        differing = [str(one) for one in self.differences if one.matters]
        return [f"{name} was tuned for a different setup, so its figures may not apply ({one})" for one in differing]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for `--format json`."""
        return {"schema": 1, "valid": self.valid, "differences": [vars(one) for one in self.differences]}


def verdict(plan: Plan, here: Here) -> Verdict:
    """Return the verdict on a plan, without reading anything from this machine."""
    return Verdict(tuple(check(plan, here)))


def check(plan: Plan, here: Here) -> Iterator[Difference]:
    """Yield the differences between a plan and the present state."""
    digest = here.source_sha256
    if digest != plan.source.sha256 and not (digest is None and plan.source.kind in _LIVE):
        found = here.why or (f"sha256 {digest[:12]}" if digest else "no source")
        yield Difference("source", f"sha256 {plan.source.sha256[:12]}", found, True)
    for key, planned, able in file.unsupported(plan):
        yield Difference(key, planned, f"only {able}", True)
    for name, value in process_settings.wanted(plan.config).items():
        if name in here.missing_settings:
            yield Difference(f"config.{name}", knobs.formatted(value), here.missing_settings[name], True)
    yield from _known_issues(plan, here.environment)
    yield from _versions(plan.environment, here.environment)
    yield from _hardware(plan.hardware, here.hardware)


def here(plan: Plan) -> Here:
    """Return the present state of this machine for the plan. Imports no framework."""
    digest, why = _source_digest(plan.source)
    missing = process_settings.missing_here()
    return Here(_environment(plan.environment.backend), _local_hardware(plan), digest, why, missing)


def _known_issues(plan: Plan, environment: Environment) -> Iterator[Difference]:
    """Yield the settings of a plan that a known issue of its baseline forbids on its hardware."""
    versions = Versions(environment.keras, environment.backend_version, plan.hardware.kind)
    rows = knobs.by_name()
    for name in plan.baseline.issues:
        issue = still_applies(name, plan.config, versions)
        if issue is None:
            continue
        for knob in (rows[knob] for knob in issue.when.config):
            value = knobs.formatted(knob.value(plan.config))
            yield Difference(f"config.{knob.spelling}", value, f"{issue.reason} [{issue.citation}]", True)


def _versions(planned: Environment, found: Environment) -> Iterator[Difference]:
    """Yield differing versions; only another release of Keras or the backend, not a bug-fix release, matters."""
    for key in ("backend", "platform", "keras", "backend_version", "python", "autoplan"):
        old, new = getattr(planned, key), getattr(found, key)
        if old == new:
            continue
        exact = key in {"backend", "platform"}
        same_release = old.split(".")[:2] == new.split(".")[:2]
        matters = exact or (key in {"keras", "backend_version"} and not same_release)
        yield Difference(_environment_name(key, planned), old, new, matters)


def _environment_name(key: str, planned: Environment) -> str:
    return planned.backend if key == "backend_version" else key


def _hardware(planned: HardwareRecord, found: HardwareRecord) -> Iterator[Difference]:
    for key, name in (("kind", "hardware kind"), ("name", "hardware"), ("description", "device")):
        old, new = getattr(planned, key), getattr(found, key)
        if old != new:
            yield Difference(name, old, new, True)
            return
    if planned.devices > found.devices:
        old, new = (formatting.counted(count, "device") for count in (planned.devices, found.devices))
        yield Difference("hardware devices", old, new, True)
    old_bytes, new_bytes = planned.capacity_bytes, found.capacity_bytes
    if old_bytes and new_bytes and abs(new_bytes / old_bytes - 1) > _CAPACITY_TOLERANCE:
        old, new = (f"{formatting.size(count)} per device" for count in (old_bytes, new_bytes))
        yield Difference("hardware memory", old, new, new_bytes < old_bytes)


def _environment(backend: str) -> Environment:
    """Return the environment that a worker would have, by the installed distributions."""
    return Environment(
        python=platform.python_version(),
        keras=_installed("keras"),
        backend=backend,
        backend_version=next(
            filter(lambda found: found != _NOT_INSTALLED, map(_installed, _DISTRIBUTIONS[backend])), _NOT_INSTALLED
        ),
        platform=f"{sys.platform}-{platform.machine()}",
        autoplan=__version__,
    )


def _installed(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return _NOT_INSTALLED


def _local_hardware(plan: Plan) -> HardwareRecord:
    """Return this machine, with as many simulated devices as the plan has, if it has any.

    The stored measurement comes first. Without one, a CPU can still be described; an accelerator cannot.
    """
    from autoplan.machine import local_hardware

    devices = plan.hardware.devices if plan.hardware.simulated else None
    profile = hardware_profile.load(plan.environment.backend, devices)
    if profile is not None:
        return _record(local_hardware.resolve(local_hardware.LOCAL, devices=devices, profile=profile))
    if plan.hardware.kind != "cpu":
        kind = "not measured yet (run `autoplan hardware probe`)"
        return HardwareRecord(name=local_hardware.LOCAL, devices=0, kind=kind, capacity_bytes=None)
    count = devices or 1
    return HardwareRecord(
        name=local_hardware.LOCAL,
        devices=count,
        kind="cpu",
        capacity_bytes=this_machine.memory_bytes() // count,
        simulated=count > 1,
        description=this_machine.processor_name(),
    )


def _record(cluster: Cluster) -> HardwareRecord:
    return HardwareRecord(
        name=cluster.name,
        devices=cluster.devices,
        kind=cluster.chip.kind,
        capacity_bytes=cluster.chip.usable_memory_bytes,
        simulated=cluster.simulated,
        description=cluster.chip.name,
    )


def _source_digest(source: SourceRecord) -> tuple[str | None, str]:
    if source.kind in _LIVE:
        return None, ""
    from autoplan.sources.source import resolve

    try:
        return resolve(source.path, source.args, source.fit.index).sha256, ""
    except SourceError as error:
        return None, str(error)
