"""`autoplan train`: the user's whole script with the plan applied and otherwise unchanged."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from autoplan.errors import PlanError, SourceError
from autoplan.plan import Plan
from autoplan.runtime import backends, callbacks, data, model_facts, optimizers
from autoplan.runtime.apply import Change, ProcessSettings, settle_model
from autoplan.runtime.fitting import ensure_built, fit_arguments, script_config
from autoplan.runtime.intercept import FitCall, Interception
from autoplan.source import SourceSpec
from cost_models.config import TrainConfig


class Training:
    """A script's process under a plan: which fits are the tuned model's, and what became of each."""

    def __init__(self, plan: Plan, source: SourceSpec) -> None:
        self.plan, self.source = plan, source
        self.change = Change(TrainConfig.from_dict(plan.baseline.config), TrainConfig.from_dict(plan.config))
        self.backend = backends.get(self.change.wanted.backend)
        if plan.hardware.simulated:
            self.backend.configure_devices(plan.hardware.devices)
        self.interception = Interception(self._on_fit, ProcessSettings(self.change, self.backend))
        self.fitted: list[str] = []
        self.applied = 0

    def run(self, run_source: Any, cache: Path | None) -> None:
        """Run the source to its end. PlanError when none of its fits was of the plan's model."""
        if cache is not None:
            self.backend.enable_compilation_cache(cache)
        watch = self.backend.watch_compilation()
        self.interception.install()
        run_source(self.source, self._fit_built)
        if not self.interception.seen.fits:
            raise SourceError(f"{self.source.path} ended without calling model.fit, so the plan was not used")
        if not self.applied:
            raise PlanError(
                f"the plan is for another model: none of the {self.interception.seen.fits} fits of {self.source.path} "
                "trained a model with the variables that the plan was made for; tune this script"
            )
        for line in self.fitted:
            say(line)
        say(f"compilation cache: {watch.cache_hits} hits, {watch.cache_misses} misses")
        for call in self.interception.seen.overridden:
            say(f"the script's own {call} was overridden by the plan")

    def _fit_built(self, model: Any, arguments: dict[str, Any]) -> None:
        if "x" not in arguments:
            raise SourceError(
                f"{self.source.path} has no train_data(), so there is nothing to train on; add one that returns what "
                "fit takes, or train from Python with autoplan.fit(plan, model, x, y)"
            )
        model.fit(**arguments)

    def _on_fit(self, call: FitCall) -> Any:
        facts = data.describe(call.arguments)
        ensure_built(call.model, call.arguments, facts)
        if model_facts.structure(call.model) != self.plan.source.fit.structure:
            self.fitted.append(f"fit {call.index}: another model, left as the script has it")
            return call.proceed(**call.arguments)
        here = script_config(call.model, facts, self.interception.seen, self.backend)
        change = self._change_for(here, call.index)
        before = _updates(call.model)
        if change.of("batch"):
            callbacks.retime_callbacks(call.arguments.get("callbacks"), change.script.batch, change.wanted.batch)
        settle_model(call.model, change)
        history = call.proceed(**fit_arguments(call.model, call.arguments, facts, change))
        self.applied += 1
        updates = _updates(call.model) - before
        self.fitted.append(f"fit {call.index}: {change.wanted.describe()}; {updates} updates")
        return history

    def _change_for(self, here: TrainConfig, index: int) -> Change:
        """The plan's change, its batch only where the script still asks for the batch that the plan was tuned from."""
        planned = self.change
        settled = (
            here.batch.effective == planned.wanted.batch.effective
            and here.batch.accumulation == planned.wanted.batch.accumulation
        )
        if here.batch.effective == planned.script.batch.effective or settled:
            return planned
        say(
            f"fit {index} asks for an effective batch of {here.batch.effective}; the plan was tuned from "
            f"{planned.script.batch.effective}, so the script's own batch is kept"
        )
        kept = planned.script.with_(batch=here.batch) if here.batch.data == planned.script.batch.data else here
        return Change(kept, planned.wanted.with_(batch=kept.batch, mesh=kept.mesh))


def _updates(model: Any) -> int:
    return int(optimizers.innermost(model.optimizer).iterations)


def say(line: str) -> None:
    """A line of autoplan's among the script's own output."""
    sys.stderr.write(f"autoplan: {line}\n")
    sys.stderr.flush()
