"""`Job`, `Observation`, `JobResult`: the messages that the planner and its worker processes exchange."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

from pydantic import Field, model_validator

from autoplan.plan.fields import Config
from autoplan.plan.records import Failure, Value
from autoplan.sources.source import SourceSpec

Options = dict[str, Any]
"""Options of a job. Each kind of job has keys of its own."""
Answer = dict[str, Any]
"""The answer of a job as plain values. `autoplan.jobs.runner` makes typed values of it."""


class JobKind(StrEnum):
    """The questions that a worker answers.

    observe   run the source up to the chosen fit; -> Observation
    trace     the same, then the training step -> {"observation": ..., "workload": ...}
    measure   run the chosen fit for a while -> Measurement
    numerics  a few updates with a seed -> losses an update
    lower     the same as trace, but what a compiler says -> {"evidence": CompilerEvidence} or {"too_large": ...}
    probe     this machine's rates -> a hardware profile
    """

    OBSERVE = "observe"
    TRACE = "trace"
    MEASURE = "measure"
    NUMERICS = "numerics"
    LOWER = "lower"
    PROBE = "probe"


class Job(Value):
    """One question to one process. `config` None means "as the script has it"."""

    kind: JobKind
    source: SourceSpec | None = None
    backend: str = "jax"
    config: Config | None = None
    baseline: Config | None = Field(None, description="the script's own configuration, once observed")
    devices: int | None = Field(None, description="simulated CPU devices; None leaves the machine as it is")
    options: Options = {}

    @model_validator(mode="after")
    def _change_is_known(self) -> Self:
        """Refuse a configuration without a baseline: only differences are applied, so nothing would be applied."""
        if self.config is not None and self.baseline is None:
            raise ValueError("a job with a configuration needs the script's own beside it, as its baseline")
        return self


class Observation(Value):
    """The facts of the chosen `fit`, known before its first micro-step."""

    config: Config = Field(description="the script's own configuration")
    structure: str
    parameters: int
    samples: int | None
    samples_exact: bool = Field(True, description="samples were counted; else a batch may be partial")
    epochs: int
    steps_per_epoch: int | None = Field(description="micro-steps an epoch, as the script has it")
    explicit_steps_per_epoch: bool
    data: str = Field(description="arrays | tf.data | PyDataset | DataLoader | generator | synthetic | other")
    rebatchable: bool
    batch_norm: bool
    random_layers: bool = Field(description="dropout, noise, random augmentation")
    recurrent: bool
    unweighted_metrics: bool
    custom_train_step: bool
    masks: bool = Field(False, description="positions are left out of the loss")
    added_losses: bool = Field(False, description="losses that layers add of their own outputs, past any weights")
    unscaled_train_step: bool = Field(False, description="its own train_step never calls optimizer.scale_loss")
    own_optimizers: list[str] = Field([], description="attributes with optimizers that its own train_step applies")
    schedule: bool = Field(description="a learning-rate schedule that counts micro-steps")
    ema: bool
    optimizer: str
    writers_left_out: list[str] = Field([], description="callbacks that write and are left out of trials")
    intercepted: list[str] = Field([], description="calls of the script that a candidate overrides")
    held: dict[str, str] = Field({}, description="knobs that this source does not let be turned, with the reason")
    layer_kinds: list[str] = Field([], description="class names of the model's layers, for known_issues")
    setup_seconds: float
    devices: int
    device_kind: str
    device_memory_bytes: int | None
    process_bytes: int | None = Field(None, description="held before the first micro-step: libraries, data, weights")
    environment: dict[str, str]
    notes: list[str] = []


@dataclass(frozen=True)
class JobResult:
    """The result of a job: exactly one of `value` and `failure` is set.

    peak_bytes is the peak memory of its processes together, as it was sampled, in bytes.
    """

    value: Answer | None
    failure: Failure | None
    wall_seconds: float
    peak_bytes: int | None = None
    phases: dict[str, float] = field(default_factory=dict)
