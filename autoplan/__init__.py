"""autoplan finds, measures and applies the fastest way to run a Keras training script on a given machine.

Importing this package imports no framework. A name is loaded when it is first used.

    plan = autoplan.optimize(model, data=(x, y))           # tune a compiled model here, in worker processes
    model = autoplan.rebuild(plan, model)                  # the same model, with its weights, built for the plan
    autoplan.fit(plan, model, x, y)

    plan = autoplan.optimize(build_model, data=(x, y))     # or tune a function that builds and compiles a model
    plan = autoplan.load_plan("plan.yaml")                 # or read a plan that `autoplan tune` wrote
    with autoplan.scope(plan):                             # then train with the plan
        model = build_model()
    autoplan.compile(plan, model)
    autoplan.fit(plan, model, x, y)

    found = autoplan.compare(build_model, data=(x, y))     # the hardware on which it fits, its speed and its price
    print(autoplan.measure(step, batch))                   # the time of one step of a custom training loop
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from autoplan._version import __version__

if TYPE_CHECKING:
    from autoplan.comparison.result import Comparison
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
    compile_count: int | None = None,
    witnesses: int | None = None,
    input_shape: Any = None,
    watch: Watch | None = None,
    verbose: int = 1,
) -> Plan:
    """Tune a model for some hardware, as `autoplan tune` does, and return the best verified plan.

    builder          a compiled `keras.Model`, a function that builds and compiles one, or a source of `autoplan tune`.
                     A live model is not changed: a Functional or Sequential model is built again for each trial.
                     Precision, remat, attention and mesh of a subclassed model are tuned only through a function
    data             (x, y), a dict of arguments of `fit`, or a function that returns either. None: synthetic batches
    effective_batch  "keep", or the samples per update: "256", or a range to try, "64..4096" or (64, 4096)
    fix, only        knobs to pin, as {"precision": "float32"}, and the knobs to tune, as ["batch"]
    headroom         fraction of the memory that stays free; `budget` is in seconds or "10m", `memory_limit` "2GiB"
    compile_count    for absent hardware, the largest number of candidates to compile; `witnesses` is its former name
    input_shape      without data: the sizes of a sample, (224, 224, 3), or {"ids": (512,)} by the names of inputs
    watch, verbose   called with every `autoplan.tuning.request.Event`; without it, 1 prints progress on stderr

    Raises AutoplanError: NoFeasibleConfiguration where nothing fits or keeps `fix`, NothingMeasured where time ends.
    """
    from autoplan import parsing, planner  # here, so that importing autoplan stays cheap
    from autoplan.tuning.request import TuneRequest

    request = TuneRequest(
        hardware=_named(hardware),
        source=_source(builder, data, input_shape),
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
        compile_count=witnesses if compile_count is None else compile_count,
    )
    with _progress(watch, verbose) as shown:
        return cast("Plan", planner.tune(request, shown).plan)  # None for a dry run only


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
    input_shape: Any = None,
    watch: Watch | None = None,
    verbose: int = 1,
) -> Comparison:
    """Compare hardware for a training, as `autoplan compare` does: where it fits, how fast, and at what price.

        found = autoplan.compare("train.py", family=["tpu", "nvidia"], by_cost=True)
        for row in found.rows:
            print(row.hardware, row.verdict, row.samples_per_second, row.usd_per_million_samples)

    builder, data    as in `optimize`
    hardware         names of `autoplan hardware list`, YAML files or "local"; each has a row
    family           instead of names: tpu, gpu, nvidia, amd, cpu, all. The default is every TPU and GPU of the
                     catalogue, each chip in the smallest size of at most 64 chips on which the training fits
    by_cost          sort by price instead of speed
    evidence         "analytic", or "compiled" to also run the compilers of the named hardware
    effective_batch, fix, headroom, input_shape, watch, verbose   as in `optimize`

    Nothing is trained or measured.

    Returns a Comparison: rows in order, and `to_dict()`, the document of `--format json`.
    Raises AutoplanError, with a message on what to do.
    """
    from autoplan import parsing, planner  # here, so that importing autoplan stays cheap
    from autoplan.tuning.request import CompareRequest

    request = CompareRequest(
        source=_source(builder, data, input_shape),
        hardware=_names(hardware),
        families=_names(family),
        backend=backend,
        effective_batch=(_read(effective_batch, parsing.batch_range)),
        fix={key: str(value) for key, value in (fix or {}).items()},
        headroom=headroom,
        by_cost=by_cost,
        compile=parsing.choice("evidence", evidence, ["analytic", "compiled"]) == "compiled",
    )
    with _progress(watch, verbose) as shown:
        return planner.compare(request, shown)


def rebuild(plan: Plan, model: Any) -> Any:
    """Return the model as the plan needs it, with its weights and optimizer state, ready for `autoplan.fit`.

    model  a compiled model: the model that was tuned, or a similar one. A Functional or Sequential model is not
           changed, and a new model is returned. A subclassed model cannot be built again: it is returned with the
           compile settings and the accumulation of the plan

    Raises PlanError for another model, and for a subclassed model if the plan has settings that need a new model.
    """
    return _runtime(plan, "rebuild").rebuild_model(plan, model)


def scope(plan: Plan) -> AbstractContextManager[None]:
    """Return a context in which to build the model: it sets the plan's dtype policy, attention, remat and distribution.

    Raises ConfigError if the plan's mesh needs more devices than this machine has, and PlanError on another backend.
    """
    return cast("AbstractContextManager[None]", _runtime(plan).scope(plan))


def compile(plan: Plan, model: Any, **arguments: Any) -> Any:  # noqa: A001 -- the name users know from Keras
    """Compile a model that was built in `scope(plan)` with the plan's compile settings, and return the model.

    arguments  arguments of `model.compile`; without them, a compiled model keeps its own

    Raises PlanError if the model was built outside of the scope and the plan has settings that need the scope.
    """
    return _runtime(plan).compile(plan, model, **arguments)


def fit(plan: Plan, model: Any, data: Any = None, /, *more: Any, **arguments: Any) -> Any:
    """Call `model.fit` with the plan's batch size and, on a mesh, its distribution. Returns the History.

    data  the argument x of `fit`, or a tuple (x, y[, sample_weight]); further arguments go to `fit`

    Raises PlanError if the plan was made for another model.
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
    """Measure a step of a custom training loop (`train_on_batch`, `GradientTape`, `jax.grad` ...), in this process.

        autoplan.measure(model.train_on_batch, x, y)

        def step(batch):                  # a step with a state: store it between calls
            nonlocal state
            state, loss = train_step(state, batch)
            return loss

        autoplan.measure(step, batch)

    The step is called repeatedly with the same batch, in groups; each group ends when the device is idle. The calls
    train, so the weights change. The first call, with compilation, is measured separately. Groups count as warm-up
    until two consecutive groups agree. The others give the median and its 95% confidence interval.

    step            a function that trains on one batch
    batch           the arguments of the step; the first dimension of the first array is the number of samples
    samples         samples per call, if the batch does not show them
    groups          the number of groups
    group_seconds   the seconds of a group, about
    max_seconds     after so many seconds, three groups are enough

    Returns a StepMeasurement, which `print` shows in one line.
    Raises ConfigError if `step` is not a function. Errors of the step are passed on.
    """
    if "keras" not in sys.modules and "KERAS_BACKEND" not in os.environ:
        loaded = [name for name in ("jax", "torch", "tensorflow") if name in sys.modules]
        os.environ.update({"KERAS_BACKEND": loaded[0]} if loaded else {})
    user_step = importlib.import_module("autoplan.runtime.timing.user_step")
    measured = user_step.measure_step(
        step, batch, samples=samples, groups=groups, group_seconds=group_seconds, max_seconds=max_seconds
    )
    return cast("StepMeasurement", measured)


