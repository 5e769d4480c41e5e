"""`Plan`, `Measurement`, `Failure` and the other records that tuning produces and that a plan file contains.

Every figure names its unit, every group of figures its evidence tier. `None` is "not known", never zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from autoplan.plan.fields import AnalyticEstimate, Compared, Config, ProgramTime

SCHEMA_VERSION = 1
DEFAULT_FUNCTION = "build_model"
"""The builder of a file where none is named."""
_IF_ANY = frozenset(
    {
        *("callbacks_ran", "callbacks_left_out", "writers", "files_written"),
        *("fit_micro_steps", "growth_bytes", "growth_micro_steps", "grown_bytes"),
    }
)
"""Fields of a measurement that are written only if they have a value."""
NOTABLE = 0.05
"""Share by which the gain of a whole fit has to differ from that of the compiled programs to be shown beside it."""


class Evidence(StrEnum):
    """Where a number comes from."""

    ANALYTIC = "analytic"
    COMPILED = "compiled"
    MEASURED = "measured"


class FailureKind(StrEnum):
    """Why a trial has no measurement."""

    OOM = "oom"
    COMPILE_OOM = "compile_oom"
    TIMEOUT = "timeout"
    NAN = "nan"
    UNSUPPORTED = "unsupported"
    DATA = "data"
    CRASH = "crash"


FAILURES: Mapping[str, str] = {
    FailureKind.OOM: "out of memory",
    FailureKind.COMPILE_OOM: "out of memory while compiling or in the first micro-step",
    FailureKind.TIMEOUT: "took too long",
    FailureKind.NAN: "the loss became NaN",
    FailureKind.UNSUPPORTED: "not supported",
    FailureKind.DATA: "could not read its data",
    FailureKind.CRASH: "crashed",
}
"""Each kind of failure in words."""


class Value(BaseModel):
    """A frozen record that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def _without_none(values: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return plain values without those of these names that are None."""
    return {key: value for key, value in values.items() if key not in names or value is not None}


class Measurement(Value):
    """A measurement of one process on this machine."""

    micro_step_seconds: float = Field(gt=0, description="median over groups of micro-steps, real input path")
    micro_step_seconds_low: float = Field(
        gt=0, description="lower end of the 95% interval; in a plan it holds for other processes too"
    )
    micro_step_seconds_high: float = Field(gt=0)
    update_seconds: float = Field(gt=0, description="micro_step_seconds x accumulation")
    samples_per_second: float = Field(gt=0)
    updates_per_second: float = Field(gt=0)
    compute_micro_step_seconds: float | None = Field(
        None, description="the same step on one batch that is already there"
    )
    input_bound: bool | None = None
    setup_seconds: float = Field(description="what the script did before fit")
    compile_seconds: float | None = None
    first_step_seconds: float = Field(description="first micro-step, compilation included")
    recompilations: int = Field(0, description="compilations of the training step after warm-up")
    cache_hits: int = 0
    cache_misses: int = 0
    peak_bytes: int | None = Field(None, description="per device; see peak_bytes_source")
    peak_bytes_source: Literal["device", "compiled", "resident"] | None = None
    groups: int
    micro_steps: int
    group_seconds: list[float] = Field(description="seconds a micro-step, one entry a group")
    simulated_devices: bool = False
    others_busy_processors: float | None = Field(
        None, description="processors that other processes kept busy meanwhile, on average"
    )
    wall_seconds: float
    notes: list[str] = []
    callbacks_ran: list[str] = Field([], description="the script's callbacks that ran in this trial")
    callbacks_left_out: list[str] = Field([], description="callbacks that were about to write and were left out")
    fits: int = Field(1, description="times that the fit was run, because it is shorter than a measurement")
    fit_micro_steps: int | None = Field(None, description="micro-steps of the whole fit; None if its data do not say")
    growth_bytes: int | None = Field(None, description="steady growth of this process's memory per micro-step")
    growth_micro_steps: int | None = Field(None, description="micro-steps over which the growth was measured")
    grown_bytes: int | None = Field(None, description="memory of this process at the end of the fit if it goes on")
    writers: dict[int, str] = Field({}, description="the same by their positions among the callbacks of fit")
    files_written: list[str] = Field([], description="files that the training's own code wrote during the fit")

    @model_serializer(mode="wrap")
    def _without_empty_fields(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what a trial did not do, as plans of earlier versions do."""
        values: dict[str, Any] = serialize(self)
        return {
            name: value
            for name, value in values.items()
            if (value or name not in _IF_ANY) and (name, value) != ("fits", 1)
        }

    @property
    def samples_per_micro_step(self) -> float:
        """Samples of a micro-step on average: less than the global batch where epochs end with a partial batch."""
        return self.samples_per_second * self.micro_step_seconds


class CompiledMemory(Value):
    """The memory of a compiled program on one device, in bytes, as its compiler states it; None: it does not.

    `other_batches_bytes` is the cost model's: batches that `fit` holds on the device beside the program's own.
    total_bytes is argument + output - alias + temporary: it must fit the device, or the peak where that is larger.
    XLA:TPU compares argument + output - alias + temporary_heap + code with the device's memory. Its temporaries count
    the heap's gaps twice and are the most that the heap can be; its peak adds memory on the chip.
    """

    argument_bytes: int
    output_bytes: int
    alias_bytes: int = Field(description="outputs that take the place of donated arguments")
    temporary_bytes: int
    total_bytes: int
    peak_bytes: int | None = None
    host_bytes: int | None = None
    code_bytes: int | None = None
    temporary_heap_bytes: int | None = Field(None, description="temporaries in a TPU's memory, with gaps between them")
    held_by: Literal["total", "peak", "heap"] = Field("total", description="what must fit; peak: TPUs in older plans")
    other_batches_bytes: int | None = Field(None, description="batches that fit holds beside the program's own")

    @property
    def must_fit_bytes(self) -> int:
        """The bytes that must fit on a device: those of the program, and the other batches that `fit` holds."""
        return self.program_bytes + (self.other_batches_bytes or 0)

    @property
    def program_bytes(self) -> int:
        """The bytes that the program alone needs on a device, as its compiler states them."""
        if self.held_by == "heap":
            gaps = 0 if self.temporary_heap_bytes is None else self.temporary_bytes - self.temporary_heap_bytes
            return self.total_bytes - gaps + (self.code_bytes or 0)
        if self.held_by == "peak" and self.peak_bytes is not None:
            return self.peak_bytes
        return max(self.total_bytes, self.peak_bytes or 0)

    @model_serializer(mode="wrap")
    def _written(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Write some figures only where they are known: plans of earlier versions do not have the keys."""
        return _without_none(serialize(self), "other_batches_bytes", "temporary_heap_bytes")


class CompilerEvidence(Value):
    """The figures of one configuration from the target's real compiler, with no device present. Evidence: compiled.

    Seconds of `time` are this program under the roofline, not a run; `estimated_cycles` is the compiler's own guess.
    """

    target: str = Field(description="compiler and topology, such as 'XLA:TPU v4:2x2x1'")
    versions: dict[str, str] = Field(description="of the packages that compiled")
    compiler_options: dict[str, Any] = Field({}, description="options of the compiler that differ from its defaults")
    lower_seconds: float = Field(description="tracing and lowering, on this machine")
    compile_seconds: float = Field(description="compiling, on this machine")
    memory: CompiledMemory
    flops: float | None = Field(None, description="of a micro-step on one device, as the compiler counts")
    bytes_accessed: float | None = None
    estimated_cycles: int | None = None
    collectives: list[dict[str, Any]] = Field([], description="kind, axis, count and bytes of what devices exchange")
    time: ProgramTime | None = Field(None, description="the compiled program under the roofline")
    unknown_ops: list[dict[str, Any]] = []
    notes: list[str] = []

    def beside(self, other_batches_bytes: int) -> CompilerEvidence:
        """Return the evidence with batches of so many bytes that `fit` holds on a device beside the program's own."""
        memory = self.memory.model_copy(update={"other_batches_bytes": other_batches_bytes})
        return self.model_copy(update={"memory": memory})


class Failure(Value):
    """A trial that ended without a measurement: a value, never an exception that stops a study."""

    kind: FailureKind
    message: str
    log: str | None = None
    wall_seconds: float | None = None
    held_bytes: int | None = Field(None, description="most memory that it was seen to hold, where memory ended it")
    outside: bool = Field(False, description="ended from outside: it says nothing of the configuration")
    needed_bytes: int | None = Field(None, description="what a compiler says that its program needs on one device")
    available_bytes: int | None = Field(None, description="what a compiler says that one device has")

    @property
    def out_of_memory(self) -> bool:
        """Whether memory ran out."""
        return self.kind in (FailureKind.OOM, FailureKind.COMPILE_OOM)


Outcome = Measurement | Failure


class FitRecord(Value):
    """Which `fit` was tuned: its position, data and the structure of its model."""

    index: int
    structure: str = Field(description="sha256 over the model's variable shapes in order")
    samples: int | None = Field(description="samples an epoch; None when the data does not say")
    epochs: int
    data: str | None = Field(
        None, description="arrays | tf.data | PyDataset | DataLoader | generator | synthetic (it has none) | other"
    )
    updates: int | None = Field(None, description="updates of the weights that the script's own fit makes")
    padding: Compared | None = Field(None, description="what a probe found of updates with rows of weight zero")
    losses: str | None = Field(
        None, description="sha256 of the compiled losses; those of functions depend on the version of Python"
    )

    @model_serializer(mode="wrap")
    def _written(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Write `padding` and `losses` only where they are known: plans of earlier versions do not have the keys."""
        return _without_none(serialize(self), "padding", "losses")


class SourceRecord(Value):
    """The source that was tuned: its path, its content, its arguments, and which of its fits."""

    kind: Literal["script", "builder", "callable", "instance"]
    path: str
    sha256: str
    fit: FitRecord
    args: list[str] = []
    input_shapes: dict[str, list[int]] | None = Field(
        None, description="shapes of inputs without the batch that were given for a model without data, by name"
    )

    @model_serializer(mode="wrap")
    def _written(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Write `input_shapes` only where there are any: plans of earlier versions do not have the key."""
        return _without_none(serialize(self), "input_shapes")


class HardwareRecord(Value):
    """The hardware that it was tuned for, and the memory that one device leaves to programs."""

    name: str
    devices: int
    kind: str
    capacity_bytes: int | None = Field(None, description="what one device leaves usable")
    memory_limit_bytes: int | None = Field(None, description="what the user set for the training with --memory-limit")
    simulated: bool = False
    description: str = ""


class Environment(Value):
    """The versions that it was tuned with."""

    python: str
    keras: str
    backend: str
    backend_version: str
    platform: str
    autoplan: str


class BaselineRecord(Value):
    """The user's own configuration and what became of it."""

    config: Config
    measured: Measurement | None = None
    predicted: AnalyticEstimate | None = None
    failure: Failure | None = None
    excluded_by: str | None = Field(
        None, description="what excludes it: options of the user, as `--fix precision=...`, or a known issue"
    )
    issues: list[str] = Field([], description="known issues for which it is no candidate on this hardware")

    @model_serializer(mode="wrap")
    def _written(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Write these two only where they say something: plans of earlier versions do not have the keys."""
        values = _without_none(serialize(self), "excluded_by")
        return values if self.issues else {key: value for key, value in values.items() if key != "issues"}


class Verification(Value):
    """Baseline and winner in alternating clean processes."""

    pairs: int
    speedup: float | None = Field(description="baseline seconds a sample / plan seconds a sample; median over pairs")
    speedup_low: float | None = None
    speedup_high: float | None = None
    faster: bool
    numerics: Literal["exact", "within_seed_band", "outside", "not_compared"]
    numerics_detail: str = ""
    same_program: bool = Field(
        False, description="no results were compared: only settings differ that change no number"
    )
    updates_compared: int | None = Field(None, description="updates of baseline and plan whose results were compared")
    updates_applied: int | None = Field(None, description="of these under the plan; a loss scale skips some")
    baseline_updates_applied: int | None = None
    remainder_compared: bool = Field(False, description="the partial last update of an epoch was among them")
    samples_left_out: int = Field(0, description="samples of an epoch that the plan leaves out; no update had them")
    seeds_compared: int = Field(0, description="seeds with which the baseline ran these updates")
    largest_weight_difference: float | None = Field(
        None, description="of the change of a weight over these updates, relative to the baseline's change"
    )
    largest_weight_difference_of: str = Field("", description="the weight with the largest difference")
    state: Literal["equal", "within_seed_band", "differs", "none"] | None = Field(
        None, description="changes of variables that are not trained, without random seeds; none: there are none"
    )
    failure: str = Field("", description="why a run of the verification failed; empty if none did")
    validation_ran: bool = False
    checkpoint_saved: bool = False
    remainder_ran: bool = False

    @model_serializer(mode="wrap")
    def _written(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Write what was compared only where something was: plans of earlier versions do not have the keys."""
        plain: dict[str, Any] = serialize(self)
        fields = type(self).model_fields
        return {
            name: value
            for name, value in plain.items()
            if name not in _COMPARED or getattr(self, name) != fields[name].default
        }


_COMPARED = frozenset(
    {
        *("same_program", "updates_compared", "updates_applied", "baseline_updates_applied", "remainder_compared"),
        *("samples_left_out", "seeds_compared", "largest_weight_difference", "largest_weight_difference_of"),
        *("state", "failure"),
    }
)


class ValidationMemory(Value):
    """Whether the validation of the fit has enough memory, where the script sets how many rows it takes at once."""

    rows: int = Field(description="rows at once, as the script has it")
    fits: bool
    evidence: Evidence = Field(description="measured where it was run, analytic where the estimate decides")
    needed_bytes: int | None = Field(
        None, description="what one device needs, by the estimate; or the most that was in use when it was stopped"
    )
    fitting_rows: int | None = Field(None, description="a validation_batch_size that fits, where the script's does not")
    fitting_ran: bool = Field(False, description="so many rows were run; else they fit by the estimate or the training")


class WholeFit(Value):
    """The script's own fit by what was measured: compilation, then every micro-step. Validation is not in it.

    A trial's time to compile is the median of all trials unless it clearly differs; the plan's micro-steps are the
    baseline's over the speed-up that verification found, where it found one.
    """

    seconds: float = Field(gt=0, description="under the plan")
    baseline_seconds: float | None = Field(None, gt=0, description="as the script is")

    @property
    def speedup(self) -> float | None:
        """The speed-up of the whole fit; None where the baseline's time is not known."""
        return None if self.baseline_seconds is None else self.baseline_seconds / self.seconds

    def differs_from(self, speedup: float) -> bool:
        """Whether the whole fit gains notably less, or more, than a training that is compiled already."""
        return self.speedup is not None and abs(self.speedup / speedup - 1) > NOTABLE


class Rejection(Value):
    """A candidate that was never run, and why."""

    config: Config
    stage: Literal["infeasible", "slower", "known_issue", "held"]
    reason: str
    figures: dict[str, Any] = {}
    nearest: str | None = Field(None, description="the nearest change that would fit")


class TrialRecord(Value):
    """One configuration that was run, or compiled, and what became of it."""

    number: int
    config: Config
    predicted_update_seconds: float | None = None
    outcome: Literal["measured", "compiled", "failed"]
    measurement: Measurement | None = None
    compiled: CompilerEvidence | None = None
    failure: Failure | None = None
    whole_fit_seconds: float | None = Field(None, description="of the script's own fit with it, compilation included")


class Rung(Value):
    """One change that was considered while a baseline that runs out of memory was rescued."""

    config: Config
    changed: list[str] = Field(description="changes to the baseline, in words")
    outcome: Literal["runs", "out_of_memory", "failed", "passed_over"]
    evidence: Evidence = Field(description="measured where it was tried, analytic where an estimate ruled it out")
    reason: str = ""
    needed_bytes: int | None = Field(
        None, description="lower bound of its need: memory in use when it was stopped, or the estimate"
    )


class Rescue(Value):
    """The least change to a baseline that runs out of memory with which it runs, and what was not enough."""

    config: Config
    changed: list[str] = Field(description="changes to the baseline, in words")
    because: str = Field(description="why no smaller change is enough")
    baseline_bytes: int | None = Field(None, description="lower bound of the baseline's need: memory in use at its end")
    usable_bytes: int | None = Field(None, description="available memory")
    tried: list[Rung] = Field(
        [], description="changes that were tried, in order, then smaller changes that were skipped"
    )


class Plan(Value):
    """The answer with its evidence. `config` is read and written under the keys of `cost_models.TrainConfig`."""

    schema_version: int = Field(SCHEMA_VERSION, alias="schema")
    evidence: Evidence
    source: SourceRecord
    hardware: HardwareRecord
    environment: Environment
    config: Config
    baseline: BaselineRecord
    predicted: AnalyticEstimate | None = None
    compiled: CompilerEvidence | None = None
    measured: Measurement | None = None
    verification: Verification | None = None
    validation: ValidationMemory | None = Field(None, description="None: it takes as many rows as training, or none")
    whole_fit: WholeFit | None = Field(None, description="where the script's own fit is of known length")
    rescue: Rescue | None = Field(None, description="the smallest change that runs, if the baseline does not")
    trials: list[TrialRecord] = []
    rejected: list[Rejection] = []
    notes: list[str] = []

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    @model_serializer(mode="wrap")
    def _written(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Write `validation` only where it was judged: plans of earlier versions do not have the key."""
        return _without_none(serialize(self), "validation")

    @property
    def trains_differently(self) -> str:
        """A sentence for a plan that verification found to train differently from the baseline; "" otherwise."""
        found = self.verification
        if found is None or found.numerics != "outside":
            return ""
        detail = f" ({' '.join(found.numerics_detail.split())})" if found.numerics_detail else ""
        return f"Training gives different results than with the baseline{detail}."

    def __str__(self) -> str:
        """Return one line for people; `to_plain` and `autoplan explain` have the rest."""
        chosen, own = (
            self.config.describe(),
            self.baseline.config.describe(),
        )
        if self.config == self.baseline.config:
            came = "the baseline itself"
        elif self.verification is not None and self.verification.speedup is not None:
            came = f"{self.verification.speedup:.3g} times as fast as {own}{self._over_the_whole_fit()}"
        else:
            came = f"instead of {own}"
        return f"plan for {self.source.path} on {self.hardware.name}, {self.evidence.value}: {chosen} ({came})"

    def __repr__(self) -> str:
        return f"<{self}>"

    def _over_the_whole_fit(self) -> str:
        """Return the speed-up of the whole fit in words where it clearly differs from that of compiled programs."""
        ratio = None if self.verification is None else self.verification.speedup
        if ratio is None or self.whole_fit is None or not self.whole_fit.differs_from(ratio):
            return ""
        return f"; {self.whole_fit.speedup:.3g} times over the whole fit, compilation included"


def to_plain(value: BaseModel) -> Mapping[str, Any]:
    """Return plain values for JSON and YAML, under the names that files use."""
    return value.model_dump(mode="json", by_alias=True)
