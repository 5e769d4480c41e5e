from __future__ import annotations

import errno
import json
import signal
import threading
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from autoplan.cli import framework
from autoplan.cli.framework import Commands, Format, SourceCommand
from autoplan.errors import AutoplanError, NoFeasibleConfiguration, OutputError


class Fails(AutoplanError):
    exit_code = 7


@pytest.fixture
def app():
    app = typer.Typer(cls=Commands, rich_markup_mode=None, pretty_exceptions_enable=False)

    @app.command(cls=SourceCommand)
    def echo(context: typer.Context, source: str, loud: bool = False) -> None:
        typer.echo(json.dumps([source, loud, framework.source_arguments(context)]))

    @app.command()
    def fail(
        kind: str,
        format_: Annotated[Format, typer.Option("--format", callback=framework.remember_format)] = Format.TEXT,
    ) -> None:
        raise {"fails": Fails("no"), "none": NoFeasibleConfiguration("nothing fits"), "key": KeyError("x")}[kind]

    return app


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["a.py"], ["a.py", False, []]),
        (["a.py", "--loud"], ["a.py", True, []]),
        (["--loud", "a.py", "--"], ["a.py", True, []]),
        (["a.py", "--", "--loud"], ["a.py", False, ["--loud"]]),
        (["-m", "package.module", "--loud", "--", "-m", "x"], ["-m package.module", True, ["-m", "x"]]),
        (["--loud", "-m", "package.module"], ["-m package.module", True, []]),
        (["-m package.module", "--loud", "--", "-m x"], ["-m package.module", True, ["-m x"]]),
        (["--loud", "-m package.module"], ["-m package.module", True, []]),
        (["a.py", "--", "x", "--", "--help", ""], ["a.py", False, ["x", "--", "--help", ""]]),
    ],
)
def test_what_stands_behind_the_dashes_is_the_scripts(app, words, found):
    assert json.loads(CliRunner().invoke(app, ["echo", *words]).stdout) == found


def test_help_shows_where_the_scripts_arguments_go(app):
    assert "[-- ARGS]" in CliRunner().invoke(app, ["echo", "--help"]).stdout


@pytest.mark.parametrize(("kind", "code", "told"), [("fails", 7, "no"), ("none", 3, "nothing fits")])
def test_each_error_has_its_exit_code_and_message(app, kind, code, told):
    done = CliRunner().invoke(app, ["fail", kind])
    assert (done.exit_code, done.stdout, done.stderr) == (code, "", f"error: {told}\n")
    done = CliRunner().invoke(app, ["fail", kind, "--format", "json"])
    assert json.loads(done.stdout)["error"]["exit_code"] == code


def test_other_exceptions_pass(app):
    assert isinstance(CliRunner().invoke(app, ["fail", "key"]).exception, KeyError)


def test_commands_are_listed_in_their_order(app):
    told = CliRunner().invoke(app, ["--help"]).stdout
    assert told.index("echo") < told.index("fail")


def test_a_crash_that_can_be_kept_nowhere_is_told_whole(monkeypatch, tmp_path, capsys):
    (tmp_path / ".autoplan").write_text("a file, not a folder")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing" / "deeper"))
    assert framework.report_crash(KeyError("x")) == 1
    assert capsys.readouterr().err.endswith("Please report it with this traceback:\nKeyError: 'x'\n.\n")


def test_a_crash_goes_to_the_temporary_folder_where_the_working_one_is_closed(monkeypatch, tmp_path, capsys):
    (tmp_path / ".autoplan").write_text("a file, not a folder")
    (tmp_path / "temporary").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    framework.report_crash(KeyError("x"))
    (kept,) = Path(tmp_path / "temporary").iterdir()
    assert f"the file {kept}" in capsys.readouterr().err
    assert "KeyError: 'x'" in kept.read_text()


def test_json_is_strict():
    with pytest.raises(ValueError, match="not JSON compliant"):
        framework.print_json({"x": float("nan")})


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_interrupt_as_ctrl_c_does(number):
    before = signal.signal(number, signal.SIG_DFL)
    try:
        with pytest.raises(KeyboardInterrupt, match=number.name), framework.interrupted_by_signals():
            signal.raise_signal(number)
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_a_signal_that_is_ignored_stays_so():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with framework.interrupted_by_signals():
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_threads_leave_signals_alone():
    def enter():
        with framework.interrupted_by_signals():
            seen.append(signal.getsignal(signal.SIGTERM))

    seen = []
    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGTERM)]


def test_an_answer_that_cannot_be_printed_says_where_the_plan_is():
    with (
        pytest.raises(OutputError) as caught,
        framework.answering(Path("plan.yaml")),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert str(caught.value) == "the result could not be printed: no space left on device; the plan is in plan.yaml"
    with pytest.raises(BrokenPipeError), framework.answering():
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")


def test_an_option_of_the_scripts_own_is_told_where_it_goes(app):
    done = CliRunner().invoke(app, ["echo", "train.py", "--batch-size", "16"])
    assert done.exit_code == 2
    assert "If it is an option of the script, put it after --, as in: -- --batch-size …" in done.output
    mistyped = CliRunner().invoke(app, ["echo", "train.py", "--lout"])
    assert "--loud" in mistyped.output
    assert "the script's own" not in mistyped.output
