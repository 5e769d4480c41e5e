"""The bridge to worker processes: what is asked, what comes back, and the client that starts, limits and ends them."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import Field

from autoplan.plan import Value


class JobKind(StrEnum):
    """What a worker can be asked.

    observe   run the source up to the chosen fit; -> Observation
    trace     the same, then the training step -> {"observation": ..., "workload": ...}
    measure   run the chosen fit for a while -> Measurement
    numerics  a few updates with a seed -> losses an update
    probe     this machine's rates -> a hardware profile
    """

    OBSERVE = "observe"
    TRACE = "trace"
    MEASURE = "measure"
    NUMERICS = "numerics"
    PROBE = "probe"


class SourceSpec(Value):
    """Where a model comes from, as something that a fresh process can rebuild.

    script    `path` is run as `__main__` with `args` (or `module` is, as `python -m` does)
    builder   `path` (a file) or `module` is imported; `function` (default build_model) is called, `train_data` too if there
    callable  `payload` is a base64 cloudpickle, by value, of (builder, data or None)
    """

    kind: str
    path: str = ""
    module: str | None = None
    function: str = "build_model"
    args: list[str] = []
    fit_index: int = 1
    payload: str | None = None
    sha256: str
    directory: str = Field("", description="working directory that the source expects")


class Job(Value):
    """One question to one process. `config` is TrainConfig.to_dict(), or None for "as the script has it"."""

    kind: JobKind
    source: SourceSpec | None = None
    backend: str = "jax"
    config: dict[str, Any] | None = None
    baseline: dict[str, Any] | None = Field(None, description="the script's own configuration, once observed")
    devices: int | None = Field(None, description="simulated CPU devices; None leaves the machine as it is")
    options: dict[str, Any] = {}


class Observation(Value):
    """What the chosen `fit` said about itself, before a single step."""

    config: dict[str, Any] = Field(description="the script's own TrainConfig")
    structure: str
    parameters: int
    samples: int | None
    epochs: int
    steps_per_epoch: int | None = Field(description="micro-steps an epoch, as the script has it")
    explicit_steps_per_epoch: bool
    data: str = Field(description="arrays | tf.data | synthetic | other")
    rebatchable: bool
    batch_norm: bool
    random_layers: bool = Field(description="dropout, noise, random augmentation")
    recurrent: bool
    unweighted_metrics: bool
    custom_train_step: bool
    schedule: bool = Field(description="a learning-rate schedule that counts micro-steps")
    ema: bool
    optimizer: str
    writers_left_out: list[str] = Field([], description="callbacks that write and are left out of trials")
    intercepted: list[str] = Field([], description="calls of the script that a candidate overrides")
    layer_kinds: list[str] = Field([], description="class names of the model's layers, for known_issues")
    setup_seconds: float
    devices: int
    device_kind: str
    device_memory_bytes: int | None
    environment: dict[str, str]
    notes: list[str] = []
