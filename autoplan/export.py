"""Exports a plan as Python source of plain Keras calls, for a script that must not depend on autoplan."""

from __future__ import annotations

import math
from collections.abc import Iterator

from autoplan.errors import ConfigError, PlanError
from autoplan.machine import process_settings
from autoplan.plan import knobs
from autoplan.plan.file import first_line
from autoplan.plan.records import Plan
from cost_models.config import RematMode, TrainConfig

TARGETS = ("python",)

_ACCUMULATION = '''
def accumulating(optimizer):
    """Set gradient accumulation on the optimizer, inside a LossScaleOptimizer if there is one, and return it."""
    inner = optimizer
    while isinstance(inner, keras.optimizers.LossScaleOptimizer):
        inner = inner.inner_optimizer
    inner.gradient_accumulation_steps = ACCUMULATION if ACCUMULATION > 1 else None
    return optimizer
'''

_SCHEDULE = '''
@keras.saving.register_keras_serializable()
class ScheduleForNewBatch(keras.optimizers.schedules.LearningRateSchedule):
    """Use a learning-rate schedule that was written for the old batch size with the new batch size.

    Keras passes the number of micro-steps to a schedule, and the plan changes the size of a micro-step. This class
    converts that number: your schedule is called with the number of old micro-steps that processed as many samples.
    """

    def __init__(self, schedule):
        self.schedule = keras.saving.deserialize_keras_object(schedule) if isinstance(schedule, dict) else schedule

    def __call__(self, step):
        update = keras.ops.floor_divide(step, ACCUMULATION)
        old_update = keras.ops.floor_divide(update * {new_share}, {old_share})  # after the same number of samples
        return self.schedule(old_update * OLD_ACCUMULATION + OLD_ACCUMULATION - 1)

    def get_config(self):
        return {"schedule": keras.saving.serialize_keras_object(self.schedule)}
'''


def exported(plan: Plan, to: str = "python") -> str:
    """Return the plan as a Python module that needs only Keras.

    Raises ConfigError for an unknown target, PlanError for a plan that plain calls cannot express yet.
    """
    if to not in TARGETS:
        raise ConfigError(f"--to {to}: unknown export target; choose from {', '.join(TARGETS)}")
    config, baseline = plan.config, plan.baseline.config
    _refuse(config)
    parts = [_head(plan, config), _imports(config), _constants(config, baseline)]
    parts += [_process(config, baseline), _ACCUMULATION]
    if config.batch != baseline.batch:
        parts.append(_schedule(config, baseline))
    parts.append(_usage(plan, config, baseline))
    return "\n".join(parts)


def _refuse(config: TrainConfig) -> None:
    if config.mesh.model > 1 or config.layout.shard_state:
        raise PlanError(
            "this plan splits weights over devices, which a few plain Keras calls cannot do; "
            "run it with `autoplan train`"
        )
    if config.mesh.devices > 1 and config.backend != "jax":
        raise PlanError(
            f"this plan uses {config.mesh.devices} devices on {config.backend}, which keras.distribution does not "
            "support; run it with `autoplan train`"
        )


def _head(plan: Plan, config: TrainConfig) -> str:
    return (
        f'"""{_in_docstring(first_line(plan))}\n\n'
        f"Plain Keras {_in_docstring(plan.environment.keras)} calls for {config.describe()}.\n"
        "Put the settings before the code that builds the model, build the model inside planned_model(), and pass\n"
        "COMPILE to compile() and FIT to fit().\n"
        '"""\n'
    )


def _printable(text: str) -> str:
    """Return text of a plan as it can stand in a comment: without line breaks and unprintable characters."""
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def _in_docstring(text: str) -> str:
    return _printable(text).replace("\\", "\\\\").replace('"""', "'''")


def _imports(config: TrainConfig) -> str:
    return (
        "import contextlib\nimport os\n\n"
        f'os.environ["KERAS_BACKEND"] = "{config.backend}"  # read when Keras is imported\n'
        f"{process_settings.statements(config)}\n"
        "import keras  # noqa: E402\n"
    )


def _constants(config: TrainConfig, baseline: TrainConfig) -> str:
    batch, old = config.batch, baseline.batch
    lines = [
        f"GLOBAL_BATCH = {batch.global_size}  # samples per micro-step, over all devices",
        f"ACCUMULATION = {batch.accumulation}  # micro-steps per update, so {batch.effective} samples per update",
    ]
    if batch != old:
        lines += [
            f"OLD_GLOBAL_BATCH = {old.global_size}",
            f"OLD_ACCUMULATION = {old.accumulation}  # {old.effective} samples per update",
        ]
    lines += [
        "",
        f"COMPILE = {{{_compile_arguments(config)}}}",
        'FIT = {"batch_size": GLOBAL_BATCH}',
        "",
    ]
    return "\n".join(lines)


