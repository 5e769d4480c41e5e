"""Defines autoplan's exception classes and the exit code of each.

AutoplanError                     (cost_models.errors) exit code 2, unless a subclass has another one
├── HardwareError, ConfigError, WorkloadError   (cost_models.errors)
├── SourceError                   a script, builder or callable cannot be used
│   ├── ScriptFailed              the user's code raised an exception; the message has its own frames
│   └── NeverFits                 the script ended without calling `fit`
├── PlanError                     a plan cannot be read, or is for another model, hardware or version
├── StudyError                    a study is damaged, locked, or belongs to another source
├── OutputError                   a file cannot be written
├── WorkerError                   a worker process could not be started, or does not answer
└── NoFeasibleConfiguration       no configuration fits; exit code 3
    └── NothingMeasured           budget or trials ended before a configuration was measured; exit code 3
"""

from __future__ import annotations

from cost_models.errors import AutoplanError, ConfigError, HardwareError, WorkloadError

__all__ = [
    "FIRST_EXCEPTION",
    "SCRIPT_RAISED",
    "AutoplanError",
    "ConfigError",
    "HardwareError",
    "NeverFits",
    "NoFeasibleConfiguration",
    "NothingMeasured",
    "OutputError",
    "PlanError",
    "ScriptFailed",
    "SourceError",
    "StudyError",
    "WorkerError",
    "WorkloadError",
]


SCRIPT_RAISED = "failed by itself"
"""Part of every message about an exception of the user's own code, by which such messages are recognised."""
FIRST_EXCEPTION = "The first exception was"
"""Begins the line of a message that describes the first of several exceptions."""


class SourceError(AutoplanError):
    """The source cannot be found, imported or used."""


class ScriptFailed(SourceError):
    """The user's code raised an exception. The message ends with its own stack frames."""


class NeverFits(SourceError):
    """The script ended without calling the requested `fit`."""


class PlanError(AutoplanError):
    """The plan cannot be read, or is for another model, hardware or version."""


class StudyError(AutoplanError):
    """The study is damaged, locked, or belongs to another source."""


class OutputError(AutoplanError):
    """A file cannot be written."""


class WorkerError(AutoplanError):
    """A worker process could not be started, or does not answer."""


class NoFeasibleConfiguration(AutoplanError):
    """No configuration of the space fits."""

    exit_code = 3


class NothingMeasured(NoFeasibleConfiguration):
    """The budget or the number of trials ended before a configuration that keeps the options was measured.

    It says nothing about the configurations. The exit code is that of `NoFeasibleConfiguration`, because the options
    are in order and there is no plan.
    """
