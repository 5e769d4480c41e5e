"""Implements `autoplan.rebuild`: rebuilds a live model under a plan, and copies its weights and optimizer state."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from autoplan.errors import PlanError
from autoplan.plan.records import Plan
from autoplan.runtime import api
from autoplan.runtime.apply import Change, apply_to_model
from autoplan.runtime.live_models import build_settings, package, state
from autoplan.runtime.live_models.equivalence import preserved_global_state


def rebuild_model(plan: Plan, model: Any) -> Any:
    """Return the model under the plan with its weights and optimizer state, ready for `autoplan.fit`.

    A Functional or Sequential model is rebuilt from its config inside `scope(plan)`, and the model itself does not
    change. A model that cannot be rebuilt is itself given the plan's compile settings and accumulation.

    PlanError if the model is not compiled, is not the plan's, or cannot be rebuilt and the plan changes settings that
    must be set before building.
    """
    change = api.change_to(plan)
    if not model.compiled:
        raise PlanError("the model is not compiled; compile it as for tuning")
    if all(layer.built for layer in model._flatten_layers()):
        api.check_structure(plan, model)
    settings = build_settings.read_settings(model)
    blueprint, why_not = package.verified_blueprint(model, settings)
    if blueprint is None:
        _check_stays(change, why_not)
        apply_to_model(model, change)
        return model
    finer_remat = None if change.differs("remat") else settings.remat  # a plan has names for fewer modes than Keras
    own_scope = nullcontext() if finer_remat is None else build_settings.remat_scope(finer_remat)
    with preserved_global_state(), api.scope(plan), own_scope:
        rebuilt = package.rebuild(blueprint, state.capture(model), seeds=True)
    apply_to_model(rebuilt, change)
    return rebuilt


def _check_stays(change: Change, why_not: str) -> None:
    knobs = change.before_building()
    if knobs:
        raise PlanError(
            f"the plan changes {' and '.join(knobs)}, which must be set before a model is built, and {why_not}; build "
            "and compile it inside `with autoplan.scope(plan):`"
        )
