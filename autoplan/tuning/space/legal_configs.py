"""What may be tuned: Observation x Cluster x wishes -> the legal TrainConfigs, and what was left out with its reason.

Legal means: the same training as the script's (effective batch kept unless it is freed, whole micro-steps an epoch
where the script counts them), divisible over the mesh, and free of known issues. Whether a configuration fits or pays
is not asked here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from autoplan.errors import ConfigError
from autoplan.jobs.client import Observation
from autoplan.plan.records import Rejection
from autoplan.tuning.space.known_issues import Effect, KnownIssue, Versions, applying, knob_values
from autoplan.tuning.space.pins import KNOB_PARTS, TUNABLE, free_knobs, parse_pins, spelling
from cost_models.config import Batch, Layout, Mesh, Precision, Remat, RematMode, TrainConfig
from cost_models.hardware.cluster import Cluster
from cost_models.time.page_faults import may_page, why_not_paging

PRECISIONS = (Precision.FLOAT32, Precision.MIXED_BFLOAT16, Precision.MIXED_FLOAT16)
EXECUTIONS = (1, 8, 32)
REMAT_MODES = (RematMode.NONE, RematMode.ACTIVATIONS)


@dataclass(frozen=True)
class Space:
    """The baseline, the legal configurations (the baseline first, where it is legal), what was left out and why."""

    baseline: TrainConfig
    configs: tuple[TrainConfig, ...]
    rejected: tuple[Rejection, ...]


@dataclass(frozen=True)
class Wishes:
    """What the user pinned, what may be turned, and what is allowed. `held`: flat names of knobs that do not move."""

    pins: Mapping[str, Any]
    free: frozenset[str]
    effective_range: tuple[int, int] | None

    @property
    def held(self) -> frozenset[str]:
        frozen = {part for knob in TUNABLE if knob not in self.free for part in KNOB_PARTS[knob]}
        return frozenset(frozen | set(self.pins))


def legal_configs(
    observation: Observation,
    cluster: Cluster,
    versions: Versions,
    *,
    fix: Mapping[str, str] | None = None,
    only: Iterable[str] = (),
    effective_batch: tuple[int, int] | None = None,
    shard_state: bool = False,
) -> Space:
    """Every legal TrainConfig. `effective_batch` is a range LO..HI in samples; None keeps the script's own.

    shard_state   list what splits its state over the data axis, too (ZeRO-3): only where nothing fits without

    ConfigError when a pin is misspelt, impossible here, or leaves nothing; the message says what would be legal.
    """
    baseline = TrainConfig.from_dict(observation.config)
    named = tuple(only)
    asked = free_knobs(named)
    wishes = Wishes(parse_pins(fix or {}), asked - observation.held.keys(), _checked_range(effective_batch))
    _check_held(observation, baseline, wishes.pins)
    single = _single_knobs(baseline, wishes.free, pages=may_page(baseline, cluster))
    knobs = {name: _allowed(name, values, wishes) for name, values in single.items()}
    _check_unmovable(baseline, wishes)
    _check_keeps_freed_memory(baseline, cluster, wishes.pins)
    pinned = wishes.pins.get("shard_state")
    splits = [
        (batch, mesh, layout)
        for batch, mesh in _batch_splits(observation, baseline, cluster, wishes)
        for layout in _layouts(baseline, mesh, pinned, shard_state=shard_state and "layout" not in observation.held)
    ]
    if not splits:
        raise ConfigError(
            "--fix layout.shard_state=true: one device has nobody to share its state with; "
            "name hardware with more, or leave the mesh free"
        )
    drops: dict[str, tuple[KnownIssue, list[TrainConfig]]] = {}
    legal = [
        config
        for config in _combinations(baseline, splits, knobs, observation)
        if not _drop(config, observation, versions, wishes.held, drops)
    ]
    if not legal:
        raise ConfigError(_nothing_left(drops))
    held_back = (
        *_held_back(observation, baseline, cluster, asked),
        *_not_offered(observation, baseline, cluster, wishes, named),
    )
    rejected = (*held_back, *_rejections(drops))
    return Space(baseline, tuple(sorted(legal, key=lambda c: c != baseline)), rejected)


def _check_held(observation: Observation, baseline: TrainConfig, pins: Mapping[str, Any]) -> None:
    """What the source does not let be turned may only be pinned to what it is."""
    own = knob_values(baseline)
    for knob, reason in observation.held.items():
        for name in KNOB_PARTS[knob]:
            if name in pins and name in own and pins[name] != own[name]:
                raise ConfigError(f"--fix {spelling(name)}={pins[name]}: it stays {own[name]} here, because {reason}")


def _held_back(
    observation: Observation, baseline: TrainConfig, cluster: Cluster, asked: frozenset[str]
) -> Iterator[Rejection]:
    """One Rejection for each reason that keeps knobs from being turned, with a configuration that it left out."""
    others = {
        "precision": [baseline.with_(precision=p) for p in PRECISIONS if p is not baseline.precision],
        "remat": [baseline.with_(remat=Remat(mode)) for mode in REMAT_MODES if mode is not baseline.remat.mode],
        "mesh": _on_all_devices(baseline, cluster),
    }
    by_reason: dict[str, list[str]] = {}
    for knob, reason in observation.held.items():
        if knob in asked and others.get(knob):
            by_reason.setdefault(reason, []).append(knob)
    for reason, knobs in by_reason.items():
        yield Rejection(
            config=others[knobs[0]][0].to_dict(),
            stage="held",
            reason=f"{' and '.join(knobs)} cannot be tuned here: {reason}",
            figures={"configurations": sum(len(others[knob]) for knob in knobs)},
        )


def _not_offered(
    observation: Observation, baseline: TrainConfig, cluster: Cluster, wishes: Wishes, named: Iterable[str]
) -> Iterator[Rejection]:
    """Why a knob has one value alone, for whoever named it; where nobody did, nobody misses it."""
    for knob in dict.fromkeys(one.strip().split(".")[0] for one in named):
        held = observation.held.get(knob) if knob == "keep_freed_memory" else None
        reason = held or _why_alone(knob, observation, baseline, cluster, wishes)
        if reason:
            left_out = baseline.with_(keep_freed_memory=True) if knob == "keep_freed_memory" else baseline
            yield Rejection(
                config=left_out.to_dict(),
                stage="held",
                reason=f"{knob} is not tuned here: {reason}",
                figures={"configurations": int(left_out != baseline)},
            )


def _why_alone(
    knob: str, observation: Observation, baseline: TrainConfig, cluster: Cluster, wishes: Wishes
) -> str | None:
    """Why a knob that may be turned has nothing to be turned to."""
    if knob == "keep_freed_memory":
        return why_not_paging(baseline, cluster)
    if knob == "precision" and baseline.precision is Precision.OTHER:
        return "the script mixes dtype policies by hand, and no single policy stands for them"
    if knob == "mesh" and knob not in observation.held and len(_data_axes(baseline, cluster, wishes)) == 1:
        if "data" in wishes.pins:
            return f"--fix says that its data axis is {wishes.pins['data']}"
        if cluster.devices > 1:
            return f"the model axis takes all {cluster.devices} devices of {cluster.name}"
        return f"{cluster.name} has one device" + (", and --devices simulates more" * (cluster.chip.kind == "cpu"))
    return None


def _on_all_devices(baseline: TrainConfig, cluster: Cluster) -> list[TrainConfig]:
    """The baseline over all devices, where there are more of them than it uses and its batch divides."""
    batch, devices = baseline.batch, cluster.devices // baseline.mesh.model
    if devices <= baseline.mesh.data or batch.global_size % devices:
        return []
    split = Batch.from_global(batch.global_size, data=devices, accumulation=batch.accumulation)
    return [baseline.with_(batch=split, mesh=Mesh(devices, baseline.mesh.model))]


def _single_knobs(baseline: TrainConfig, free: frozenset[str], *, pages: bool) -> dict[str, list[Any]]:
    """Knobs that stand alone, with the values that may be tried; the baseline's value first.

    pages   whether a micro-step of this training may have its memory paged in anew (`cost_models.time.page_faults`)
    """
    mixture = baseline.precision is Precision.OTHER
    tried: dict[str, tuple[Any, ...]] = {
        "precision": () if mixture else PRECISIONS,
        "remat": REMAT_MODES,
        "steps_per_execution": EXECUTIONS,
        "jit_compile": (True, False),
        "keep_freed_memory": (False, True) if pages else (),
    }
    own = {
        "precision": baseline.precision,
        "remat": baseline.remat.mode,
        "steps_per_execution": baseline.steps_per_execution,
        "jit_compile": baseline.jit_compile,
        "keep_freed_memory": baseline.keep_freed_memory,
    }
    return {name: list(dict.fromkeys((own[name], *(values if name in free else ())))) for name, values in tried.items()}


def _allowed(name: str, values: list[Any], wishes: Wishes) -> list[Any]:
    """Values left of a knob once the pins are heard. A pinned knob may take any value of its type."""
    if name not in wishes.pins:
        return values
    pinned = wishes.pins[name]
    if name == "precision" and values == [Precision.OTHER]:
        raise ConfigError(
            f"--fix precision={pinned}: this script mixes dtype policies by hand, and no single policy stands for "
            "them; leave precision out of --fix"
        )
    return [pinned]


def _check_unmovable(baseline: TrainConfig, wishes: Wishes) -> None:
    """Keys of a configuration that tuning does not turn may only be pinned to what they are."""
    own = {
        "backend": baseline.backend,
        "model": baseline.mesh.model,
    }
    for name, value in own.items():
        if wishes.pins.get(name, value) != value:
            raise ConfigError(
                f"--fix {spelling(name)}={wishes.pins[name]}: not tuned; this training has {spelling(name)}={value}, "
                "and only that can stand here"
            )


def _check_keeps_freed_memory(baseline: TrainConfig, cluster: Cluster, pins: Mapping[str, Any]) -> None:
    """It is a setting of the C library of the process that computes."""
    if pins.get("keep_freed_memory") and cluster.chip.kind != "cpu":
        raise ConfigError(f"--fix keep_freed_memory=true: {why_not_paging(baseline, cluster)}; leave it out")


def _checked_range(effective_batch: tuple[int, int] | None) -> tuple[int, int] | None:
    if effective_batch is None:
        return None
    low, high = effective_batch
    if not 1 <= low <= high:
        raise ConfigError(f"--effective-batch {low}..{high}: expected 1 <= LO <= HI, for example 64..4096")
    return low, high


def _batch_splits(
    observation: Observation, baseline: TrainConfig, cluster: Cluster, wishes: Wishes
) -> list[tuple[Batch, Mesh]]:
    """Every split of an effective batch into accumulation x data axis x local batch that pins and data allow."""
    meshes = _data_axes(baseline, cluster, wishes)
    every = [
        (
            Batch.from_global(effective // accumulation, data=data, accumulation=accumulation),
            Mesh(data, baseline.mesh.model),
        )
        for effective in _effective_batches(observation, baseline, wishes)
        for accumulation in _accumulations(effective, observation, baseline, wishes)
        for data in meshes
        if (effective // accumulation) % data == 0
    ]
    kept = [(batch, mesh) for batch, mesh in every if _matches(batch, wishes.pins)]
    if not kept:
        raise ConfigError(_no_split(every, baseline, meshes, wishes))
    return kept


def _data_axes(baseline: TrainConfig, cluster: Cluster, wishes: Wishes) -> list[int]:
    available = max(1, cluster.devices // baseline.mesh.model)
    sizes = [size for size in range(1, available + 1) if available % size == 0]
    if "data" in wishes.pins:
        if wishes.pins["data"] not in sizes:
            raise ConfigError(
                f"--fix mesh=data={wishes.pins['data']}: {cluster.name} has {cluster.devices} device(s); "
                f"the data axis can be {_listed(sizes)}" + (" (see --devices)" if cluster.chip.kind == "cpu" else "")
            )
        return [int(wishes.pins["data"])]
    return sizes if "mesh" in wishes.free else [baseline.mesh.data]


def _effective_batches(observation: Observation, baseline: TrainConfig, wishes: Wishes) -> list[int]:
    own = baseline.batch.effective
    if wishes.effective_range is None or "batch" not in wishes.free:
        return [own]
    low, high = wishes.effective_range
    if low == high and low <= (observation.samples or low):
        return [low]
    most = min(high, observation.samples or high)
    powers = [2**exponent for exponent in range(most.bit_length()) if low <= 2**exponent <= most]
    sizes = sorted({*powers, *([own] if low <= own <= high else [])})
    if not sizes and low == high:
        raise ConfigError(f"--effective-batch {low}: an epoch has no more than {observation.samples} samples")
    if not sizes:
        raise ConfigError(
            f"--effective-batch {low}..{high}: no power of two lies in it"
            + (f" below the {observation.samples} samples of an epoch" if observation.samples else "")
            + f", and the script's own is {own}; widen the range"
        )
    return sizes


def _accumulations(effective: int, observation: Observation, baseline: TrainConfig, wishes: Wishes) -> list[int]:
    """Micro-steps an update: divisors of the effective batch, one an octave, whose global batch the data can give."""
    pinned = wishes.pins.get("accumulation")
    if "batch" not in wishes.free and pinned is None:
        return [baseline.batch.accumulation]
    legal = [a for a in _divisors(effective) if _data_gives(effective // a, observation, baseline)]
    if observation.ema:
        legal = [a for a in legal if a == baseline.batch.accumulation]
    if pinned is not None or wishes.pins.keys() & {"global", "local"}:
        return legal
    keep = {baseline.batch.accumulation} & set(legal)
    return sorted(keep | set(_one_an_octave(legal, observation.samples, effective)))


def _data_gives(global_size: int, observation: Observation, baseline: TrainConfig) -> bool:
    """Whether the script's data can come in this global batch, with whole micro-steps where it counts them itself."""
    own = baseline.batch.global_size
    if not observation.rebatchable or observation.ema:
        # Keras averages weights at every micro-step, so another number of them an update is another average.
        return global_size == own
    if observation.explicit_steps_per_epoch and observation.steps_per_epoch:
        return (observation.steps_per_epoch * own) % global_size == 0
    return observation.samples is None or global_size <= max(observation.samples, own)


