"""A live model under a plan: made again where what must be set before building changes, with the weights it has."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from autoplan.errors import PlanError
from autoplan.plan.records import Plan
from autoplan.runtime import api
from autoplan.runtime.apply import Change, settle_model
from autoplan.runtime.live_models import instances, state
from autoplan.runtime.live_models.equivalence import undisturbed


def rebuild(plan: Plan, model: Any) -> Any:
    """The model under the plan with its weights and optimizer state, ready for `autoplan.fit`.

    A Functional or Sequential model is made again from its config inside `scope(plan)`, and stays as it is; one that
    cannot be made again is itself given the plan's compile settings and accumulation.

    PlanError for another model than the plan's, for one that is not compiled, and where a plan holds what must be set
    before building for a model that cannot be made again.
    """
    change = api.change_to(plan)
    if not model.compiled:
        raise PlanError("the model is not compiled; compile it as it was when it was tuned")
    if all(layer.built for layer in model._flatten_layers()):
        api.check_structure(plan, model)
    settings = instances.settings_of(model)
    blueprint, why_not = instances.drawn(model, settings)
    if blueprint is None:
        _check_stays(change, why_not)
        settle_model(model, change)
        return model
    finer_remat = None if change.of("remat") else settings.remat  # a plan knows fewer modes than Keras
    own_scope = nullcontext() if finer_remat is None else instances.remat_scope(finer_remat)
    with undisturbed(), api.scope(plan), own_scope:
        rebuilt = instances.made(blueprint, state.take(model), seeds=True)
    settle_model(rebuilt, change)
    return rebuilt


def _check_stays(change: Change, why_not: str) -> None:
    knobs = change.process_wide()
    if knobs:
        raise PlanError(
            f"the plan changes {' and '.join(knobs)}, which must be set before a model is built, and {why_not}; build "
            "and compile it inside `with autoplan.scope(plan):`"
        )
