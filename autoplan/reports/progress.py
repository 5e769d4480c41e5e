"""Shows the progress of tuning: a live table in a terminal, plain lines everywhere else."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO, cast

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from autoplan import formatting
from autoplan.plan.records import FAILURES, CompilerEvidence, Failure, Measurement
from autoplan.reports.plan_table import ByWidth, open_console, open_table, outcome_cells, stacked
from autoplan.tuning.request import Event, Watch
from cost_models.config import TrainConfig

_ROWS_SHOWN = 15
_REFRESHES_PER_SECOND = 4


@contextlib.contextmanager
def watching(stream: TextIO, clock: Callable[[], float] = time.monotonic) -> Iterator[Watch]:
    """Yield a function that shows events on `stream` until the end of the block."""
    lasting = cast("TextIO", Lasting(stream))
    console = open_console(lasting)
    if not console.is_terminal or console.is_dumb_terminal:
        yield PlainLines(lasting, clock)
        return
    board = Board(clock)
    with Live(get_renderable=board.render, console=console, refresh_per_second=_REFRESHES_PER_SECOND, transient=True):
        yield lambda event: board.show(event, console)


class Lasting:
    """A stream that drops output once it can no longer be written: its reader left, or its disk is full.

    Tuning continues, because the plan is written to a file.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._silent = False

    def write(self, text: str) -> int:
        """Write the text if the stream still takes it."""
        self._try(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        """Flush the stream if it still takes output."""
        self._try(self._stream.flush)

    def _try(self, put: Callable[[], object]) -> None:
        if not self._silent:
            try:
                put()
            except OSError:
                self._silent = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class PlainLines:
    """Print one line per event, for pipes, logs, and terminals that cannot move their cursor."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._start = clock()

    def __call__(self, event: Event) -> None:
        """Write the event with the time since the start, and the time left if it is known."""
        if event.kind == "trial_phase":
            return
        words = [f"[{formatting.duration(self._clock() - self._start)}]", _text(event)]
        if event.kind == "trial_finished":
            words += [part for part in (_best(event), _left(event.seconds_left)) if part]
        self._stream.write("  ".join(words) + "\n")
        self._stream.flush()


@dataclass
class Trial:
    """A row of the live table."""

    number: int
    config: TrainConfig
    phase: str
    started: float
    outcome: Measurement | CompilerEvidence | Failure | None = None
    whole_fit_seconds: float | None = None

    def cells(self) -> dict[str, str]:
        """Return the figures by `OUTCOME_COLUMNS`."""
        shown = None if isinstance(self.outcome, Failure) else self.outcome
        return outcome_cells(shown, self.whole_fit_seconds)


@dataclass
class Board:
    """The state of a study from its events, drawn several times a second."""

    clock: Callable[[], float] = time.monotonic
    trials: dict[int, Trial] = field(default_factory=dict)
    stage: str = "starting"
    best_number: int | None = None
    seconds_left: float | None = None
    left_at: float = 0.0
    _spinner: Spinner = field(default_factory=lambda: Spinner("dots"))

    def show(self, event: Event, console: Console) -> None:
        """Update the state from an event; print a note above the table, where it stays."""
        if event.number is not None:
            self._update_trial(event, event.number)
        if event.kind == "note":
            console.print(Text(event.text))
        elif event.kind != "trial_phase" and event.kind != "trial_finished":
            self.stage = event.text
        if event.best_number is not None:
            self.best_number = event.best_number
        if event.seconds_left is not None:
            self.seconds_left, self.left_at = event.seconds_left, self.clock()

    def render(self) -> RenderableType:
        """Return the table of trials, with a line for the current stage, the time left, and the best trial so far."""
        self._spinner.update(text=Text(self._status()))
        if not self.trials:
            return self._spinner
        return Group(ByWidth(self._table), self._spinner)

    def _table(self, columns: Sequence[str]) -> RenderableType:
        table = open_table("trial", "configuration", *stacked(*columns), "state")
        for trial in list(self.trials.values())[-_ROWS_SHOWN:]:
            style = "bold green" if trial.number == self.best_number else None
            cells = trial.cells()
            shown = [cells[name] for name in columns]
            table.add_row(str(trial.number), trial.config.describe(), *shown, self._state(trial), style=style)
        return table

    def _update_trial(self, event: Event, number: int) -> None:
        known = self.trials.get(number)
        if known is None and event.config is not None:
            known = self.trials[number] = Trial(number, event.config, "starting", self.clock())
        if known is None:
            return
        if event.outcome is not None:
            known.outcome, known.whole_fit_seconds = event.outcome, event.whole_fit_seconds
        elif event.kind == "trial_phase":
            known.phase = event.text

    def _state(self, trial: Trial) -> str:
        if isinstance(trial.outcome, Measurement):
            return "measured, simulated devices" if trial.outcome.simulated_devices else "measured"
        if isinstance(trial.outcome, CompilerEvidence):
            return "compiled"
        if isinstance(trial.outcome, Failure):
            return FAILURES[trial.outcome.kind]
        return f"{trial.phase}, {formatting.duration(self.clock() - trial.started)}"

    def _status(self) -> str:
        parts = [self.stage]
        if self.seconds_left is not None:
            parts.append(_left(max(0.0, self.seconds_left - (self.clock() - self.left_at))))
        best = self.trials.get(self.best_number) if self.best_number is not None else None
        if best is not None and isinstance(best.outcome, Measurement):
            rate = formatting.rate(best.outcome.samples_per_second)
            what = "best" if best.whole_fit_seconds is None else "shortest whole fit"
            parts.append(f"{what} so far: trial {best.number}, {rate} samples/s")
        return "  ·  ".join(parts)


def _text(event: Event) -> str:
    if event.kind == "trial_started" and event.number is not None:
        config = f": {event.config.describe()}" if event.config else ""
        return f"trial {event.number} starts{config}"
    if event.kind != "trial_finished" or event.number is None or event.outcome is None:
        return event.text
    return f"trial {event.number} {_outcome(event.outcome)}"


def _outcome(outcome: Measurement | CompilerEvidence | Failure) -> str:
    """Return the figures of one trial. The time of the whole fit is left out, because later trials change it."""
    if isinstance(outcome, Failure):
        return f"failed ({FAILURES[outcome.kind]}): {formatting.first_line(outcome.message)}"
    if isinstance(outcome, CompilerEvidence):
        took = formatting.duration(outcome.lower_seconds + outcome.compile_seconds)
        return f"compiled in {took}: {formatting.size(outcome.memory.program_bytes)} per device"
    simulated = " on simulated devices" if outcome.simulated_devices else ""
    cells = outcome_cells(outcome, None)
    known = {name: cell for name, cell in cells.items() if cell != formatting.NOT_KNOWN}
    rate = f"{known.pop('samples/s')} samples/s"
    return f"measured{simulated}: {', '.join([rate, *(f'{name} {cell}' for name, cell in known.items())])}"


def _best(event: Event) -> str:
    what = "shortest whole fit" if event.whole_fit_known else "best"
    return "" if event.best_number is None else f"({what} so far: trial {event.best_number})"


def _left(seconds_left: float | None) -> str:
    return "" if seconds_left is None else f"{formatting.duration(seconds_left)} of the budget left"
