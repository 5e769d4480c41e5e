"""Leaves out configurations under which callbacks would change a training at other samples than in the script."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from autoplan.jobs.messages import Observation
from autoplan.plan.callback_calls import BatchCallback, calls_per_script_call
from autoplan.plan.records import Rejection
from cost_models.config import TrainConfig

_PINS = {"batch": {"accumulation", "global", "local", "effective"}, "steps_per_execution": {"steps_per_execution"}}
"""Knobs by which the user asks for another number of calls, by the field that they set."""


def without_lost_calls(
    configs: Iterable[TrainConfig], observation: Observation, fixed: Mapping[str, Any], *, batch_is_free: bool
) -> tuple[list[TrainConfig], list[Rejection]]:
    """Return the configurations with as many calls of batch hooks as the script, and what was left out.

    Callbacks that change the training (stop it, set a learning rate) do so at each call. `autoplan train` joins calls
    of Keras to one, but it cannot make more. Configurations that the user asks for are kept.

    fixed          values that `--fix` sets, under the flat names of knobs
    batch_is_free  whether the user asks for other effective batches
    """
    listed = list(configs)
    changing = [one for one in observation.batch_callbacks if one.changes]
    if not changing:
        return listed, []
    asked = {name for name, knobs in _PINS.items() if knobs & fixed.keys()} | ({"batch"} if batch_is_free else set())
    lost = {one for one in listed if _loses_calls(one, observation.config, asked)}
    kept = [one for one in listed if one not in lost]
    if not kept or not lost:
        return listed, []
    first = next(one for one in listed if one in lost)
    return kept, [_rejection(first, len(lost), changing)]


def _loses_calls(config: TrainConfig, baseline: TrainConfig, asked: set[str]) -> bool:
    if calls_per_script_call(baseline, config) is not None:
        return False
    return any(getattr(config, name) != getattr(baseline, name) and name not in asked for name in _PINS)


def _rejection(config: TrainConfig, count: int, changing: list[BatchCallback]) -> Rejection:
    names = ", ".join(dict.fromkeys(one.describe() for one in changing))
    return Rejection(
        config=config,
        stage="held",
        reason=(
            f"batch hooks of {names}: with fewer calls than in the script they would act at other samples; "
            "--fix sets such a value all the same"
        ),
        figures={"configurations": count},
    )
