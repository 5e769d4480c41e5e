"""`Job`, `Observation`, `JobResult`: the messages that the planner and its worker processes exchange."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from autoplan.plan.attention_calls import AttentionCall
from autoplan.plan.callback_calls import BatchCallback, Calls
from autoplan.plan.fields import Compared, Config
from autoplan.plan.records import Failure, Value
from autoplan.sources.source import SourceSpec
from cost_models.config import TrainConfig

Options = dict[str, Any]
"""Options of a job. Each kind of job has keys of its own."""
Answer = dict[str, Any]
"""The answer of a job as plain values. `autoplan.jobs.runner` makes typed values of it."""


class JobKind(StrEnum):
    """The questions that a worker answers.

    observe   run the source up to the chosen fit; -> Observation
    trace     the same, then the training step -> {"observation": ..., "workload": ...}
    measure   run the chosen fit for a while -> Measurement
    split     run the source up to the chosen fit, then a few micro-steps -> SplitProbe
    numerics  a few updates with each of some seeds -> NumericsRun
    lower     the same as trace, but what a compiler says -> {"evidence": CompilerEvidence} or {"too_large": ...}
    validate  one micro-step of the chosen fit, then one batch of its validation -> {"rows": ..., "held_bytes": ...}
    probe     this machine's rates -> a hardware profile
    """

    OBSERVE = "observe"
    TRACE = "trace"
    SPLIT = "split"
    MEASURE = "measure"
    NUMERICS = "numerics"
    LOWER = "lower"
    VALIDATE = "validate"
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


class SplitProbe(Value):
    """The findings of a few real micro-steps of a model: whether an update may be split and padded.

    Random draws and batch statistics were replaced by fixed values, so `split` and `padding` are about the rest.
    """

    ran: bool = Field(True, description="False: no micro-step was run, and the reason is in split_reason")
    random_draws: list[str] = Field([], description="layers that draw random numbers in a micro-step")
    batch_statistics: list[str] = Field([], description="layers that take statistics over the rows of a micro-step")
    split: Compared = Field("not_known", description="an update in one micro-step against the same in several")
    split_reason: str = Field("", description="what differs, or why it is not known")
    padding: Compared = Field("not_known", description="rows against the same rows padded with rows of weight zero")
    padding_reason: str = Field("", description="what differs, or why it is not known")
    compared: str = Field("", description="what was compared, and how much it differed at most")
    lost_values: dict[str, str] = Field({}, description="16-bit policy -> values of an input that it makes the same")
    seconds: float | None = Field(None, description="time that the micro-steps took, compilation included")
    compilations: int | None = Field(None, description="compilations of the training step")


class Batches(Value):
    """The batches of a fit, as far as they were looked at. Shapes are those of every array of a batch, rows first."""

    looked: int
    of: int | None = Field(description="batches of an epoch, or of the fit where it counts them; None: not known")
    common: list[list[int]] = Field(description="the most frequent shapes")
    largest: list[list[int]] = Field(description="the shapes with the most bytes")
    mean_rows: float
    differ_in_rows: bool
    differ_in_shape: bool

    @property
    def largest_rows(self) -> int:
        """Rows of the largest batch."""
        return self.largest[0][0]

    @property
    def differ(self) -> bool:
        """Whether the largest batch is no usual batch, so that its memory is another."""
        return self.largest != self.common


class ValidationRows(Value):
    """The validation of a fit: how many rows it computes at once."""

    rows: int
    samples: int | None
    fixed: bool = Field(description="the script sets the rows, so that no plan changes them")
    settable: bool = Field(description="validation_batch_size sets the rows, because the data are arrays")


_CALLS: dict[str, Callable[[AttentionCall], bool]] = {
    "attention": lambda call: True,
    "tpu_kernel": lambda call: call.follows_setting and call.fuses_on_tpu,
    "own_tpu_kernel": lambda call: not call.follows_setting and call.fuses_on_tpu,
    "own_attention": lambda call: not call.follows_setting,
    "masked_attention": lambda call: call.has_mask,
    "uneven_attention": lambda call: not call.has_mask and call.is_refused_on_tpu,
}
"""Facts of a layer's calls of attention, by name: the last two are computed without the TPU kernel."""
LAYER_FACTS = frozenset({*_CALLS, "lost_flash_attention", "cudnn_lstm", "cudnn_lstm_of_policy"})
"""Facts that hold for some layers of a model."""


