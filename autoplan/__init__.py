"""Finds, measures and applies the fastest way to run a Keras training script on a given machine.

Importing this package imports no framework: everything but the version is fetched when it is first asked for.

    plan = autoplan.optimize(build_model, data=(x, y))     # tune here, in worker processes
    plan = autoplan.load_plan("plan.yaml")                 # or read what `autoplan tune` wrote
    with autoplan.scope(plan):                             # then train with it
        model = build_model()
    autoplan.compile(plan, model)
    autoplan.fit(plan, model, x, y)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autoplan.errors import AutoplanError
    from autoplan.plan import Failure, Measurement, Plan
    from autoplan.planfile import load_plan
    from autoplan.planner import optimize
    from autoplan.runtime.public import compile, fit, scope  # noqa: A004 -- the names users know from Keras

__version__ = "0.1.0"

__all__ = [
    "AutoplanError",
    "Failure",
    "Measurement",
    "Plan",
    "__version__",
    "compile",
    "fit",
    "load_plan",
    "optimize",
    "scope",
]

_HOMES = {
    "AutoplanError": "autoplan.errors",
    "Failure": "autoplan.plan",
    "Measurement": "autoplan.plan",
    "Plan": "autoplan.plan",
    "load_plan": "autoplan.planfile",
    "optimize": "autoplan.planner",
    "compile": "autoplan.runtime.public",
    "fit": "autoplan.runtime.public",
    "scope": "autoplan.runtime.public",
}


def __getattr__(name: str) -> Any:
    """Fetch a public name from its home when it is first used (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'autoplan' has no attribute '{name}'; it offers {', '.join(__all__)}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
