"""The tree of errors. Every message says what happened, what was expected, and what to do.

AutoplanError                     (cost_models.errors) exit code 2 unless it says otherwise
├── HardwareError, ConfigError, WorkloadError   (cost_models.errors)
├── SourceError                   a script, builder or callable that cannot be used
│   ├── ScriptFailed              the user's code raised by itself; carries its own frames
│   └── NeverFits                 the script ended without calling `fit`
├── PlanError                     a plan file that cannot be read, or that is for something else
├── StudyError                    a study that is damaged, locked, or of another source
├── OutputError                   a place that cannot be written
├── WorkerError                   a worker process that could not be started or talked to
└── NoFeasibleConfiguration       exit code 3: nothing fits; carries what would
"""

from __future__ import annotations

from cost_models.errors import AutoplanError, ConfigError, HardwareError, WorkloadError

__all__ = [
    "FAILED_BY_ITSELF",
    "AutoplanError",
    "ConfigError",
    "HardwareError",
    "NeverFits",
    "NoFeasibleConfiguration",
    "OutputError",
    "PlanError",
    "ScriptFailed",
    "SourceError",
    "StudyError",
    "WorkerError",
    "WorkloadError",
]


FAILED_BY_ITSELF = "failed by itself"
"""Stands in every message about code of the user's that raised, wherever that message travels."""


class SourceError(AutoplanError):
    """A source that cannot be found, imported or used."""


class ScriptFailed(SourceError):
    """The user's code raised by itself. The message ends with its own frames."""


class NeverFits(SourceError):
    """The script ended without calling the `fit` that was asked for."""


class PlanError(AutoplanError):
    """A plan that cannot be read, or that is for another model, hardware or version."""


class StudyError(AutoplanError):
    """A study that is damaged, locked, or belongs to another source."""


class OutputError(AutoplanError):
    """A file that cannot be written."""


class WorkerError(AutoplanError):
    """A worker process that could not be started, or that stopped talking."""


class NoFeasibleConfiguration(AutoplanError):
    """Nothing in the space fits."""

    exit_code = 3