class Observation(Value):
    """The facts of the chosen `fit`, known before its first micro-step."""

    config: Config = Field(description="the script's own configuration")
    structure: str
    losses: str = Field("", description="sha256 of the compiled losses (`model_facts.losses_of`)")
    parameters: int
    samples: int | None
    samples_exact: bool = Field(True, description="samples were counted; else a batch may be partial")
    epochs: int
    steps_per_epoch: int | None = Field(description="micro-steps an epoch, as the script has it")
    explicit_steps_per_epoch: bool
    data: str = Field(description="arrays | tf.data | PyDataset | DataLoader | generator | synthetic | other")
    rebatchable: bool
    splits_only: bool = Field(False, description="each batch can be split, but no two batches can be joined")
    batches: Batches | None = Field(None, description="None: the data were not looked through")
    data_bytes: int | None = Field(None, description="bytes of the arrays that are given to fit, validation included")
    logits: list[list[int]] = Field([], description="shapes of outputs with logits of classes, without the batch")
    validation: ValidationRows | None = Field(None, description="None: nothing is validated, or it is not known")
    batch_norm: bool
    random_layers: bool = Field(description="dropout, noise, random augmentation")
    recurrent: bool
    unweighted_metrics: bool
    own_metrics: list[str] = Field([], description="compiled metrics that are functions of the user's own")
    metric_monitors: list[str] = Field([], description="callbacks that monitor one of `own_metrics`")
    custom_train_step: bool
    masks: bool = Field(False, description="positions are left out of the loss")
    added_losses: bool = Field(False, description="losses that layers add of their own outputs, past any weights")
    unscaled_train_step: bool = Field(False, description="its own train_step never calls optimizer.scale_loss")
    own_optimizers: list[str] = Field([], description="attributes with optimizers that its own train_step applies")
    schedule: bool = Field(description="a learning-rate schedule that counts micro-steps")
    ema: bool
    constraint: str = Field("", description="a constraint of a weight that gives another result if applied twice")
    optimizer: str
    writers_left_out: list[str] = Field([], description="callbacks that write and are left out of trials")
    files_written: list[str] = Field([], description="files that the script wrote before its fit, in this job")
    files_put_back: list[str] = Field([], description="the same, put back as they were before the tuning")
    batch_callbacks: list[BatchCallback] = Field(
        [], description="callbacks with batch hooks that count or are own code"
    )
    counting_code: list[str] = Field([], description="classes whose own code adds a number at every micro-step")
    other_models: list[str] = Field([], description="models with weights at the fit that the tuned model is no part of")
    own_policies: list[str] = Field([], description="dtype policies that the process had before the fit")
    may_fit_again: bool = Field(False, description="the script's text has other calls of fit, or one in a loop")
    intercepted: list[str] = Field([], description="calls of the script that a candidate overrides")
    why_fixed_batch: str = Field("", description="why the batch cannot be changed, where `rebatchable` is false")
    probe: SplitProbe | None = Field(None, description="what micro-steps showed; None: the model was not probed")
    held: dict[str, str] = Field({}, description="knobs that this source does not let be turned, with the reason")
    attention_calls: list[AttentionCall] = Field([], description="in the forward pass, on JAX")
    cudnn_lstms: dict[str, bool] = Field(
        {}, description="layers whose LSTM is a call of cuDNN on GPUs, on JAX, and whether they follow the dtype policy"
    )
    lost_flash_attention: list[str] = Field([], description="layers whose flash_attention=False Keras did not keep")
    layer_kinds: list[str] = Field([], description="class names of the model's layers, for known_issues")
    setup_seconds: float
    devices: int
    device_kind: str
    device_memory_bytes: int | None
    process_bytes: int | None = Field(None, description="held before the first micro-step: libraries, data, weights")
    environment: dict[str, str]
    assumed: list[str] = Field([], description="notes on which batches the figures are of, where batches may differ")
    notes: list[str] = []

    def calls_under(self, wanted: TrainConfig) -> Calls:
        """Return how often batch hooks are called in the script and under a configuration."""
        return Calls.between(
            self.config,
            wanted,
            samples=self.samples,
            micro_steps=self.steps_per_epoch,
            counted=self.explicit_steps_per_epoch,
            epochs=self.epochs,
        )

    @property
    def draws_random_numbers(self) -> bool:
        """Whether a micro-step draws random numbers: as probed, else by the names of its layers."""
        return bool(self.probe.random_draws) if self.probe is not None and self.probe.ran else self.random_layers

    @property
    def takes_batch_statistics(self) -> bool:
        """Whether layers take statistics over a micro-step: as probed, else by the names of its layers."""
        return bool(self.probe.batch_statistics) if self.probe is not None and self.probe.ran else self.batch_norm

    @property
    def lost_values(self) -> dict[str, str]:
        """Values of inputs that 16-bit policies would lose, by policy, as probed."""
        return {} if self.probe is None else self.probe.lost_values

    @property
    def padding(self) -> Compared | None:
        """The result of a probe with rows of weight zero; None where the model was not probed."""
        return None if self.probe is None or not self.probe.ran else self.probe.padding

    @property
    def can_pad(self) -> bool:
        """Whether rows of weight zero leave an update as it is: as probed, else by the model's layers and losses."""
        if self.probe is not None and self.probe.padding != "not_known":
            return self.probe.padding == "same"
        return not (
            self.batch_norm or self.unweighted_metrics or self.added_losses or self.masks or self.custom_train_step
        )

    def layers_with(self, fact: str) -> list[str]:
        """Return the names of the layers to which a fact applies, on which a known issue depends (`LAYER_FACTS`)."""
        if fact == "lost_flash_attention":
            return self.lost_flash_attention
        if fact in ("cudnn_lstm", "cudnn_lstm_of_policy"):
            return [name for name, follows in self.cudnn_lstms.items() if follows or fact == "cudnn_lstm"]
        return list(dict.fromkeys(one.layer for one in self.attention_calls if _CALLS[fact](one)))

    @property
    def reaches_end(self) -> bool:
        """Whether the fit comes to the end of its data, where an update may be partial; if not, it counts its steps."""
        if not self.explicit_steps_per_epoch:
            return True
        steps, samples = self.steps_per_epoch or 0, self.samples or 0
        return self.data == "arrays" and steps * self.epochs * self.config.batch.global_size >= samples

    def samples_left_out(self, wanted: TrainConfig) -> int:
        """Return how many samples of an epoch a configuration leaves out, as far as their number is known.

        The rule is that of `runtime/data/rebatch.remainder_mode`.
        """
        batch = wanted.batch
        if batch == self.config.batch or not self.reaches_end or self.can_pad or not self.samples_exact:
            return 0
        return (self.samples or 0) % batch.effective % batch.accumulation