def _progress(watch: Watch | None, verbose: int) -> AbstractContextManager[Watch]:
    """Return the function that receives events: the user's, else one that prints them on stderr, or nothing."""
    from autoplan import planner

    if watch is not None or not verbose:
        return nullcontext(watch or planner.silent)
    from autoplan.reports import progress

    return progress.watching(sys.stderr)


def _source(builder: Any, data: Any, input_shape: Any = None) -> SourceSpec:
    """Return the source, for a worker, of a live model, a file or module, or a function, with given input shapes."""
    from autoplan import parsing

    texts = [input_shape] if isinstance(input_shape, str) else parsing.shape_texts(input_shape)
    return _resolved(builder, data).model_copy(update={"input_shapes": parsing.input_shapes(texts)})


def _resolved(builder: Any, data: Any) -> SourceSpec:
    from autoplan.sources import source

    if isinstance(builder, str | Path):
        return source.resolve(str(builder))
    if _is_live_model(builder):
        package = importlib.import_module("autoplan.runtime.live_models.package")
        return cast("SourceSpec", package.pack(builder, data))
    return source.from_callable(builder, data)


def _read(value: Any, read: Callable[[str], Any]) -> Any:
    """Return the value of a text as on the command line; other values are returned as they are."""
    return read(value) if isinstance(value, str) else value


def _names(names: Any) -> tuple[str, ...]:
    """Return one name or several. Raises ConfigError for arrays: `compare(model, x, y)` passes y as the hardware."""
    several = (names,) if isinstance(names, str) else names
    if isinstance(several, list | tuple | set | frozenset) and all(isinstance(name, str) for name in several):
        return tuple(several)
    from autoplan.errors import ConfigError

    raise ConfigError(
        f"names of hardware are expected, such as ['tpu-v5e-4', 'gpu-h100-80gb'], not a {type(names).__name__}. Data "
        "are one argument: compare(model, (x, y))"
    )


def _named(hardware: Any) -> str:
    """Return the name of the hardware. ConfigError for arrays: `optimize(model, x, y)` passes y as the hardware."""
    if not isinstance(hardware, str):
        from autoplan.errors import ConfigError

        raise ConfigError(
            f"the hardware is a {type(hardware).__name__}; expected a name such as 'local'. Data are one argument: "
            "optimize(model, (x, y))"
        )
    return hardware


def _is_live_model(value: Any) -> bool:
    """Return whether this is a `keras.Model`. Without Keras in this process, it cannot be."""
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(value, keras.Model)


def _runtime(plan: Plan, module: str = "api") -> Any:
    """Return a module that imports Keras. Keras uses the plan's backend if no backend is set yet."""
    if "keras" not in sys.modules and "KERAS_BACKEND" not in os.environ:
        os.environ["KERAS_BACKEND"] = plan.config.backend
    return importlib.import_module(f"autoplan.runtime.{module}")


def __getattr__(name: str) -> Any:
    """Import a public name from its module when it is first used (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'autoplan' has no attribute '{name}'; it offers {', '.join(__all__)}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