def _one_an_octave(divisors: list[int], samples: int | None, effective: int) -> Iterator[int]:
    """At most one divisor in [2**k, 2**(k+1)): batch divides the epoch, else a power of two, else least."""

    def preference(accumulation: int) -> tuple[bool, bool, int]:
        leaves_remainder = bool(samples and samples % (effective // accumulation))
        return leaves_remainder, accumulation & (accumulation - 1) != 0, accumulation

    octaves: dict[int, list[int]] = {}
    for divisor in divisors:
        octaves.setdefault(divisor.bit_length(), []).append(divisor)
    return (min(octave, key=preference) for octave in octaves.values())


def _divisors(number: int) -> list[int]:
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def _matches(batch: Batch, pins: Mapping[str, Any]) -> bool:
    sizes = batch.to_dict()
    return all(sizes[name] == pins[name] for name in sizes if name in pins)


def _no_split(every: list[tuple[Batch, Mesh]], baseline: TrainConfig, meshes: list[int], wishes: Wishes) -> str:
    """Why no batch is left, and what would be legal for the pinned sizes."""
    if not every:
        return (
            f"no global batch of this training divides over {_listed(meshes)} device(s) on the data axis: the "
            f"effective batch is {baseline.batch.effective}; pin another mesh, or free it with --effective-batch LO..HI"
        )
    pinned = [name for name in ("global", "local", "accumulation", "effective") if name in wishes.pins]
    said = " ".join(f"--fix batch.{name}={wishes.pins[name]}" for name in pinned)
    legal = "; ".join(f"{name}: {_listed({batch.to_dict()[name] for batch, _ in every})}" for name in pinned)
    kept = f" with the effective batch kept at {baseline.batch.effective}" if wishes.effective_range is None else ""
    return f"{said}: no batch of this training is split so{kept}; legal here are {legal}"


def _layouts(baseline: TrainConfig, mesh: Mesh, pinned: bool | None, *, shard_state: bool) -> list[Layout]:
    """The baseline's own; one device has nobody to share its state with."""
    own = baseline.layout
    if pinned is not None:
        return [Layout(pinned)] if mesh.data > 1 or not pinned else []
    return [own, Layout(shard_state=True)] if shard_state and mesh.data > 1 and not own.shard_state else [own]


def _combinations(
    baseline: TrainConfig,
    splits: list[tuple[Batch, Mesh, Layout]],
    knobs: Mapping[str, list[Any]],
    observation: Observation,
) -> Iterator[TrainConfig]:
    names = ("precision", "remat", "steps_per_execution", "jit_compile", "keep_freed_memory")
    chosen_executions = len(knobs["steps_per_execution"]) == 1
    every = product(splits, *(knobs[name] for name in names))
    for (batch, mesh, layout), precision, remat, executions, jit, keep in every:
        epoch = _epoch_micro_steps(observation, baseline, batch)
        if executions > max(1, epoch) and not chosen_executions:
            continue
        if observation.explicit_steps_per_epoch and epoch % executions:
            continue  # Keras would round steps_per_epoch up to whole executions and train on more samples
        yield baseline.with_(
            batch=batch,
            mesh=mesh,
            layout=layout,
            precision=precision,
            remat=Remat(remat),
            steps_per_execution=executions,
            jit_compile=jit,
            keep_freed_memory=keep,
        )


def _epoch_micro_steps(observation: Observation, baseline: TrainConfig, batch: Batch) -> float:
    if observation.explicit_steps_per_epoch and observation.steps_per_epoch:
        return observation.steps_per_epoch * baseline.batch.global_size // batch.global_size
    return float("inf") if observation.samples is None else -(-observation.samples // batch.global_size)


def _drop(
    config: TrainConfig,
    observation: Observation,
    versions: Versions,
    held: frozenset[str],
    drops: dict[str, tuple[KnownIssue, list[TrainConfig]]],
) -> bool:
    """Whether a known issue forbids this configuration; the first that does is written down.

    What gains nothing is still legal where the user holds the knob.
    """
    for issue in applying(config, observation, versions):
        held_anyway = issue.effect is Effect.NO_GAIN and issue.when.config.keys() <= held
        if issue.drops and not held_anyway:
            drops.setdefault(issue.id, (issue, []))[1].append(config)
            return True
    return False


def _rejections(drops: Mapping[str, tuple[KnownIssue, list[TrainConfig]]]) -> Iterator[Rejection]:
    """One Rejection an issue, with the first configuration it dropped and how many there were."""
    for issue, configs in drops.values():
        yield Rejection(
            config=configs[0].to_dict(),
            stage="known_issue",
            reason=issue.describe(),
            figures={"issue": issue.id, "effect": issue.effect.value, "configurations": len(configs)},
            nearest=None,
        )


def _nothing_left(drops: Mapping[str, tuple[KnownIssue, list[TrainConfig]]]) -> str:
    reasons = "; ".join(f"{_said(issue, configs[0])}: {issue.describe()}" for issue, configs in drops.values())
    return f"what is pinned leaves no configuration that works: {reasons}. Pin something else, or leave it free"


def _said(issue: KnownIssue, config: TrainConfig) -> str:
    values = knob_values(config)
    return ", ".join(f"{spelling(name)}={values[name]}" for name in issue.when.config)


def _listed(values: Iterable[int]) -> str:
    return ", ".join(str(value) for value in sorted(values))