def _compile_arguments(config: TrainConfig) -> str:
    """Return the arguments of `model.compile` that are knobs, as the items of a dictionary."""
    rows = sorted((knob for knob in knobs.KNOBS if knob.compile_argument), key=lambda knob: knob.name)
    return ", ".join(f'"{knob.name}": {knob.value(config)!r}' for knob in rows)


def _statements(config: TrainConfig, baseline: TrainConfig) -> Iterator[str]:
    """Yield one statement for each knob that a plain Keras call sets; none for a value that nothing can set."""
    return filter(None, (knob.statement(config, baseline) for knob in knobs.KNOBS if knob.keras_statement))


def _process(config: TrainConfig, baseline: TrainConfig) -> str:
    """Return the statements that must run before the model is built."""
    lines = list(_statements(config, baseline))
    if config.mesh.devices > 1:
        lines += [
            f"devices = keras.distribution.list_devices()[:{config.mesh.data}]",
            f"if len(devices) < {config.mesh.data}:",
            f'    raise SystemExit(f"the plan needs {config.mesh.data} devices; found {{len(devices)}}")',
            "keras.distribution.set_distribution(keras.distribution.DataParallel(devices=devices))",
        ]
    elif baseline.mesh.devices > 1:
        lines.append("keras.distribution.set_distribution(None)")
    return "\n".join([*lines, "", "", *_model_scope(config, baseline)])


def _model_scope(config: TrainConfig, baseline: TrainConfig) -> Iterator[str]:
    yield "def planned_model():"
    yield '    """Build the model in this scope: `with planned_model(): model = ...`"""'
    if config.remat.mode is not RematMode.NONE:
        yield f'    return keras.RematScope(mode="{config.remat.mode}")'
    elif baseline.remat.mode is not RematMode.NONE:
        yield "    return keras.RematScope(mode=None)  # and remove your own RematScope"
    else:
        yield "    return contextlib.nullcontext()"
    yield ""


def _schedule(config: TrainConfig, baseline: TrainConfig) -> str:
    new, old = config.batch.effective, baseline.batch.effective
    common = math.gcd(new, old)
    return _SCHEDULE.replace("{new_share}", str(new // common)).replace("{old_share}", str(old // common))


def _usage(plan: Plan, config: TrainConfig, baseline: TrainConfig) -> str:
    notes = [*_usage_lines(), *_batch_notes(plan, config, baseline), *(f"Note: {note}" for note in plan.notes)]
    lines = [line for note in notes for line in note.splitlines() or [""]]
    return "\n" + "".join(f"# {_printable(line)}".rstrip() + "\n" for line in lines)


def _usage_lines() -> Iterator[str]:
    yield "How to use it:"
    yield "    with planned_model():"
    yield "        model = build_model()"
    yield "    model.compile(optimizer=accumulating(your_optimizer), loss=your_loss, **COMPILE)"
    yield "    model.fit(x, y, epochs=your_epochs, **FIT)"
    yield ""


def _batch_notes(plan: Plan, config: TrainConfig, baseline: TrainConfig) -> Iterator[str]:
    batch, old, samples = config.batch, baseline.batch, plan.source.fit.samples
    if batch != old:
        yield "Wrap a learning-rate schedule for the old batch size: learning_rate=ScheduleForNewBatch(your_schedule)."
    if batch.global_size != old.global_size:
        yield "Multiply steps_per_epoch and other counts of micro-steps by OLD_GLOBAL_BATCH / GLOBAL_BATCH."
        yield "With EMA, use ema_momentum ** (GLOBAL_BATCH / OLD_GLOBAL_BATCH): Keras averages after every micro-step."
        yield "Rebatch data that is already batched, such as a tf.data.Dataset: dataset.unbatch().batch(GLOBAL_BATCH)."
    if batch.effective != old.effective:
        ratio = batch.effective / old.effective
        yield f"An update sees {ratio:g} times as many samples as before: choose a new learning rate."
    rest = None if samples is None else samples % batch.effective
    if rest and (batch.accumulation > 1 or config.mesh.devices > 1):
        yield f"The last {rest} of {samples} samples do not fill an update: drop them, or pad them with weight zero."
