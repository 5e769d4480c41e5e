from __future__ import annotations

import contextlib
import io
import os
import re
from pathlib import Path

import pytest

from autoplan.plan.records import Failure, Measurement
from autoplan.reports import plan_table, progress
from autoplan.tuning.request import Event
from tests.builders import plans
from tests.builders.printed import Terminal

MEASURED = Measurement.model_validate(plans.measurement())
SIMULATED = Measurement.model_validate(plans.measurement(simulated_devices=True))
OUT_OF_MEMORY = Failure(kind="oom", message="killed at 12.1 GiB\nmore", log="trial-1.log", wall_seconds=3.0)


class Clock:
    """A clock that is set by hand, in seconds."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


STORY = [
    (0.0, Event("stage", "inspecting the training up to its fit")),
    (4.0, Event("note", "the script's set_dtype_policy is overridden")),
    (5.0, Event("trial_started", "", number=0, config=plans.train_config(jit_compile=False), seconds_left=595.0)),
    (6.0, Event("trial_phase", "compiling", number=0, seconds_left=594.0)),
    (
        9.0,
        Event(
            "trial_finished",
            "",
            number=0,
            config=plans.train_config(jit_compile=False),
            outcome=MEASURED,
            whole_fit_seconds=3.81,
            whole_fit_known=True,
            best_number=0,
        ),
    ),
    (10.0, Event("trial_started", "", number=1, config=plans.train_config(batch=(4096, 1)))),
    (
        75.0,
        Event(
            *("trial_finished", "killed at 12.1 GiB"),
            number=1,
            config=plans.train_config(batch=(4096, 1)),
            outcome=OUT_OF_MEMORY,
            whole_fit_known=True,
            best_number=0,
            seconds_left=525.0,
        ),
    ),
    (80.0, Event("verification", "pair 1 of 5", seconds_left=520.0)),
    (99.0, Event("finished", "the plan is written")),
]


def test_a_pipe_gets_an_event_a_line(clock):
    stream = io.StringIO()
    with progress.watching(stream, clock) as watch:
        for clock.now, event in STORY:
            watch(event)
    best = "shortest whole fit so far: trial 0"
    assert stream.getvalue().splitlines() == [
        "[0 s]  inspecting the training up to its fit",
        "[4 s]  the script's set_dtype_policy is overridden",
        "[5 s]  trial 0 starts: float32, batch 128, jit_compile off",
        (
            "[9 s]  trial 0 measured: 32,000 samples/s, update 4.00 ms, compile time 1.25 s, "
            f"peak memory 512 MiB  ({best})"
        ),
        "[10 s]  trial 1 starts: float32, batch 4096",
        f"[1 min 15 s]  trial 1 failed (out of memory): killed at 12.1 GiB  ({best})  8 min 45 s of the budget left",
        "[1 min 20 s]  pair 1 of 5",
        "[1 min 39 s]  the plan is written",
    ]


def test_a_whole_fit_of_unknown_length_is_not_spoken_of(clock):
    event = Event("trial_finished", "", number=0, config=plans.train_config(), outcome=MEASURED, best_number=0)
    stream = io.StringIO()
    with progress.watching(stream, clock) as watch:
        watch(event)
    assert stream.getvalue() == (
        "[0 s]  trial 0 measured: 32,000 samples/s, update 4.00 ms, compile time 1.25 s, peak memory 512 MiB  "
        "(best so far: trial 0)\n"
    )
    board = progress.Board(clock)
    board.show(event, plan_table.open_console(io.StringIO()))
    assert "best so far: trial 0, 32,000 samples/s" in drawn(board)


def test_each_line_is_there_as_soon_as_it_happened(tmp_path, clock):
    with (tmp_path / "log").open("w") as stream, progress.watching(stream, clock) as watch:
        watch(STORY[0][1])
        assert (tmp_path / "log").read_text() == "[0 s]  inspecting the training up to its fit\n"


def test_a_reader_that_leaves_does_not_end_the_study(clock):
    reading, writing = os.pipe()
    stream = os.fdopen(writing, "w")
    told = []
    with progress.watching(stream, clock) as watch:
        watch(STORY[0][1])
        told.append(os.read(reading, 1000))
        os.close(reading)
        watch(STORY[1][1])
        watch(STORY[2][1])
    with contextlib.suppress(BrokenPipeError):
        stream.close()
    assert told == [b"[0 s]  inspecting the training up to its fit\n"]


def test_a_terminal_that_cannot_move_its_cursor_gets_lines(clock, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal()
    with progress.watching(stream, clock) as watch:
        watch(STORY[0][1])
    assert stream.getvalue() == "[0 s]  inspecting the training up to its fit\n"


def test_long_lines_are_not_broken_in_a_pipe(clock):
    stream = io.StringIO()
    with progress.watching(stream, clock) as watch:
        watch(Event("note", "word " * 100))
    assert len(stream.getvalue().splitlines()) == 1


def test_simulated_devices_are_named(clock):
    event = Event("trial_finished", "", number=3, config=plans.train_config(), outcome=SIMULATED)
    stream = io.StringIO()
    with progress.watching(stream, clock) as watch:
        watch(event)
    assert stream.getvalue().startswith("[0 s]  trial 3 measured on simulated devices: 32,000 samples/s")
    board = progress.Board(clock)
    board.show(event, plan_table.open_console(io.StringIO()))
    assert "measured, simulated devices" in drawn(board)


def drawn(board) -> str:
    console = plan_table.open_console(io.StringIO())
    console.print(board.render())
    return console.file.getvalue()


def rows(board) -> list[list[str]]:
    return [re.split(r"\s{2,}", line.strip()) for line in drawn(board).splitlines()]


def test_the_board_shows_trials_phase_time_left_and_the_best(clock):
    console = plan_table.open_console(io.StringIO())
    board = progress.Board(clock)
    for clock.now, event in STORY[:4]:
        board.show(event, console)
    clock.now = 8.0
    assert ["0", "float32, batch 128, jit_compile off", *["—"] * 5, "compiling, 3 s"] in rows(board)
    assert "9 min 52 s of the budget left" in drawn(board)
    for clock.now, event in STORY[4:7]:
        board.show(event, console)
    clock.now = 85.0
    finished = rows(board)
    assert [
        "0",
        "float32, batch 128, jit_compile off",
        "4.00 ms",
        "32,000",
        "1.25 s",
        "3.81 s",
        "512 MiB",
        "measured",
    ] in finished
    assert ["1", "float32, batch 4096", *["—"] * 5, "out of memory"] in finished
    assert "8 min 35 s of the budget left" in drawn(board)
    assert "shortest whole fit so far: trial 0, 32,000 samples/s" in drawn(board)


def test_a_narrow_terminal_is_shown_what_matters_most(clock):
    """80 characters: a configuration keeps its words whole, and the figures by which trials are ranked stay."""
    board = progress.Board(clock)
    console = plan_table.open_console(io.StringIO(), 80)
    for event in (event for _, event in STORY[2:5]):
        board.show(event, console)
    console.print(board.render())
    shown = [re.split(r"\s{2,}", line.strip()) for line in console.file.getvalue().splitlines()]
    assert shown[1] == ["trial", "configuration", "samples/s", "fit", "memory", "state"]
    assert shown[3][1:] == ["float32, batch 128,", "32,000", "3.81 s", "512 MiB", "measured"]


def test_the_board_keeps_to_the_screen(clock):
    console = plan_table.open_console(io.StringIO())
    board = progress.Board(clock)
    for number in range(40):
        board.show(Event("trial_started", "", number=number, config=plans.train_config()), console)
    numbers = [row[0] for row in rows(board) if row[0].isdecimal()]
    assert numbers == [str(number) for number in range(25, 40)]


def test_a_terminal_is_left_clean_with_its_notes(clock, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    stream = Terminal()
    with progress.watching(stream, clock) as watch:
        for clock.now, event in STORY:
            watch(event)
    told = stream.getvalue()
    assert "the script's set_dtype_policy is overridden" in told
    assert "\x1b[?25h" in told, "the cursor is shown again"


def test_a_terminal_is_left_clean_after_a_failure(clock, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    stream = Terminal()

    def interrupted():
        with progress.watching(stream, clock) as watch:
            watch(STORY[0][1])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert "\x1b[?25h" in stream.getvalue()


def test_a_full_disk_does_not_end_the_study(clock):
    stream = Path("/dev/full").open("w")  # noqa: SIM115 -- closing it fails, as writing does
    with progress.watching(stream, clock) as watch:
        for _, event in STORY:
            watch(event)
    with pytest.raises(OSError, match="No space left"):
        stream.close()


def test_a_terminal_that_hangs_up_does_not_end_the_study(clock):
    class HungUp(Terminal):
        def write(self, text):
            raise OSError(5, "Input/output error")

    with progress.watching(HungUp(), clock) as watch:
        for _, event in STORY:
            watch(event)
