"""Defines `AutoplanError` and the exception classes that cost models raise.

AutoplanError                  anything a user can cause; the message is for them, the exit code for their shell
├── HardwareError              an unknown chip, a slice that does not exist, an unusable hardware file
├── ConfigError                a TrainConfig that contradicts itself or its cluster
├── WorkloadError              a workload file of another version, or one that does not add up
├── SchemaError                a value of the wrong type or outside its range; readers add what they were reading
└── (autoplan.errors)          everything that needs more than arithmetic
"""


class AutoplanError(Exception):
    """The root: one message that says what happened, what was expected and what to do.

    `exit_code` is what a command returns: 2 for bad input, 3 for no feasible configuration.
    """

    exit_code = 2


class HardwareError(AutoplanError):
    """Hardware that the catalogue does not know, or a figure that a computation needs and that was never published."""


class ConfigError(AutoplanError):
    """A training configuration that contradicts itself or its cluster."""


class WorkloadError(AutoplanError):
    """A workload that cannot be read, or that says nothing about the given configuration."""


class SchemaError(AutoplanError):
    """A value of the wrong type or outside its range: its path, the value, and what was expected."""
