"""Notes of a plan: changes of the training, and what was done to the script."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from autoplan import formatting
from autoplan.jobs.messages import Observation
from autoplan.tuning.space.known_issues import Effect, Versions, applying
from cost_models.config import TrainConfig
from cost_models.hardware.cluster import Cluster

BUSY_SHARE = 0.25
"""Share of the CPU cores from which on the use by other processes is noted beside a verified speed-up."""
SETUP_SHARE = 0.2
"""Above this share of a trial, what the script does before fit is worth a builder."""

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
"""Optimizer -> how its learning rate goes with the effective batch, and who showed it."""


@dataclass(frozen=True)
class LearningRateRule:
    """How the learning rate should follow a change of the effective batch. `factor` multiplies it."""

    rule: Rule
    factor: float
    text: str


def learning_rate_rule(optimizer: str, old: int, new: int) -> LearningRateRule | None:
    """The rule from `old` to `new` samples an update; None where nothing changes or no rule is established."""
    if old == new or optimizer not in LEARNING_RATE_RULES:
        return None
    rule, citation = LEARNING_RATE_RULES[optimizer]
    ratio = new / old
    factor = ratio if rule == "linear" else ratio**0.5
    warm_up = ", approached by a warm-up over the first epochs" if factor > 1 else ""
    name = rule.replace("_", " ")
    text = f"{name} rule for {optimizer}: multiply the learning rate by {factor:.3g}{warm_up} ({citation})"
    return LearningRateRule(rule, factor, text)


def notes_for(
    config: TrainConfig, baseline: TrainConfig, observation: Observation, cluster: Cluster, versions: Versions
) -> list[str]:
    """Everything that a reader of this plan should know of the training under it."""
    return [
        *_of_the_backend(config, baseline),
        *_of_the_hardware(config, cluster),
        *_of_the_change(config, baseline, observation),
        *_of_the_remainder(config, baseline, observation),
        *_of_known_issues(config, observation, versions),
        *_of_the_script(observation),
        *observation.notes,
    ]


def setup_note(setup_seconds: float, trial_seconds: float) -> str | None:
    """A builder is suggested where the script's own start takes much of a trial."""
    if trial_seconds <= 0 or setup_seconds <= SETUP_SHARE * trial_seconds:
        return None
    return (
        f"what the script does before fit takes {setup_seconds:.1f} s, {setup_seconds / trial_seconds:.0%} of a trial, "
        "and every trial pays it; a file with build_model() and train_data() would be quicker to tune"
    )


def busy_note(others_busy: Iterable[float | None], processors: int, *, compared: bool = True) -> str | None:
    """A warning where other processes took a good part of the machine while baseline and winner were compared.

    compared  False: nothing was, and it is of trials
    """
    most = max((one for one in others_busy if one is not None), default=0.0)
    if most < BUSY_SHARE * processors:
        return None
    there = formatting.counted(processors, "CPU core")
    if not compared:
        return (
            f"other processes used {formatting.significant(most)} of {there} during the trials, so the timings are "
            "noisy; run again on an idle machine to separate close candidates"
        )
    return (
        f"other processes used {formatting.significant(most)} of {there} while baseline and plan were compared, so the "
        "timings are noisy; measure again on an idle machine before you rely on the speed-up"
    )


def limit_note(limit_bytes: int | None, cluster: Cluster) -> str | None:
    """What the user's own limit on memory was held against."""
    if limit_bytes is None:
        return None
    limited = f"memory was limited to {formatting.size(limit_bytes)} (--memory-limit)"
    if cluster.local and cluster.chip.kind == "cpu":
        return f"{limited}: a trial whose processes held more was ended"
    return f"{limited} in estimates; the device itself was not limited"


def baseline_notes(baseline: TrainConfig, observation: Observation, versions: Versions) -> list[str]:
    """Known issues that the user's own configuration has."""
    return [
        f"the script's own configuration: {issue.describe()}"
        for issue in applying(baseline, observation, versions)
        if issue.drops
    ]


def _of_the_backend(config: TrainConfig, baseline: TrainConfig) -> Iterator[str]:
    if config.backend != baseline.backend:
        yield (
            f"moving from {baseline.backend} to {config.backend}: set KERAS_BACKEND={config.backend} wherever the "
            "script runs without autoplan; saved .keras and .weights.h5 files load on either, and initial weights and "
            "dropout are other draws of the same seed"
        )


