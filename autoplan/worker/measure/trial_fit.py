"""`TrialFit`: a job's fit as one value: the script's call of `fit`, the configuration to apply, the job's options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict, TypeVar

from autoplan.runtime import callbacks
from autoplan.runtime.apply import Change
from autoplan.runtime.backends import Backend
from autoplan.runtime.data.data_facts import DataFacts
from autoplan.runtime.data.fit_arguments import FitArguments
from autoplan.runtime.fit import arguments_under
from autoplan.runtime.intercept import FitCall
from autoplan.worker.files.guard import CallbackWrites, WriteGuard

NOTHING_BUT_MICRO_STEPS: FitArguments = {
    "validation_data": None,
    "validation_split": 0.0,
    "callbacks": None,
    "epochs": 1,
    "initial_epoch": 0,
    "shuffle": False,
    "verbose": 0,
}
"""Arguments of a fit that runs micro-steps and nothing else."""


Result = TypeVar("Result")


class FitOptions(TypedDict, total=False):
    """Options of a job that runs a fit.

    groups, group_seconds, max_seconds   limits of the timing, see `TimedGroups`
    brief                                only time the fit: no memory from a compiler, no micro-steps without input
    remainder, validation, checkpoint    also run the end of an epoch, a validation, a checkpoint
    cache_dir      folder of the compilation cache
    updates, seeds  updates that are compared, and the seeds of the runs
    accumulations   accumulations of all configurations that are compared
    weights_to     file that the initial weights are written to
    weights_from   file that the initial weights are read from
    changes_to     file that the changes of variables are written to
    compare_with   file of another job's changes, which are compared with those of this one
    nudged         change the initial weights in their last digit
    left_out       positions of callbacks that earlier trials have seen write, with what they do
    usual_batch, largest_batch   shapes of the arrays of these batches, if batches differ
    validation_rows   rows of an array that are validated at once, instead of the script's
    mean_rows      rows of a batch on average, if batches differ in rows
    """

    groups: int
    group_seconds: float
    max_seconds: float
    brief: bool
    remainder: bool
    validation: bool
    checkpoint: bool
    cache_dir: str | None
    updates: int
    seeds: list[int]
    accumulations: list[int]
    weights_to: str
    weights_from: str
    changes_to: str
    compare_with: str
    nudged: bool
    left_out: Mapping[int, str]
    usual_batch: list[list[int]]
    largest_batch: list[list[int]]
    mean_rows: float
    validation_rows: int


@dataclass(frozen=True)
class TrialFit:
    """A fit that a job runs.

    change    from the script's configuration to the one of the trial; None runs the fit as the script has it
    on_phase  called with the name of each phase when it begins
    guard     watches what the fit writes; None in a process that is no trial
    left_out  positions of callbacks that are left out because they write, with what they do
    """

    call: FitCall
    facts: DataFacts
    change: Change | None
    backend: Backend
    options: FitOptions
    on_phase: Callable[[str], None]
    guard: WriteGuard | None = None
    left_out: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.left_out.update({int(key): what for key, what in self.options.get("left_out", {}).items()})

    @property
    def model(self) -> Any:
        return self.call.model

    @property
    def global_batch(self) -> int:
        return self.facts.batch if self.change is None else self.change.wanted.batch.global_size

    @property
    def effective_batch(self) -> int:
        return self.facts.batch if self.change is None else self.change.wanted.batch.effective

    def arguments(self, instead: FitArguments | None = None, facts: DataFacts | None = None) -> FitArguments:
        """Return the script's arguments of `fit` under the batch of the trial.

        instead  arguments that replace the script's own
        facts    facts of the replaced data, if they differ
        """
        arguments: FitArguments = {**self.call.arguments, **(instead or {})}
        if self.change is None:
            return arguments
        return arguments_under(self.model, arguments, facts or self.facts, self.change)

    def callbacks(self) -> list[Any]:
        """Return the callbacks of the fit that run in this trial."""
        change = None if self.change is None else (self.change.script, self.change.wanted)
        return callbacks.trial_callbacks(
            self.call.arguments, self.left_out, change=change, micro_steps=self.facts.micro_steps
        )

    def run_without_writers(self, run: Callable[[], Result], restore: Callable[[], object]) -> Result:
        """Run a part of the trial; if a callback was about to write, call `restore` and run again without it."""
        while True:
            try:
                result = run()
                if self.guard is not None:
                    self.guard.raise_refused()
            except CallbackWrites as found:
                self.left_out[found.position] = found.action.describe()
                if self.guard is not None:
                    self.guard.forget_refused()
                restore()
            else:
                return result

    def callbacks_left_out(self) -> list[str]:
        """Return the callbacks that are left out because they write, with what they do."""
        every = callbacks.as_list(self.call.arguments.get("callbacks"))
        return [f"{type(every[at]).__name__} ({what})" for at, what in sorted(self.left_out.items())]
