"""Counts how often Keras calls the batch hooks of callbacks under a configuration, and describes what changes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import Field

from autoplan.plan.records import Value
from cost_models.config import Batch, TrainConfig


class BatchCallback(Value):
    """A callback that does something at every micro-step, or at every execution of several."""

    name: str = Field(description="its class")
    own: bool = Field(True, description="its batch hooks are the user's code")
    count: str = Field("", description="a count of Keras's own callbacks, such as save_freq=100")
    changes: list[str] = Field([], description="attributes and methods by which its batch hooks change the training")

    def describe(self) -> str:
        """Return its name, with what it changes."""
        return f"{self.name} (changes the training: {', '.join(self.changes)})" if self.changes else self.name


def samples_per_call(config: TrainConfig) -> int:
    """Return the samples between two calls of a batch hook: those of one execution."""
    return config.batch.global_size * config.steps_per_execution


def calls_per_script_call(script: TrainConfig, wanted: TrainConfig) -> int | None:
    """Return how many calls of Keras make up one call of the script; None if that is not a whole number."""
    whole, rest = divmod(samples_per_call(script), samples_per_call(wanted))
    return whole if whole and not rest else None


def micro_steps_per_epoch(
    samples: int | None, script_micro_steps: int | None, script: Batch, wanted: Batch, *, counted: bool
) -> int | None:
    """Return the micro-steps of an epoch under the wanted batch; None if the length of an epoch is not known.

    script_micro_steps  those of the script
    counted             the script counts them itself (steps_per_epoch)
    """
    if script_micro_steps is None or script == wanted:
        return script_micro_steps
    if counted:
        return script_micro_steps * script.global_size // wanted.global_size
    rows = samples if samples is not None else script_micro_steps * script.global_size
    if wanted.accumulation == 1:
        return -(-rows // wanted.global_size)
    updates, rest = divmod(rows, wanted.effective)
    return (updates + (rest >= wanted.accumulation)) * wanted.accumulation


@dataclass(frozen=True)
class Calls:
    """How often batch hooks are called.

    own     calls per epoch in the script, None if not known
    plan    calls per epoch that Keras makes under the plan
    epochs  epochs of the fit
    group   calls of Keras that `autoplan train` and `autoplan.fit` pass on as one, so that hooks are called as in the
            script; None where that is not possible
    ratio   calls under the plan per call of the script, on average
    """

    own: int | None
    plan: int | None
    epochs: int
    group: int | None
    ratio: float

    @classmethod
    def between(
        cls,
        script: TrainConfig,
        wanted: TrainConfig,
        *,
        samples: int | None,
        micro_steps: int | None,
        counted: bool,
        epochs: int,
    ) -> Calls:
        """Count the calls in a script and under a wanted configuration. Arguments as in `micro_steps_per_epoch`."""
        planned = micro_steps_per_epoch(samples, micro_steps, script.batch, wanted.batch, counted=counted)
        own, plan = (
            None if steps is None else -(-steps // executed)
            for steps, executed in ((micro_steps, script.steps_per_execution), (planned, wanted.steps_per_execution))
        )
        ratio = samples_per_call(script) / samples_per_call(wanted)
        return cls(own, plan, epochs, calls_per_script_call(script, wanted), ratio)

    @property
    def changed(self) -> bool:
        """Whether Keras calls batch hooks more or less often than in the script."""
        return self.ratio != 1

    def describe(self, callbacks: Iterable[BatchCallback]) -> str:
        """Return one line for these callbacks; "" if nothing changes, or there are none."""
        listed = list(callbacks)
        if not self.changed or not listed:
            return ""
        if self.group is not None:
            own = f" ({self._counted(self.own)})" if self.own is not None else ""
            return (
                f"batch hooks of {_names(listed)}: `autoplan train` and `autoplan.fit` call them as often as in the "
                f"script{own}; in a script that sets the plan's batch itself, they are called {self._plan_calls()}"
            )
        own_code, counting = [one for one in listed if one.own], [one for one in listed if one.count]
        lines = []
        if own_code:
            moved = ", and what they change is changed after other samples" * any(one.changes for one in own_code)
            lines.append(
                f"batch hooks of {_names(own_code)} are called {self._plan_calls()}{self._instead()}; a count of their "
                f"own then covers another number of samples{moved}"
            )
        if counting:
            counts = ", ".join(dict.fromkeys(f"{one.name} ({one.count})" for one in counting))
            lines.append(f"`autoplan train` and `autoplan.fit` convert the count of {counts} to the same samples")
        return "; ".join(lines)

    def _plan_calls(self) -> str:
        return self._counted(self.plan) if self.plan is not None else f"{self.ratio:.3g} times as often"

    def _instead(self) -> str:
        known = self.own is not None and self.plan is not None
        return f" instead of {self._counted(self.own)} in the script" if known else ""

    def _counted(self, calls: int | None) -> str:
        return "" if calls is None else f"{calls:,} times per epoch, {calls * self.epochs:,} per fit"


def _names(callbacks: Iterable[BatchCallback]) -> str:
    return ", ".join(dict.fromkeys(one.describe() for one in callbacks))
