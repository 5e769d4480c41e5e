"""Writes the notes of a plan on what trials ran of a script: its callbacks, and the files that it wrote."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from autoplan import formatting
from autoplan.jobs.messages import Observation
from autoplan.plan.records import Measurement

_SHOWN = 5
_REMEDY = "--scratch runs each trial in an empty working directory"


def trial_notes(observation: Observation, measured: Sequence[Measurement]) -> list[str]:
    """Return the notes on what the trials ran of the script and what they left out."""
    return [*_on_callbacks(observation, measured), *_on_files(observation, measured)]


def growth_note(measured: Measurement | None, usable_bytes: int | None) -> str | None:
    """Return a note on memory that grows with every micro-step; None if it does not.

    usable_bytes  memory that the process may take; None if that is not this machine's
    """
    if measured is None or measured.growth_bytes is None:
        return None
    grows = f"memory grows by {formatting.size(measured.growth_bytes)} per micro-step"
    over = f"measured over {measured.growth_micro_steps or 0:,}"
    own = measured.fit_micro_steps
    if own is None:
        return f"{grows} ({over})"
    note = f"{grows}: {formatting.size(measured.growth_bytes * own)} over the fit's {own:,} micro-steps ({over})"
    if measured.grown_bytes is None or usable_bytes is None or measured.grown_bytes <= usable_bytes:
        return note
    return (
        f"{note}. If it goes on, the process holds {formatting.size(measured.grown_bytes)} at the end of the fit, more "
        f"than the {formatting.size(usable_bytes)} that it may take: look for arrays that are kept after a micro-step"
    )


def _on_callbacks(observation: Observation, measured: Sequence[Measurement]) -> Iterator[str]:
    """Yield which callbacks were left out because they write, and which ran at every micro-step.

    A callback that some trial left out does not count as one that ran.
    """
    seen = _distinct(name for one in measured for name in one.callbacks_left_out)
    left_out = [*observation.writers_left_out, *seen]
    if left_out:
        yield f"callbacks that write files or send data were left out of trials: {', '.join(left_out)}"
    stopped = {name.partition(" (")[0] for name in seen}
    ran = [name for name in _distinct(name for one in measured for name in one.callbacks_ran) if name not in stopped]
    if ran:
        yield f"callbacks that ran in trials, where they wrote nothing: {', '.join(ran)}"


def _on_files(observation: Observation, measured: Sequence[Measurement]) -> Iterator[str]:
    if observation.files_written:
        files = _listed(observation.files_written)
        yield f"the script's code before fit wrote files in every trial: {files}; {_REMEDY}"
    if observation.files_put_back:
        files = _listed(observation.files_put_back)
        yield f"files that the script's code before fit changed were put back after every trial: {files}"
    during = _distinct(path for one in measured for path in one.files_written)
    if during:
        files = f"{_listed(during)} (files that existed were put back)"
        yield f"the training's own code wrote files during the fit in trials: {files}; {_REMEDY}"


def _listed(paths: Sequence[str]) -> str:
    more = len(paths) - _SHOWN
    return ", ".join(paths[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _distinct(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))
