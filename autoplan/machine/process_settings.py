"""Sets, for a whole process, the knobs with `Affects.PROCESS`; a new knob of this kind needs an entry here.

Each knob with `Affects.PROCESS` has one `ProcessSetting`, which the worker, `autoplan train`, the Python API, `autoplan
check` and `autoplan export` share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from autoplan.machine import processes
from autoplan.plan import knobs
from cost_models.config import TrainConfig


@dataclass(frozen=True)
class ProcessSetting:
    """How a process takes the value of one knob, and how a script takes it that does not use autoplan.

    can_set       whether this system has the setting
    set           sets a value; False where that failed
    missing       what a system without the setting has, in words
    statements    Python statements that set a value, to run before Keras is imported
    """

    can_set: Callable[[], bool]
    set: Callable[[Any], bool]
    missing: str
    statements: Callable[[Any], str]


def _can_retain_memory() -> bool:
    return processes.can_keep_freed_memory()


def _retain_memory(value: bool) -> bool:
    return not value or processes.retain_freed_memory()


def _mallopt_statements(value: bool) -> str:
    """Return calls of glibc's `mallopt`. Other C libraries have none, and then nothing is called."""
    if not value:
        return ""
    lines = [f"    libc.mallopt({name}, {number})  # {why}" for name, number, why in processes.KEEP_FREED_MEMORY]
    calls = "\n".join([*lines, ""])
    return (
        "\nimport ctypes  # noqa: E402\nimport sys  # noqa: E402\n\n"
        'libc = ctypes.CDLL(None) if sys.platform.startswith("linux") else None\n'
        'if hasattr(libc, "mallopt"):  # glibc: it keeps freed memory for the next micro-step\n'
        f"{calls}"
    )


SETTINGS: Mapping[str, ProcessSetting] = {
    "keep_freed_memory": ProcessSetting(
        can_set=_can_retain_memory,
        set=_retain_memory,
        missing="a C library that has no setting for it",
        statements=_mallopt_statements,
    )
}
"""Under the names of fields of TrainConfig."""


def wanted(config: TrainConfig) -> dict[str, Any]:
    """Return the process settings of a configuration that are not at their defaults."""
    values = {name: getattr(config, name) for name in knobs.process_fields()}
    return {name: value for name, value in values.items() if value != config.default(name)}


def apply(config: TrainConfig) -> list[str]:
    """Set what the configuration wants of this process. Returns a message for each setting that this system lacks."""
    return [
        f"{name} cannot be set to {knobs.formatted(value)}: this system has {SETTINGS[name].missing}"
        for name, value in wanted(config).items()
        if not SETTINGS[name].set(value)
    ]


def missing_here() -> dict[str, str]:
    """Return the settings that this system lacks, each with what the system has instead."""
    return {name: one.missing for name, one in SETTINGS.items() if not one.can_set()}


def statements(config: TrainConfig) -> str:
    """Return Python statements that set what the configuration wants; "" where it wants nothing."""
    return "".join(SETTINGS[name].statements(value) for name, value in wanted(config).items())
