"""Writes the notes of a plan: changes in training that figures do not show, and circumstances of the measurements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from autoplan import formatting
from autoplan.jobs.messages import Observation
from autoplan.plan import knobs
from autoplan.tuning.space.held_batch import why_batch_held, why_not_split
from autoplan.tuning.space.known_issues import Effect, Versions, applying
from cost_models.config import Precision, TrainConfig
from cost_models.estimate import Estimate
from cost_models.hardware.cluster import Cluster
from cost_models.time.cost import TimeCost

BUSY_SHARE = 0.25
"""From this share of the processors on, a note says that other processes disturbed the measurements."""
SETUP_SHARE = 0.2
"""Above this share of a trial, the time before fit is worth a note that suggests a builder."""

_LINEAR = "Goyal et al. 2017, arXiv:1706.02677, section 2.1"
_SQUARE_ROOT = "Malladi et al. 2022, arXiv:2205.10287, section 5"
Rule = Literal["linear", "square_root"]

LEARNING_RATE_RULES: Mapping[str, tuple[Rule, str]] = {
    "SGD": ("linear", _LINEAR),
    "Adam": ("square_root", _SQUARE_ROOT),
    "AdamW": ("square_root", _SQUARE_ROOT),
    "Adamax": ("square_root", _SQUARE_ROOT),
    "Nadam": ("square_root", _SQUARE_ROOT),
    "RMSprop": ("square_root", _SQUARE_ROOT),
    "Lamb": ("square_root", "You et al. 2019, arXiv:1904.00962, section 4"),
}
"""Optimizer -> how its learning rate should follow the effective batch, and the source."""


@dataclass(frozen=True)
class LearningRateRule:
    """How the learning rate should follow a change of the effective batch. `factor` multiplies it."""

    rule: Rule
    factor: float
    text: str


def learning_rate_rule(optimizer: str, old: int, new: int) -> LearningRateRule | None:
    """Return the rule from `old` to `new` samples an update; None where nothing changes or no rule is established."""
    if old == new or optimizer not in LEARNING_RATE_RULES:
        return None
    rule, citation = LEARNING_RATE_RULES[optimizer]
    ratio = new / old
    factor = ratio if rule == "linear" else ratio**0.5
    warm_up = ", with a warm-up over the first epochs" if factor > 1 else ""
    name = rule.replace("_", " ")
    text = f"{name} rule for {optimizer}: multiply the learning rate by {factor:.3g}{warm_up} ({citation})"
    return LearningRateRule(rule, factor, text)


def notes_for(
    config: TrainConfig, baseline: TrainConfig, observation: Observation, cluster: Cluster, versions: Versions
) -> list[str]:
    """Return the notes on the training under this plan."""
    return [
        *_of_the_backend(config, baseline),
        *_of_the_hardware(config, cluster),
        *_of_the_probe(config, baseline, observation),
        *_of_lost_values(config, baseline, observation),
        *_of_the_loss_scale(config, baseline),
        *_of_own_metrics(config, baseline, observation),
        *_of_the_change(config, baseline, observation),
        *_of_the_remainder(config, baseline, observation),
        *_of_callbacks(config, baseline, observation),
        *_of_other_models(config, baseline, observation),
        *issue_notes(config, observation, versions),
        *_of_the_script(observation),
        *observation.assumed,
        *observation.notes,
    ]


def setup_note(setup_seconds: float, trial_seconds: float) -> str | None:
    """Return a note that suggests a builder where the code before fit takes much of a trial; else None."""
    if trial_seconds <= 0 or setup_seconds <= SETUP_SHARE * trial_seconds:
        return None
    return (
        f"the script's code before fit takes {setup_seconds:.1f} s, {setup_seconds / trial_seconds:.0%} of a trial, "
        "and runs in every trial; a file with build_model() and train_data() can be tuned faster"
    )


def recompilation_note(recompilations: int | None, observation: Observation) -> str | None:
    """Return a note on compilations of the training step after its first micro-step; None where there were none."""
    if not recompilations:
        return None
    times = formatting.counted(recompilations, "more time")
    shapes = observation.batches
    differ = "" if shapes is None or not shapes.differ else ": its batches differ, and each shape is compiled once"
    return f"the training step was compiled {times} after its first micro-step{differ}"


def busy_note(others_busy: Iterable[float | None], processors: int, *, compared: bool = True) -> str | None:
    """Return a warning where other processes used much of the machine during the measurements; else None.

    others_busy  processors that other processes kept busy, for each run
    compared     whether the runs compared baseline and winner; False: they were trials
    """
    most = max((one for one in others_busy if one is not None), default=0.0)
    if most < BUSY_SHARE * processors:
        return None
    used = f"Other processes used {most:.1f} of {formatting.counted(processors, 'CPU core')}"
    if not compared:
        return (
            f"{used} during the trials, so the timings are noisy. "
            "Run again on an idle machine to separate close candidates."
        )
    return (
        f"{used} while baseline and plan were compared, so the timings are noisy. "
        "Run again on an idle machine before you rely on the speed-up."
    )


def limit_note(limit_bytes: int | None, cluster: Cluster) -> str | None:
    """Return a note on how the user's memory limit was applied; None without a limit."""
    if limit_bytes is None:
        return None
    limited = f"memory was limited to {formatting.size(limit_bytes)} (--memory-limit)"
    if cluster.local and cluster.chip.kind == "cpu":
        return f"{limited}: a trial whose processes used more was stopped"
    return f"{limited} in estimates; the device itself was not limited"