def _of_the_hardware(config: TrainConfig, cluster: Cluster) -> Iterator[str]:
    if cluster.simulated and cluster.devices > 1:
        yield f"simulated: the {cluster.devices} devices share one CPU; their figures do not apply to real devices"


def _of_the_change(config: TrainConfig, baseline: TrainConfig, observation: Observation) -> Iterator[str]:
    old, new = baseline.batch, config.batch
    if observation.batch_norm and old.global_size != new.global_size:
        # On a JAX mesh the statistics are of the whole global batch, so only the micro-step's size matters.
        yield (
            f"BatchNormalization takes its statistics over the {new.global_size} samples of a micro-step, and over "
            f"{old.global_size} in the script; no setting avoids that"
        )
    if observation.masks and old.global_size != new.global_size:
        yield (
            "the loss is averaged over the unmasked positions of a micro-step, so in another split of an update they "
            "weigh a little differently"
        )
    if old.accumulation != new.accumulation and observation.schedule:
        yield f"Keras counts micro-steps in the schedule; the plan stretches that to {new.accumulation} an update"
    carried = (observation.steps_per_epoch or 0) % old.accumulation
    if carried and old != new:
        yield (
            f"an epoch of the script ends {carried} micro-steps into an update, which the next one goes on with; under "
            "the plan each epoch ends with an update of its own, so their number differs slightly"
        )
    if old.effective != new.effective:
        rule = learning_rate_rule(observation.optimizer, old.effective, new.effective)
        advice = rule.text if rule else f"no learning-rate rule is established for {observation.optimizer}"
        yield f"the effective batch goes from {old.effective} to {new.effective}: another training; {advice}"


def _of_the_remainder(config: TrainConfig, baseline: TrainConfig, observation: Observation) -> Iterator[str]:
    """Describe how the partial last effective batch of an epoch is run; the rule is in `runtime/data/rebatch.py`."""
    batch, samples = config.batch, observation.samples
    weights_only = not (
        observation.batch_norm
        or observation.unweighted_metrics
        or observation.added_losses
        or observation.masks
        or observation.custom_train_step
    )
    if batch != baseline.batch and not observation.samples_exact:
        yield from _of_partial_batches(batch.accumulation, weights_only=weights_only)
        return
    rest = samples % batch.effective if samples else 0
    if batch == baseline.batch or observation.explicit_steps_per_epoch or not rest:
        return
    over = rest % batch.accumulation
    if batch.accumulation == 1:
        if config.mesh.data > 1 and rest % config.mesh.data:
            yield f"the last {rest} samples of an epoch do not divide over the mesh: every device computes all of them"
    elif over == 0:
        yield f"the last {rest} samples of an epoch are an update of {batch.accumulation} smaller micro-steps"
    elif weights_only:
        yield f"the last {rest} samples of an epoch are filled up with rows of weight zero, which is exact here"
    else:
        yield f"{over} of the {samples} samples of an epoch are left out: they do not divide over the micro-steps"


def _of_partial_batches(accumulation: int, *, weights_only: bool) -> Iterator[str]:
    """Return the same note where only the run shows whether the data have a partial batch."""
    if accumulation == 1:
        return
    if weights_only:
        yield "should a partial batch come, rows of weight zero fill it up, which is exact here"
    else:
        yield f"should a partial batch come, those of its samples that do not divide over {accumulation} are left out"


def _of_the_script(observation: Observation) -> Iterator[str]:
    if observation.ema:
        yield "the batch stays as it is: Keras averages the weights at every micro-step, so a split changes the average"
    if observation.writers_left_out:
        yield f"callbacks that write were left out of trials: {', '.join(observation.writers_left_out)}"
    if observation.intercepted:
        yield f"calls of the script that the plan overrides: {', '.join(observation.intercepted)}"
    if observation.data == "synthetic":
        yield "the data are synthetic batches of the model's inputs and targets: the input path was not measured"
        yield "training takes data: add a train_data() with what fit takes, or call autoplan.fit(plan, model, x, y)"


def _of_known_issues(config: TrainConfig, observation: Observation, versions: Versions) -> Iterator[str]:
    """What is handled, or was pinned in spite of what is known; one that merely gains nothing is no note."""
    for issue in applying(config, observation, versions):
        if issue.effect is not Effect.NO_GAIN:
            yield issue.describe()