VariableKind = Literal["weight", "seed", "batch_statistics", "state"]
"""weight: trained; seed: state of a random number generator; batch_statistics: of BatchNormalization; state: other."""


class VariableDifference(Value):
    """How differently one variable changed in two runs."""

    path: str
    kind: VariableKind
    difference: float = Field(
        description="norm of the difference of the two changes, relative to the baseline's change"
    )
    baseline_change: float | None = Field(None, description="of a variable with a single element")
    plan_change: float | None = None


class ChangeComparison(Value):
    """The changes of a model's variables compared with those of another run."""

    weights: float = Field(description="relative difference of the changes of all trainable weights together")
    variables: list[VariableDifference]


class UpdateRun(Value):
    """A few updates with one seed. `None` is "not known"."""

    seed: int
    losses: list[float] = Field(description="one an update")
    applied: int | None = Field(None, description="updates that changed the weights; a loss scale skips some")
    weight_change: float | None = Field(None, description="norm of the change of the trainable weights")
    state_changes: dict[str, float] = Field({}, description="norms of the changes of other variables, by path")
    random_draws: list[str] = Field([], description="seed states from which numbers were drawn")


class NumericsRun(Value):
    """The updates that a job ran, one run for each of the seeds that it could run in one process."""

    runs: list[UpdateRun]
    remainder_rows: int = Field(0, description="rows of the partial last update of an epoch that was among them")
    compared: ChangeComparison | None = Field(None, description="the first run compared with a file of another job")


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