def baseline_notes(
    baseline: TrainConfig, observation: Observation, versions: Versions, estimate: Estimate | None = None
) -> list[str]:
    """Return why the user's own configuration runs without compilation, and the known issues of it.

    estimate   of the baseline; it says how much of the time is launch overhead
    """
    issues = [
        f"known issue of the baseline: {issue.describe(observation)}"
        for issue in applying(baseline, observation, versions)
        if issue.drops
    ]
    return [*_without_compilation(baseline, observation, estimate), *issues]


def _without_compilation(baseline: TrainConfig, observation: Observation, estimate: Estimate | None) -> Iterator[str]:
    reason = observation.held.get("jit_compile")
    if baseline.jit_compile or reason is None:
        return
    share = "" if estimate is None else f"; {_launch_share(estimate.time)}"
    yield (
        f"your training runs without jit_compile, because {reason}{share}. Apply these layers to the data instead, as "
        "in dataset.map(layer), or leave them out: Keras then compiles the rest of the model"
    )


def _launch_share(time: TimeCost) -> str:
    share = formatting.percent(float(time.parts.overhead / time.micro_step_seconds))
    return f"launch overhead is {share} of its estimated micro-step (analytic)"


def _of_the_backend(config: TrainConfig, baseline: TrainConfig) -> Iterator[str]:
    if config.backend != baseline.backend:
        yield (
            f"the backend changes from {baseline.backend} to {config.backend}: set KERAS_BACKEND={config.backend} "
            "wherever the script runs without autoplan; saved .keras and .weights.h5 files load on both backends; the "
            "same seed gives other initial weights and other dropout masks"
        )


def _of_the_hardware(config: TrainConfig, cluster: Cluster) -> Iterator[str]:
    if cluster.simulated and cluster.devices > 1:
        yield f"simulated: the {cluster.devices} devices share one CPU, so the figures do not apply to real devices"


def _of_the_change(config: TrainConfig, baseline: TrainConfig, observation: Observation) -> Iterator[str]:
    old, new = baseline.batch, config.batch
    if observation.takes_batch_statistics and old.global_size != new.global_size:
        # On a JAX mesh the statistics are of the whole global batch, so only the micro-step's size matters.
        yield (
            f"BatchNormalization takes its statistics over the {new.global_size} samples of a micro-step instead of "
            f"{old.global_size} as in the script; this cannot be avoided"
        )
    if observation.masks and not _split_is_compared(observation) and old.global_size != new.global_size:
        yield (
            "the loss is averaged over the unmasked positions of each micro-step, so splitting an update differently "
            "changes their weights slightly"
        )
    if old.accumulation != new.accumulation and observation.schedule:
        yield (
            f"Keras's learning-rate schedule counts micro-steps, of which an update has {new.accumulation} instead of "
            f"{old.accumulation}; the plan adapts the schedule, so that each update has the script's learning rate"
        )
    steps = observation.steps_per_epoch or 0
    carried = steps % old.accumulation
    if carried and old != new:
        yield (
            f"an epoch of the script ends {formatting.counted(carried, 'micro-step')} into an update, which the next "
            f"epoch completes, so it makes {steps / old.accumulation:.3g} updates an epoch; under the plan each epoch "
            "ends with a whole update"
        )
    if old.effective != new.effective:
        rule = learning_rate_rule(observation.optimizer, old.effective, new.effective)
        advice = rule.text if rule else f"no learning-rate rule is established for {observation.optimizer}"
        yield f"the effective batch changes from {old.effective} to {new.effective}, so results differ; {advice}"


