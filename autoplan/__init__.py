"""Finds, measures and applies the fastest way to run a Keras training script on a given machine.

Importing this package imports no framework: everything but the version is fetched when it is first asked for.

    plan = autoplan.optimize(model, data=(x, y))           # tune a compiled model here, in worker processes
    model = autoplan.rebuild(plan, model)                  # the same model, with its weights, under the plan
    autoplan.fit(plan, model, x, y)

    plan = autoplan.optimize(build_model, data=(x, y))     # or tune the function that builds and compiles it
    plan = autoplan.load_plan("plan.yaml")                 # or read what `autoplan tune` wrote
    with autoplan.scope(plan):                             # then train with it
        model = build_model()
    autoplan.compile(plan, model)
    autoplan.fit(plan, model, x, y)

    found = autoplan.compare(build_model, data=(x, y))     # on which hardware it fits, how fast, and for how much
    print(autoplan.measure(step, batch))                   # what a step of a training loop of one's own takes
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from autoplan._version import __version__

if TYPE_CHECKING:
    from autoplan.compare.result import Comparison
    from autoplan.errors import AutoplanError
    from autoplan.plan.file import load_plan
    from autoplan.plan.records import Failure, Measurement, Plan
    from autoplan.runtime.timing.user_step import StepMeasurement
    from autoplan.sources.source import SourceSpec
    from autoplan.tuning.request import Watch

__all__ = [
    "AutoplanError",
    "Failure",
    "Measurement",
    "Plan",
    "__version__",
    "compare",
    "compile",
    "fit",
    "load_plan",
    "measure",
    "optimize",
    "rebuild",
    "scope",
]

_HOMES = {
    "AutoplanError": "autoplan.errors",
    "Failure": "autoplan.plan.records",
    "Measurement": "autoplan.plan.records",
    "Plan": "autoplan.plan.records",
    "load_plan": "autoplan.plan.file",
}


def optimize(
    builder: Any,
    data: Any = None,
    hardware: str = "local",
    *,
    trials: int = 20,
    budget: float | str | None = None,
    effective_batch: str | tuple[int, int] = "keep",
    fix: Mapping[str, Any] | None = None,
    only: Iterable[str] = (),
    backend: str | None = None,
    devices: int | None = None,
    study: str | None = None,
    headroom: float = 0.08,
    output: str | Path | None = None,
    measure: bool = True,
    memory_limit: int | str | None = None,
    witnesses: int | None = None,
    watch: Watch | None = None,
) -> Plan:
    """What `autoplan tune` does, from Python: the best verified plan for training this model on this hardware.

    builder          a compiled `keras.Model`, a function that builds and compiles one, or what `autoplan tune` takes. A
                     live model stays as it is; a Functional or Sequential one is built again from its config for each
                     trial; of a subclassed one precision, remat and mesh are not tuned: a function is what they take
    data             what `fit` takes: (x, y), a dict of its arguments such as {"x": x, "y": y, "batch_size": 64}, or a
                     function that makes either; None trains on synthetic batches
    budget           seconds, or a time with units: "10m"
    effective_batch  "keep", or samples an update: "256" sets them, "64..4096" or (64, 4096) may be tried
    fix, only        knobs that are set, as {"precision": "float32"}, and the ones that may be tuned, as ["batch"]
    headroom         fraction of the device's memory that stays free
    memory_limit     bytes that the training may take at most, or a size with a unit: "2GiB"
    witnesses        for hardware that is not here, so many are compiled at most
    watch            is told of every autoplan.tuning.request.Event on the way

    Raises an AutoplanError for whatever its caller can mend. Runs anywhere: scripts, notebooks, `__main__`.
    """
    from autoplan import parsing, planner  # here, so that importing autoplan stays cheap
    from autoplan.tuning.request import TuneRequest

    _check_hardware_is_named(hardware)
    request = TuneRequest(
        source=_source(builder, data),
        hardware=hardware,
        backend=backend,
        devices=devices,
        trials=trials,
        budget_seconds=_read(budget, parsing.duration_seconds),
        effective_batch=_read(effective_batch, parsing.batch_range),
        fix={key: str(value) for key, value in (fix or {}).items()},
        only=tuple(only),
        study=study,
        headroom=headroom,
        output=None if output is None else Path(output),
        measure=measure,
        memory_limit_bytes=_read(memory_limit, parsing.size_bytes),
        witnesses=witnesses,
    )
    result = planner.tune(request, watch or planner.silent)
    return cast("Plan", result.plan)  # None for a dry run only, which this is not


def compare(
    builder: Any,
    data: Any = None,
    hardware: Iterable[str] = (),
    *,
    family: Iterable[str] = (),
    by_cost: bool = False,
    evidence: str = "analytic",
    effective_batch: str | tuple[int, int] = "keep",
    fix: Mapping[str, Any] | None = None,
    backend: str | None = None,
    headroom: float = 0.08,
    watch: Watch | None = None,
) -> Comparison:
    """What `autoplan compare` does, from Python: on which hardware this training fits, how fast, and for how much.

        found = autoplan.compare("train.py", family=["tpu", "nvidia"], by_cost=True)
        for row in found.rows:
            print(row.hardware, row.verdict, row.samples_per_second, row.usd_per_million_samples)

    builder, data    as `optimize` takes them
    hardware         names of `autoplan hardware list`, YAML files or "local"; each stands in a row
    family           instead of names: tpu, gpu, nvidia, amd, cpu, all. Neither: every TPU and GPU of the catalogue,
                     each chip in the smallest size of at most 64 chips on which the training fits
    by_cost          the cheapest first, rather than the fastest
    evidence         "analytic", or "compiled": the compilers of the named hardware are asked, too
    effective_batch, fix, headroom, watch   as `optimize` takes them

    Returns rows in order and `to_dict()`, the document of `--format json`. Runs and measures nothing. Raises an
    AutoplanError for whatever its caller can mend.
    """
    from autoplan import parsing, planner  # here, so that importing autoplan stays cheap
    from autoplan.tuning.request import CompareRequest

    request = CompareRequest(
        source=_source(builder, data),
        hardware=_names(hardware),
        families=_names(family),
        backend=backend,
        effective_batch=(_read(effective_batch, parsing.batch_range)),
        fix={key: str(value) for key, value in (fix or {}).items()},
        headroom=headroom,
        by_cost=by_cost,
        compile=parsing.choice("evidence", evidence, ["analytic", "compiled"]) == "compiled",
    )
    return planner.compare(request, watch or planner.silent)


def rebuild(plan: Plan, model: Any) -> Any:
    """The model under the plan with its weights and optimizer state, ready for `autoplan.fit`.

    model  a compiled model, the one that was tuned or one like it. A Functional or Sequential one stays as it is, and a
           new one is returned; a subclassed one, which cannot be built again, is returned with the plan's compile
           settings and accumulation
    PlanError for another model, and for a plan with what must be set before building where that cannot be done again.
    """
    return _runtime(plan, "rebuild").rebuild(plan, model)


def scope(plan: Plan) -> AbstractContextManager[None]:
    """Build the model in here: dtype policy, remat scope and distribution of the plan are in force.

    ConfigError when the plan's mesh needs more devices than there are; PlanError under another backend.
    """
    return cast("AbstractContextManager[None]", _runtime(plan).scope(plan))


def compile(plan: Plan, model: Any, **arguments: Any) -> Any:  # noqa: A001 -- the name users know from Keras
    """Compile a model that was built in `scope(plan)`, and give it the plan's compile settings; returns the model.

    arguments  those of `model.compile`; left out for a model that is compiled already
    PlanError when the model was built outside the scope although the plan holds what must be set before building.
    """
    return _runtime(plan).compile(plan, model, **arguments)


def fit(plan: Plan, model: Any, data: Any = None, /, *more: Any, **arguments: Any) -> Any:
    """Train under the plan: `model.fit` with its batch size and, on a mesh, its distribution; returns the History.

    data  what `fit` takes as x, or a tuple (x, y[, sample_weight]); further arguments are those of `fit`
    PlanError when the model is another one than the plan's.
    """
    return _runtime(plan).fit(plan, model, data, *more, **arguments)


def measure(
    step: Callable[..., Any],
    *batch: Any,
    samples: int | None = None,
    groups: int = 8,
    group_seconds: float = 0.5,
    max_seconds: float = 60.0,
) -> StepMeasurement:
    """Measure a training step of your own loop (`train_on_batch`, `GradientTape`, `jax.grad` ...), in this process.

        autoplan.measure(model.train_on_batch, x, y)

        def step(batch):                  # a step that hands its state on: keep it between calls
            nonlocal state
            state, loss = train_step(state, batch)
            return loss

        autoplan.measure(step, batch)

    The step is called again and again with the same batch, in groups that each end by waiting for the device: it really
    trains, so what it trains changes. Its first call, with compilation, is apart; groups are warm-up until two in a row
    agree; the rest give a median with its 95% interval.

    step            a function that trains on one batch, which is what it is called with
    batch           the arguments of the step; their first array's first dimension counts the samples
    samples         samples a call, where the batch does not show them
    groups, group_seconds, max_seconds   how many groups, of about so many seconds each; past max_seconds three suffice

    Returns a value with micro_step_seconds, micro_step_seconds_low and _high, samples_per_second, first_call_seconds,
    peak_bytes and group_seconds; `print` shows it in a line. ConfigError for what is no function. What the step itself
    raises passes through.
    """
    if "keras" not in sys.modules and "KERAS_BACKEND" not in os.environ:
        loaded = [name for name in ("jax", "torch", "tensorflow") if name in sys.modules]
        os.environ.update({"KERAS_BACKEND": loaded[0]} if loaded else {})
    home = importlib.import_module("autoplan.runtime.timing.user_step")
    measured = home.measure(
        step, *batch, samples=samples, groups=groups, group_seconds=group_seconds, max_seconds=max_seconds
    )
    return cast("StepMeasurement", measured)


def _source(builder: Any, data: Any) -> SourceSpec:
    """A live model, a file or module, or a function, as a worker can have it."""
    from autoplan.sources import source

    if isinstance(builder, str | Path):
        return source.resolve(str(builder))
    if _is_live_model(builder):
        instances = importlib.import_module("autoplan.runtime.live_models.instances")
        return cast("SourceSpec", instances.pack(builder, data))
    return source.from_callable(builder, data)


def _read(value: Any, read: Callable[[str], Any]) -> Any:
    """What is written as on the command line, as a value; a value as it is."""
    return read(value) if isinstance(value, str) else value


def _names(names: Any) -> tuple[str, ...]:
    """One name or several. Whoever calls `compare(model, x, y)`, as `fit` is called, has given y for the hardware."""
    several = (names,) if isinstance(names, str) else names
    if isinstance(several, list | tuple | set | frozenset) and all(isinstance(name, str) for name in several):
        return tuple(several)
    from autoplan.errors import ConfigError

    raise ConfigError(
        f"names of hardware are expected, such as ['tpu-v5e-4', 'gpu-h100-80gb'], not a {type(names).__name__}. Data "
        "are one argument: compare(model, (x, y))"
    )


def _check_hardware_is_named(hardware: Any) -> None:
    """Whoever calls `optimize(model, x, y)`, as `fit` is called, has given y for the hardware."""
    if not isinstance(hardware, str):
        from autoplan.errors import ConfigError

        raise ConfigError(
            f"the hardware is a {type(hardware).__name__}; expected a name such as 'local'. Data are one argument: "
            "optimize(model, (x, y))"
        )


def _is_live_model(value: Any) -> bool:
    """Whether this is a `keras.Model`. Who has one has imported Keras."""
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(value, keras.Model)


def _runtime(plan: Plan, module: str = "api") -> Any:
    """The module that imports Keras, on the plan's backend where nothing has decided for another one yet."""
    if "keras" not in sys.modules and "KERAS_BACKEND" not in os.environ:
        os.environ["KERAS_BACKEND"] = plan.config["backend"]
    return importlib.import_module(f"autoplan.runtime.{module}")


def __getattr__(name: str) -> Any:
    """Fetch a public name from its home when it is first used (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'autoplan' has no attribute '{name}'; it offers {', '.join(__all__)}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
