"""Returns why the batch of a training is held: why no other split of an update is legal."""

from __future__ import annotations

from autoplan.jobs.messages import Observation


def why_batch_held(observation: Observation) -> str | None:
    """Return why an update can only be split as the script does; None where other splits are legal."""
    if not observation.rebatchable:
        return observation.why_fixed_batch or "the data cannot be re-batched"
    if observation.ema:
        return "Keras averages weights after every micro-step (use_ema), so a split changes the average"
    if observation.constraint:
        return (
            f"Keras applies the constraint {observation.constraint} at every micro-step, and applying it twice gives "
            "another result than once, so a split changes the weights"
        )
    return why_not_split(observation)


def why_not_split(observation: Observation) -> str | None:
    """Return what a probe of the model found against another split of an update; None where it found nothing."""
    probe = observation.probe
    if probe is None or not probe.ran or probe.split == "same":
        return None
    return probe.split_reason