def _of_lost_values(config: TrainConfig, baseline: TrainConfig, observation: Observation) -> Iterator[str]:
    """Describe inputs that a 16-bit policy rounds: under this plan, else why such a policy was not tried."""
    lost = {policy: text for policy, text in observation.lost_values.items() if policy != baseline.precision.value}
    if config.precision.value in lost:
        yield (
            f"in {config.precision.value} {lost[config.precision.value]}; this can harm the training later than the "
            "updates that were compared. Scale the input, or look ids up in an Embedding of integers"
        )
        return
    for text, policies in _grouped(lost).items():
        yield f"{formatting.listed(policies)} {'is' if len(policies) == 1 else 'are'} not tried: {text}"


def _grouped(texts: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the keys of each text."""
    grouped: dict[str, list[str]] = {}
    for key, text in texts.items():
        grouped.setdefault(text, []).append(key)
    return grouped


def _of_the_loss_scale(config: TrainConfig, baseline: TrainConfig) -> Iterator[str]:
    """Describe what Keras's LossScaleOptimizer does at each micro-step, where an update has another number of them."""
    if config.precision is Precision.MIXED_FLOAT16 and config.batch.accumulation != baseline.batch.accumulation:
        yield (
            "in mixed_float16 the loss scale counts micro-steps: it grows after a number of them, and a micro-step "
            "whose gradients overflow is left out, so that an update may take rows of two batches"
        )


def _of_own_metrics(config: TrainConfig, baseline: TrainConfig, observation: Observation) -> Iterator[str]:
    """Describe what another micro-batch does to the user's own metrics, which Keras calls once for each micro-step."""
    if observation.own_metrics and config.batch.global_size != baseline.batch.global_size:
        acting = formatting.listed(observation.metric_monitors)
        acts = f"{acting}, monitoring one," if acting else "a callback that reads one"
        values = "its values" if len(observation.own_metrics) == 1 else "their values"
        yield (
            f"Keras calls {formatting.listed(observation.own_metrics)} for each micro-step, in validation too, so in "
            f"micro-batches of another size {values} may differ, and {acts} may act in another epoch"
        )


def _of_the_probe(config: TrainConfig, baseline: TrainConfig, observation: Observation) -> Iterator[str]:
    """Describe what a probe found of other splits of an update; without a probe, that none was made."""
    probe, split = observation.probe, config.batch.accumulation != baseline.batch.accumulation
    why_held = why_not_split(observation)
    if why_held is not None and observation.rebatchable and not (observation.ema or observation.constraint):
        yield f"an update is split as in the script: {why_held}"
    elif probe is not None and not probe.ran and split:
        yield f"whether another split of an update gives the same gradients was not probed: {probe.split_reason}"
    elif probe is not None and probe.compared and split:
        yield probe.compared


def _of_the_remainder(config: TrainConfig, baseline: TrainConfig, observation: Observation) -> Iterator[str]:
    """Describe how the partial last effective batch of an epoch is run; the rule is in `runtime/data/rebatch.py`."""
    batch, samples = config.batch, observation.samples
    if batch != baseline.batch and not observation.samples_exact:
        yield from _of_partial_batches(batch.accumulation, observation)
        return
    rest = samples % batch.effective if samples else 0
    if batch == baseline.batch or not observation.reaches_end or not rest:
        return
    if batch.accumulation == 1:
        if config.mesh.data > 1 and rest % config.mesh.data:
            yield f"the last {rest} samples of an epoch do not divide by the devices: every device computes all of them"
    elif rest % batch.accumulation == 0:
        yield f"the last {rest} samples of an epoch form an update of {batch.accumulation} smaller micro-steps"
    elif observation.can_pad:
        yield f"the last {rest} samples of an epoch are padded with samples of weight zero{_why_padded(observation)}"
    else:
        left_out = observation.samples_left_out(config)
        yield (
            f"{left_out} of the {samples} samples of an epoch {'is' if left_out == 1 else 'are'} left out, because the "
            f"last samples do not divide by the micro-steps{_why_not_padded(observation)}"
        )


_MAY_COUNT_PADDING = {
    "batch_norm": "BatchNormalization",
    "unweighted_metrics": "metrics that ignore sample weights",
    "added_losses": "losses that layers add",
    "masks": "masks",
    "custom_train_step": "a train_step of its own",
}
"""Facts of an Observation because of which rows are not padded unless a probe has found that this changes nothing."""


_LOSS_OF_PADDING = "; the mean loss that Keras reports for an epoch counts this update like a full one"


def _why_padded(observation: Observation) -> str:
    """Return what a probe found of padding; without a probe, padding is chosen by the kinds of layers and losses."""
    if observation.probe is not None and observation.probe.padding == "same":
        return f", which changed no update where it was compared{_LOSS_OF_PADDING}"
    return f"; whether these change an update was not probed{_LOSS_OF_PADDING}"


def _why_not_padded(observation: Observation) -> str:
    """Return why rows are left out instead of padded: what a probe found, else the kinds of layers and losses."""
    probe = observation.probe
    if probe is not None and probe.padding != "not_known":
        reason = probe.padding_reason
    else:
        kinds = formatting.listed([words for name, words in _MAY_COUNT_PADDING.items() if getattr(observation, name)])
        reason = f"rows of weight zero may change an update of a model with {kinds}; this was not probed"
    return f", and they are not padded because {reason}" if reason else ""


def _split_is_compared(observation: Observation) -> bool:
    """Return whether a probe found that an update may be split, or that it may not."""
    return observation.probe is not None and observation.probe.split != "not_known"


def _of_partial_batches(accumulation: int, observation: Observation) -> Iterator[str]:
    """Describe the same rule for data of unknown length, which may end with a partial batch."""
    if accumulation == 1:
        return
    if observation.can_pad:
        yield f"a partial batch, if there is one, is padded with samples of weight zero{_why_padded(observation)}"
    else:
        yield (
            f"samples of a partial batch, if there is one, are left out if they do not divide by {accumulation}"
            f"{_why_not_padded(observation)}"
        )


def _of_callbacks(config: TrainConfig, baseline: TrainConfig, observation: Observation) -> Iterator[str]:
    """Describe what the user's code that runs at every micro-step sees of another number of micro-steps."""
    line = observation.calls_under(config).describe(observation.batch_callbacks)
    if line:
        yield line
    ratio = baseline.batch.global_size / config.batch.global_size
    if observation.counting_code and ratio != 1:
        yield (
            f"code of {', '.join(observation.counting_code)} adds a number at every micro-step, of which there are "
            f"{ratio:.3g} times as many under the plan, so a count of micro-steps means another number of samples"
        )


def _of_other_models(config: TrainConfig, baseline: TrainConfig, observation: Observation) -> Iterator[str]:
    """Describe settings that other models of the script get as well, because Keras sets them for a process.

    `autoplan train` gives a model its own precision back before its fit, unless the script sets policies itself.
    """
    changed = [name for name in knobs.build_fields() if getattr(config, name) != getattr(baseline, name)]
    for_all = [name for name in changed if name != "precision" or len(observation.own_policies) > 1]
    others = observation.other_models
    if others and changed:
        fits = "" if for_all else ", except in a fit of their own under `autoplan train`"
        yield (
            f"{_settings(config, baseline, changed)} also for the other models of the script "
            f"({formatting.listed(others)}){fits}; they were neither tuned nor compared"
        )
    elif observation.may_fit_again and for_all:
        yield (
            f"{_settings(config, baseline, for_all)} for every model that the script trains; a model of another fit "
            "was neither tuned nor compared"
        )


def _settings(config: TrainConfig, baseline: TrainConfig, fields: Iterable[str]) -> str:
    """Return the changed settings of these fields, as the subject of a sentence and its verb."""
    rows = [knob for name in fields for knob in knobs.parts_of(name) if knob.value(config) != knob.value(baseline)]
    named = [f"{knob.label} {knobs.formatted(knob.value(config))}" for knob in rows]
    return f"{' and '.join(named)} {'is' if len(named) == 1 else 'are'} set"


def _of_the_script(observation: Observation) -> Iterator[str]:
    if observation.rebatchable and (observation.ema or observation.constraint):
        yield f"the batch is not changed: {why_batch_held(observation)}"
    if observation.intercepted:
        yield f"calls of the script that the plan overrides: {', '.join(observation.intercepted)}"
    if observation.data == "synthetic":
        yield "the data are synthetic, so the input pipeline was not measured"
        yield "to train, add a train_data() that returns the arguments of fit, or call autoplan.fit(plan, model, x, y)"


def issue_notes(config: TrainConfig, observation: Observation, versions: Versions) -> list[str]:
    """Return the known issues of a configuration, without those that only bring no gain."""
    issues = applying(config, observation, versions)
    return [issue.describe(observation) for issue in issues if issue.effect is not Effect.NO_GAIN]
