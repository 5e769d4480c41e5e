"""`autoplan train`: the user's whole script with the plan applied and otherwise unchanged."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from autoplan.errors import PlanError, SourceError
from autoplan.plan.records import Plan
from autoplan.runtime import backends, callbacks, model_facts, optimizers
from autoplan.runtime.apply import Change, ProcessSettings, restore_batch, script_accumulation, settle_model
from autoplan.runtime.data import data_facts, rebatch, sample
from autoplan.runtime.data.data_facts import DataFacts
from autoplan.runtime.fit import ensure_built, fit_arguments, looks_at_weights_only
from autoplan.runtime.intercept import FitCall, Interception
from autoplan.sources.source import SourceSpec


class Training:
    """A script's process under a plan: which fits are the tuned model's, and what became of each."""

    def __init__(self, plan: Plan, source: SourceSpec) -> None:
        self.plan, self.source = plan, source
        self.change = Change(plan.baseline.config, plan.config)
        self.backend = backends.get(self.change.wanted.backend)
        if plan.hardware.simulated:
            self.backend.configure_devices(plan.hardware.devices)
        self.interception = Interception(self._on_fit, ProcessSettings(self.change, self.backend))
        self.fitted: list[str] = []
        self.applied = 0

    def run(self, run_source: Any, cache: Path | None) -> None:
        """Run the source to its end, `sys.exit` included. PlanError when none of its fits was of the plan's model."""
        if cache is not None:
            self.backend.enable_compilation_cache(cache)
        watch = self.backend.watch_compilation()
        self.interception.install()
        left: SystemExit | None = None
        try:
            run_source(self.source, self._fit_built)
        except SystemExit as leaving:
            left = leaving
        if left is None or left.code in (None, 0):
            self._check_used()
        for line in self.fitted:
            say(line)
        if watch.cache_hits or watch.cache_misses:
            say(f"compilation cache: {watch.cache_hits} hits, {watch.cache_misses} misses")
        for call in self.interception.seen.overridden:
            say(f"the script's own {call} was overridden by the plan")
        if left is not None:
            raise left

    def _check_used(self) -> None:
        if not self.interception.seen.fits:
            raise SourceError(f"{self.source.path} ended without calling model.fit, so the plan was not used")
        if not self.applied:
            raise PlanError(self._for_another_model(self.plan.source.fit.index))

    def _for_another_model(self, index: int) -> str:
        args = self.plan.source.args
        hint = f"; it was made for the arguments {' '.join(args)!r}" if args != self.source.args else ""
        return (
            f"the plan is for another model, of {self.plan.source.path}: fit {index} of {self.source.path} does not "
            f"train a model with the variables that the plan was made for{hint}; tune this script, or give --plan the "
            "plan that belongs to it"
        )

    def _fit_built(self, model: Any, arguments: dict[str, Any]) -> None:
        if "x" not in arguments:
            raise SourceError(
                f"{self.source.path} has no train_data(), so there is nothing to train on; add one that returns what "
                "fit takes, or train from Python with autoplan.fit(plan, model, x, y)"
            )
        model.fit(**arguments)

    def _on_fit(self, call: FitCall) -> Any:
        call.arguments = sample.lookable(call.arguments)
        facts = data_facts.describe(call.arguments, batch=self.change.script.batch.global_size)
        ensure_built(call.model, call.arguments, facts)
        if model_facts.structure(call.model) != self.plan.source.fit.structure:
            if call.index == self.plan.source.fit.index:
                raise PlanError(self._for_another_model(call.index))
            self.fitted.append(f"fit {call.index}: another model, left as the script has it")
            return call.proceed(**call.arguments)
        before = _updates(call.model)
        arguments, described = self._under_the_plan(call, facts)
        history = call.proceed(**arguments)
        self.applied += 1
        left_out = getattr(arguments.get("x"), "dropped_rows", 0)
        if left_out:
            say(f"fit {call.index}: {left_out} samples were left out; they do not divide over the micro-steps")
        updates = _updates(call.model) - before
        self.fitted.append(f"fit {call.index}: {described}; {updates} updates")
        return history

    def _under_the_plan(self, call: FitCall, facts: DataFacts) -> tuple[dict[str, Any], str]:
        """The model settled, and the fit's arguments; the batch only where the fit asks for the one that was tuned."""
        why_not = self._why_own_batch(call.model, facts)
        if why_not:
            say(f"fit {call.index} {why_not}, so its own batch is kept")
            restore_batch(call.model)
            settle_model(call.model, self.change, with_batch=False)
            return call.arguments, f"{self.change.wanted.describe()}, but the script's own batch"
        settle_model(call.model, self.change)
        if self.change.of("batch"):
            script, wanted = self.change.script.batch, self.change.wanted.batch
            if wanted.effective != script.effective:
                say(
                    f"fit {call.index}: an update is of {wanted.effective} samples, the script's own of "
                    f"{script.effective}: it trains otherwise; the plan's notes say what to do about the learning rate"
                )
            for line in callbacks.retime_callbacks(call.arguments.get("callbacks"), script, wanted):
                say(line)
            self._tell_dropped(call, facts)
        return fit_arguments(call.model, call.arguments, facts, self.change), self.change.wanted.describe()

    def _why_own_batch(self, model: Any, facts: DataFacts) -> str:
        tuned = self.change.script.batch
        accumulation = script_accumulation(model.optimizer)
        if (facts.batch, accumulation) != (tuned.global_size, tuned.accumulation):
            asked = facts.batch * accumulation
            return f"asks for an effective batch of {asked}; the plan was tuned from {tuned.effective}"
        if self.change.of("batch") and not facts.rebatchable:
            return "takes data that cannot be re-batched"
        return ""

    def _tell_dropped(self, call: FitCall, facts: DataFacts) -> None:
        if facts.kind != "arrays" or facts.explicit_steps or facts.samples is None:
            return
        wanted = self.change.wanted.batch
        mode = rebatch.remainder_mode(facts.samples, wanted, weights_only=looks_at_weights_only(call.model))
        dropped = rebatch.dropped_samples(facts.samples, wanted, mode)
        if dropped:
            say(
                f"fit {call.index}: {dropped} of {facts.samples} samples are left out of each epoch; they do not divide"
            )


def _updates(model: Any) -> int:
    return int(optimizers.innermost(model.optimizer).iterations)


def say(line: str) -> None:
    """A line of autoplan's among the script's own output."""
    sys.stderr.write(f"autoplan: {line}\n")
    sys.stderr.flush()
