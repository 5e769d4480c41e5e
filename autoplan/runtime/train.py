"""Implements `autoplan train`: runs the user's whole script with the plan applied, and otherwise unchanged."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autoplan.errors import ConfigError, PlanError, SourceError
from autoplan.plan.callback_calls import Calls
from autoplan.plan.records import Plan
from autoplan.runtime import backends, callbacks, model_facts, optimizers
from autoplan.runtime.apply import (
    Change,
    OtherModels,
    ProcessSettings,
    apply_to_model,
    restore_script_batch,
    script_accumulation,
)
from autoplan.runtime.data import data_facts, lookahead, padded_rows, rebatch
from autoplan.runtime.data.data_facts import DataFacts
from autoplan.runtime.data.fit_arguments import FitArguments
from autoplan.runtime.fit import arguments_under, padding_is_exact
from autoplan.runtime.intercept import FitCall, Interception
from autoplan.runtime.live_models.build import ensure_built
from autoplan.sources.source import SourceSpec
from cost_models.config import Batch, Mesh


class Training:
    """Runs a script under a plan, and finds the fits that train the tuned model.

    fitted        a line for each fit
    applied       number of fits that ran under the plan
    tuned_losses  the losses of the tuned fit (`model_facts.losses_of`), from the plan until that fit begins. A plan of
                  an earlier version, or of another version of Python, does not say: until then, of the first fit
    """

    def __init__(self, plan: Plan, source: SourceSpec) -> None:
        self.plan, self.source = plan, source
        self.change = Change(plan.baseline.config, plan.config, plan.source.fit.padding)
        self.backend = backends.get(self.change.wanted.backend)
        if plan.hardware.simulated:
            self.backend.configure_devices(plan.hardware.devices)
        settings = ProcessSettings(self.change, self.backend)
        self.interception = Interception(self._on_fit, settings)
        self.others = OtherModels(self.change, settings, self.interception.seen.overridden_policies)
        self.fitted: list[str] = []
        self.applied = 0
        self.tuned_losses = _losses_in(plan)

    def run(self, run_source: Any, cache: Path | None) -> None:
        """Run the source to its end, including `sys.exit`. PlanError if none of its fits trains the plan's model."""
        if cache is not None:
            self.backend.enable_compilation_cache(cache)
        watch = self.backend.watch_compilation()
        if self.plan.trains_differently:
            log(f"the plan was made with a warning: {self.plan.trains_differently}")
        self.interception.install()
        exited: SystemExit | None = None
        try:
            run_source(self.source, self._fit_built)
        except SystemExit as error:
            exited = error
        if exited is None or exited.code in (None, 0):
            self._check_used()
        for line in self.fitted:
            log(line)
        if watch.cache_hits or watch.cache_misses:
            log(f"compilation cache: {watch.cache_hits} hits, {watch.cache_misses} misses")
        for call in self.interception.seen.overridden:
            log(f"the plan overrides the script's own {call}")
        if exited is not None:
            raise exited

    def _check_used(self) -> None:
        if not self.interception.seen.fits:
            raise SourceError(f"{self.source.path} ended without calling model.fit, so the plan was not used")
        if not self.applied:
            raise PlanError(self._for_another_model(self.plan.source.fit.index))

    def _for_another_model(self, index: int) -> str:
        args = self.plan.source.args
        hint = f"; the plan was made with the arguments {' '.join(args)!r}" if args != self.source.args else ""
        return (
            f"the plan is for another model, from {self.plan.source.path}: fit {index} of {self.source.path} trains a "
            f"model with other variables{hint}; tune this script, or give its own plan with --plan"
        )

    def _fit_built(self, model: Any, arguments: FitArguments) -> None:
        if "x" not in arguments:
            raise SourceError(
                f"{self.source.path} has no train_data(), so there are no data to train on; add a train_data() that "
                "returns arguments of fit, or train from Python with autoplan.fit(plan, model, x, y)"
            )
        model.fit(**arguments)

    def _on_fit(self, call: FitCall) -> Any:
        call.arguments = lookahead.buffer_first_batch(call.arguments)
        facts = data_facts.describe(call.arguments, batch=self.change.script.batch.global_size)
        ensure_built(call.model, call.arguments, facts)
        if model_facts.structure(call.model) != self.plan.source.fit.structure:
            if call.index == self.plan.source.fit.index:
                raise PlanError(self._for_another_model(call.index))
            return self._fit_of_another(call)
        self.others.add_tuned(call.model)
        if not self.tuned_losses or call.index == self.plan.source.fit.index:
            self.tuned_losses = model_facts.losses_of(call.model)
        before = optimizers.updates(call.model)
        arguments, described = self._under_the_plan(call, facts)
        history = self._fit(call, arguments, facts)
        self.applied += 1
        dropped = getattr(arguments.get("x"), "dropped_rows", 0)
        if dropped:
            log(f"fit {call.index}: {dropped} samples were dropped, because they do not divide over the micro-steps")
        updates = _updates_in_words(before, optimizers.updates(call.model))
        self.fitted.append("; ".join(filter(None, (f"fit {call.index}: {described}", updates))))
        return history

    def _fit_of_another(self, call: FitCall) -> Any:
        """Run a fit that was not tuned, with the script's own settings as far as they can be had."""
        tuned = self.others.is_tuned(call.model)
        self.others.set_back(call.model)
        kind = "the tuned model with" if tuned else "another model, or"
        held = self.others.settings_of(call.model)
        settings = (
            f"{' and '.join(held)} {'holds' if len(held) == 1 else 'hold'} for it too" if held else "as in the script"
        )
        self.fitted.append(f"fit {call.index}: {kind} other trainable weights, neither tuned nor compared; {settings}")
        return call.proceed(**call.arguments)

    def _under_the_plan(self, call: FitCall, facts: DataFacts) -> tuple[FitArguments, str]:
        """Apply the plan to the model, and return the arguments of the fit and a description.

        The plan's batch is applied only if the fit has the batch that was tuned.
        """
        why_not = self._why_own_batch(call.model, facts)
        if why_not:
            log(f"fit {call.index} {why_not}, so it runs with its own batch")
            restore_script_batch(call.model)
            apply_to_model(call.model, self.change, with_batch=False)
            return call.arguments, self._with_own_batch(facts, script_accumulation(call.model.optimizer))
        apply_to_model(call.model, self.change)
        if self.change.differs("batch"):
            script, wanted = self.change.script.batch, self.change.wanted.batch
            if wanted.effective != script.effective:
                log(
                    f"fit {call.index}: an update has {wanted.effective} samples instead of {script.effective}, which "
                    "changes the training; see the plan's notes about the learning rate"
                )
            self._log_dropped(call, facts)
        return arguments_under(call.model, call.arguments, facts, self.change), self.change.wanted.describe()

    def _fit(self, call: FitCall, arguments: FitArguments, facts: DataFacts) -> Any:
        """Run the fit with its callbacks called as in the script, or say how often they are called."""
        script, wanted = self.change.script, self.change.wanted
        if self._why_own_batch(call.model, facts):
            own = Batch(facts.batch, accumulation=script_accumulation(call.model.optimizer))
            script, wanted = (one.with_(mesh=Mesh(), batch=own) for one in (script, wanted))
        listed = arguments.get("callbacks")
        with callbacks.adapted(listed, script, wanted, micro_steps=facts.micro_steps) as lines:
            calls = Calls.between(
                script,
                wanted,
                samples=facts.samples,
                micro_steps=facts.micro_steps,
                counted=facts.explicit_steps,
                epochs=arguments.get("epochs", 1) - arguments.get("initial_epoch", 0),
            )
            of_the_user = [one for one in callbacks.batch_callbacks(listed) if one.own]
            described = calls.describe(of_the_user) if calls.group is None else ""
            for line in filter(None, (*lines, described)):
                log(f"fit {call.index}: {line}")
            try:
                return call.proceed(**arguments)
            finally:
                padded_rows.restore(call.model)

    def _with_own_batch(self, facts: DataFacts, accumulation: int) -> str:
        """Describe the plan's configuration with the batch that this fit has."""
        wanted = self.change.wanted
        try:
            batch = Batch.from_global(facts.batch, data=wanted.mesh.data, accumulation=accumulation)
        except ConfigError:  # it does not divide over the mesh, and every device computes all of it
            return f"{wanted.describe()}, but with its own batch of {facts.batch}"
        return f"{wanted.with_(batch=batch).describe()}, with the script's own batch"

    def _why_own_batch(self, model: Any, facts: DataFacts) -> str:
        if self.change.differs("batch") and model_facts.losses_of(model) != self.tuned_losses:
            return "has another loss than the fit that was tuned"
        tuned = self.change.script.batch
        accumulation = script_accumulation(model.optimizer)
        if (facts.batch, accumulation) != (tuned.global_size, tuned.accumulation):
            own = Batch(facts.batch, accumulation=accumulation)
            return f"has {own.describe()}, but the plan was tuned from {tuned.describe()}"
        if self.change.differs("batch") and not facts.rebatchable:
            return "has data that cannot be re-batched"
        return ""

    def _log_dropped(self, call: FitCall, facts: DataFacts) -> None:
        if facts.kind != "arrays" or facts.samples is None or not rebatch.reaches_end(call.arguments, facts):
            return
        wanted = self.change.wanted.batch
        can_pad = padding_is_exact(call.model, call.arguments, facts, self.change)
        mode = rebatch.remainder_mode(facts.samples, wanted, can_pad=can_pad)
        dropped = rebatch.dropped_samples(facts.samples, wanted, mode)
        if dropped:
            log(
                f"fit {call.index}: {dropped} of {facts.samples} samples are dropped in each epoch, because they do "
                "not divide over the micro-steps"
            )


def _updates_in_words(before: Mapping[str, int], after: Mapping[str, int]) -> str:
    """Return the updates of each optimizer; "" if the model applies optimizers of its own and none of them counted.

    On JAX, a train_step of its own may apply optimizers whose counters `fit` does not write back.
    """
    made = {name: count - before.get(name, 0) for name, count in after.items()}
    if set(made) == {""}:
        return f"{made['']} updates"
    shown = {name: count for name, count in made.items() if count}
    return " and ".join(f"{count} updates by {name or 'the compiled optimizer'}" for name, count in shown.items())


def log(line: str) -> None:
    """Write a line to stderr, marked as a line of autoplan."""
    sys.stderr.write(f"autoplan: {line}\n")
    sys.stderr.flush()


def _losses_in(plan: Plan) -> str:
    """Return the losses of the tuned fit; "" where a plan does not say them in a form that this process can compare."""
    same_python = plan.environment.python.split(".")[:2] == platform.python_version().split(".")[:2]
    return (plan.source.fit.losses or "") if same_python else ""
