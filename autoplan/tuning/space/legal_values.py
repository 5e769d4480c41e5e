"""Lists the legal values of each knob: a new knob registers one function here that says which values and when.

The batch, the mesh and the layout depend on each other; `batch_splits` has them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from autoplan.errors import ConfigError
from autoplan.jobs.messages import Observation
from autoplan.plan import knobs
from autoplan.plan.attention_calls import FIRST_FUSED_CAPABILITY
from autoplan.plan.knobs import Knob, formatted
from cost_models.config import AttentionMode, Batch, Precision, RematMode, TrainConfig
from cost_models.hardware.cluster import Cluster
from cost_models.time.page_faults import why_not_paging

PRECISIONS = (Precision.FLOAT32, Precision.MIXED_BFLOAT16, Precision.MIXED_FLOAT16)
EXECUTIONS = (1, 8, 32)
REMAT_MODES = (RematMode.NONE, RematMode.ACTIVATIONS)


@dataclass(frozen=True)
class Situation:
    """The training and the hardware for which values are legal or not."""

    observation: Observation
    baseline: TrainConfig
    cluster: Cluster

    def epoch_micro_steps(self, batch: Batch) -> float:
        """Return the micro-steps of an epoch with this batch; infinite where the epoch's length is not known."""
        seen = self.observation
        if seen.explicit_steps_per_epoch and seen.steps_per_epoch:
            return seen.steps_per_epoch * self.baseline.batch.global_size // batch.global_size
        return float("inf") if seen.samples is None else -(-seen.samples // batch.global_size)


@dataclass(frozen=True)
class Legal:
    """The values that a knob may take besides the script's own.

    values         in the order in which they are tried
    why_none       why the script's own value is the only one to try; None where `values` are tried
    why_not_fixed  why `--fix` may not set another value than the script's own; None where it may
    holds          whether a configuration is legal with its value; `chosen`: the value has no alternative
    needed         whether `values` are tried even where the user does not let the knob change
    """

    values: tuple[Any, ...]
    why_none: str | None = None
    why_not_fixed: str | None = None
    holds: Callable[[TrainConfig, bool], bool] | None = None
    needed: bool = False


LegalValues = Callable[[Situation], Legal]
_FUNCTIONS: dict[str, LegalValues] = {}


def legal_values(name: str) -> Callable[[LegalValues], LegalValues]:
    """Register the function that lists the legal values of a knob. ValueError for a second one."""

    def register(function: LegalValues) -> LegalValues:
        if name in _FUNCTIONS:
            raise ValueError(f"the legal values of {name} are listed twice")
        _FUNCTIONS[name] = function
        return function

    return register


def independent_knobs() -> tuple[Knob, ...]:
    """Return the knobs with legal values of their own, in the order of the table."""
    return tuple(knob for knob in knobs.KNOBS if knob.name in _FUNCTIONS)


def legal(knob: Knob, situation: Situation) -> Legal:
    """Return what the knob's function says."""
    return _FUNCTIONS[knob.name](situation)


def choices(
    knob: Knob, situation: Situation, fixed: Mapping[str, Any], free: frozenset[str]
) -> tuple[list[Any], Legal]:
    """Return the values to list, the script's own first, and what is legal. A fixed knob may take any value.

    ConfigError where `--fix` sets a value that cannot work here.
    """
    own, found = knob.value(situation.baseline), legal(knob, situation)
    if knob.name in fixed:
        value = fixed[knob.name]
        if found.why_not_fixed is not None and value != own:
            raise ConfigError(f"--fix {knob.spelling}={formatted(value)}: {found.why_not_fixed}; leave it out")
        return [value], found
    tried = found.values if found.why_none is None and (knob.field in free or found.needed) else ()
    return list(dict.fromkeys((own, *tried))), found


@legal_values("precision")
def precision(situation: Situation) -> Legal:
    """Return Keras's policies of float32, bfloat16 and float16, without those that lose values of an input.

    Only the script's own is legal where it mixes policies.
    """
    if situation.baseline.precision is Precision.OTHER:
        mixed = "the script mixes dtype policies by hand, and no single policy replaces them"
        return Legal(PRECISIONS, why_none=mixed, why_not_fixed=mixed)
    lost = situation.observation.lost_values
    values = tuple(one for one in PRECISIONS if one.value not in lost)
    why = next(iter(lost.values())) if lost and values == (situation.baseline.precision,) else None
    return Legal(values, why_none=why)


@legal_values("remat")
def remat(situation: Situation) -> Legal:
    """Return no rematerialization, and rematerialization of activations."""
    return Legal(REMAT_MODES)


@legal_values("steps_per_execution")
def steps_per_execution(situation: Situation) -> Legal:
    """Return 1, 8 and 32, limited to an epoch, and to whole executions where the script counts micro-steps."""

    def holds(config: TrainConfig, chosen: bool) -> bool:
        epoch = situation.epoch_micro_steps(config.batch)
        if config.steps_per_execution > max(1, epoch) and not chosen:
            return False
        # Keras would round steps_per_epoch up to whole executions and train on more samples.
        counted = situation.observation.explicit_steps_per_epoch
        return not (counted and epoch % config.steps_per_execution)

    return Legal(EXECUTIONS, holds=holds)


@legal_values("jit_compile")
def jit_compile(situation: Situation) -> Legal:
    """Return true and false."""
    return Legal((True, False))


@legal_values("attention")
def attention(situation: Situation) -> Legal:
    """Return auto and unfused on a GPU where they differ, and unfused on a TPU where Keras uses its kernel."""
    calls = [one for one in situation.observation.attention_calls if one.follows_setting]
    chip, own = situation.cluster.chip, situation.baseline
    impossible = _why_never_fused(situation)
    if impossible is not None:
        return Legal((), why_none=impossible, why_not_fixed=impossible)
    if chip.kind == "tpu":
        takes_kernel = any(one.fuses_on_tpu for one in calls)
        why = None if takes_kernel else "Keras's attention kernel for TPUs takes none of this model's attention"
        return Legal((AttentionMode.UNFUSED,), why_none=why, needed="attention" not in situation.observation.held)

    def fuses(config: TrainConfig) -> bool:
        same = config.precision is own.precision
        return any(
            one.fuses_on_gpu(one.dtype if same else config.precision.compute_dtype, chip.compute_capability)
            for one in calls
        )

    def holds(config: TrainConfig, chosen: bool) -> bool:
        return chosen or config.attention is own.attention or fuses(config)

    return Legal((AttentionMode.AUTO, AttentionMode.UNFUSED), holds=holds)


def _why_never_fused(situation: Situation) -> str | None:
    """Return why Keras computes this model's attention in the same way with each setting; None where it may not."""
    chip, backend = situation.cluster.chip, situation.baseline.backend
    if backend == "tensorflow":
        return "Keras has no fused attention on TensorFlow"
    if backend == "torch":
        return "PyTorch fuses attention itself, whatever Keras's setting is"
    if not any(one.follows_setting for one in situation.observation.attention_calls):
        return "no layer of this model computes attention that Keras could fuse"
    if chip.kind == "cpu":
        return "Keras fuses attention on GPUs and TPUs only"
    if chip.kind == "gpu" and (chip.compute_capability or 0.0) < FIRST_FUSED_CAPABILITY:
        return f"cuDNN's fused attention needs compute capability {FIRST_FUSED_CAPABILITY}, which {chip.name} lacks"
    return None


@legal_values("keep_freed_memory")
def keep_freed_memory(situation: Situation) -> Legal:
    """Return false and true where micro-steps may return memory to the kernel; false where devices have own memory."""
    why = why_not_paging(situation.baseline, situation.cluster)
    impossible = why if situation.cluster.chip.kind != "cpu" else None
    return Legal((False, True), why_none=why, why_not_fixed=impossible)
