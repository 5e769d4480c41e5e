from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from autoplan import planner
from autoplan.cli import commands
from autoplan.errors import NoFeasibleConfiguration, StudyError
from autoplan.plan import file, knobs
from autoplan.plan.records import Plan
from autoplan.tuning.estimates.configuration import ConfigurationEstimate
from autoplan.tuning.request import Candidate, CompareRequest, EstimateRequest, Event, TuneRequest, TuneResult
from tests.builders import comparison_rows, plans

ANSWER = ConfigurationEstimate(plans.analytic())
ROOT = Path(__file__).parents[3]
SCRIPT = "import keras\nmodel = keras.Sequential()\nmodel.fit()\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT)
    return tmp_path


def run(*words: str):
    return CliRunner().invoke(commands.app, list(words))


# tune: words -> request


@pytest.fixture
def asked(monkeypatch):
    """What the planner was asked; it answers with a plan."""
    requests = []

    def tune(request, watch):
        requests.append(request)
        watch(Event("stage", "inspecting the training up to its fit"))
        return TuneResult(plans.plan(), (), (), None, None, request.output)

    monkeypatch.setattr(planner, "tune", tune)
    return requests


def test_tune_asks_with_the_documented_defaults(folder, asked):
    assert run("tune", "train.py").exit_code == 0
    request = asked[0]
    assert request == TuneRequest(source=request.source, output=Path("plan.yaml"))
    assert (request.source.kind, Path(request.source.path).name) == ("script", "train.py")


def test_every_option_of_tune_reaches_the_planner(folder, asked):
    done = run(
        *("tune", "train.py", "--hardware", "tpu-v4-8", "--devices", "8", "--trials", "7", "--budget", "1h30m"),
        *("--effective-batch", "64..4096", "--fix", "precision=float32", "--fix", "mesh=data=8"),
        *("--only", "batch,remat", "--fit", "2", "--study", "s.db", "--headroom", "10%", "--output", "p.yaml"),
        *("--memory-limit", "2GiB", "--no-measure", "--scratch", "--", "--epochs", "3", "--", "--help", "-x"),
    )
    assert done.exit_code == 0, done.output
    request = asked[0]
    assert request.source.fit_index == 2
    assert request.source.args == ["--epochs", "3", "--", "--help", "-x"]
    assert request == TuneRequest(
        source=request.source,
        hardware="tpu-v4-8",
        devices=8,
        trials=7,
        budget_seconds=5400.0,
        effective_batch=(64, 4096),
        fix={"precision": "float32", "mesh": "data=8"},
        only=("batch", "remat"),
        study="s.db",
        headroom=0.1,
        memory_limit_bytes=2 * 2**30,
        output=Path("p.yaml"),
        measure=False,
        scratch=True,
    )


@pytest.mark.parametrize(
    ("options", "most"),
    [(["--compile", "3"], 3), (["--witness", "3"], 3), (["--witness", "3", "--compile", "0"], 0), ([], None)],
)
def test_compile_limits_the_compiled_candidates_and_witness_is_its_former_name(folder, asked, options, most):
    assert run("tune", "train.py", *options).exit_code == 0
    assert asked[0].compile_count == most


def test_help_names_compile_alone():
    text = run("tune", "--help").output
    assert "--compile" in text
    assert "--witness" not in text


@pytest.mark.parametrize(("command", "lists_names"), [("tune", True), ("compare", False)])
def test_help_lists_every_setting_of_the_table_of_knobs(command, lists_names):
    text = " ".join(run(command, "--help").output.split())
    settings = text.partition("Settings of --fix: ")[2].partition(" Settings of --only: ")
    for knob in knobs.KNOBS:
        assert f"{(*knob.aliases, knob.spelling)[0]} {knob.description}" in settings[0]
    assert settings[2] == (", ".join(knobs.tunable_fields()) if lists_names else "")


def test_words_of_the_script_need_the_two_dashes(folder, asked):
    done = run("tune", "train.py", "--epochs", "3")
    assert done.exit_code == 2
    assert "No such option" in done.output
    done = run("tune", "train.py", "3")
    assert done.exit_code == 2
    assert "3" in done.output
    assert not asked


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--budget", "10"], "--budget 10: expected a time with units, such as 90s, 10m or 1h30m"),
        (
            ["--effective-batch", "9..3"],
            "--effective-batch 9..3: expected keep, samples per update such as 256, or a range such as 64..4096",
        ),
        (["--fix", "precision"], "--fix precision: expected KEY=VALUE, such as precision=float32 or mesh=data=8"),
        (
            ["--headroom", "2"],
            "--headroom 2: expected a percentage of the device's memory below 100%, such as 8%",
        ),
        (["--memory-limit", "2"], "--memory-limit 2: expected a size with a unit, such as 2GiB or 1500MB"),
        (["--output", "no/plan.yaml"], "there is no folder no for plan.yaml; create it, or choose another --output"),
    ],
)
def test_wrong_words_are_one_message_and_exit_code_2(folder, asked, words, message):
    done = run("tune", "train.py", *words)
    assert (done.exit_code, done.stdout, done.stderr) == (2, "", f"error: {message}\n")
    assert not asked


@pytest.mark.parametrize(
    ("words", "start"),
    [
        (["--fix", "precison=float32"], "error: --fix precison: unknown setting; did you mean precision?"),
        (["--fix", "precision=bf16"], "error: --fix precision: precision cannot be 'bf16'; expected one of float32"),
        (["--only", "batch,learning_rate"], "error: --only learning_rate: no setting of this name can be tuned"),
    ],
)
def test_unknown_settings_are_told_before_anything_runs(folder, asked, words, start):
    done = run("tune", "train.py", *words)
    assert done.exit_code == 2
    assert done.stderr.startswith(start)
    assert not asked


@pytest.mark.parametrize(
    "words", [["tune"], ["tune", "train.py", "--trials", "0"], ["tune", "train.py", "--format", "xml"], ["nonsense"]]
)
def test_usage_errors_exit_with_2(folder, asked, words):
    done = run(*words)
    assert done.exit_code == 2
    assert "Usage:" in done.stderr
    assert not done.stdout
    assert not asked


def test_a_missing_script_is_named(folder):
    done = run("tune", "tran.py")
    assert done.exit_code == 2
    assert done.stderr.startswith("error: there is no file tran.py")
    assert "train.py" in done.stderr


# tune: result -> answer


def test_tune_ends_with_the_table_and_the_next_command(folder, asked):
    done = run("tune", "train.py")
    lines = done.stdout.splitlines()
    assert lines[0].endswith("inspecting the training up to its fit")
    assert any(line.startswith("update ") and line.endswith("measured") for line in lines)
    assert lines[-1] == "  autoplan train train.py --plan plan.yaml -- --learning-rate 1e-4"
    assert done.stderr == ""


def test_tune_in_json_prints_the_plan_alone_on_stdout(folder, asked):
    done = run("tune", "train.py", "--format", "json")
    assert Plan.model_validate(json.loads(done.stdout)) == plans.plan()
    assert "inspecting the training up to its fit" in done.stderr


def test_an_interrupted_study_answers_and_exits_with_130(folder, monkeypatch):
    result = TuneResult(plans.plan(), (), (), None, None, Path("plan.yaml"), interrupted=True)
    monkeypatch.setattr(planner, "tune", lambda request, watch: result)
    done = run("tune", "train.py")
    assert done.exit_code == 130
    assert done.stdout.splitlines()[0] == "Interrupted: this is the best plan so far."
    as_json = run("tune", "train.py", "--format", "json")
    assert as_json.exit_code == 130
    assert json.loads(as_json.stdout)["schema"] == 1


def test_a_dry_run_lists_candidates_and_writes_nothing(folder, monkeypatch):
    candidate = Candidate(plans.train_config(), plans.analytic(), "the best by estimate")
    asked = []

    def tune(request, watch):
        asked.append(request)
        return TuneResult(None, (candidate,), tuple(plans.plan().rejected), 200.0, None, None)

    monkeypatch.setattr(planner, "tune", tune)
    done = run("tune", "train.py", "--dry-run", "--output", "/nowhere/plan.yaml")
    assert done.exit_code == 0
    assert (asked[0].dry_run, asked[0].output) == (True, None)
    assert done.stdout.startswith("Nothing was measured: all figures are analytic. Tuning would run ")
    assert "needs 19.4 GiB of 12.0" not in done.stdout
    assert "needs 19.4 GiB of 12.0" in run("tune", "train.py", "--dry-run", "--all").stdout
    assert done.stdout.splitlines()[-1] == "Tuning would take about 3 min 20 s (analytic)."
    as_json = json.loads(run("tune", "train.py", "--dry-run", "--format", "json").stdout)
    assert as_json["forecast_seconds"] == 200.0
    assert as_json["shortlist"] == [
        {"config": plans.config(), "estimate": plans.analytic().to_dict(), "reason": "the best by estimate"}
    ]
    alone = run("tune", "train.py", "--all")
    assert alone.exit_code == 2
    assert "--all needs --dry-run, because it prints all candidates of a dry run" in alone.stderr


# Errors


@pytest.mark.parametrize(
    ("error", "code"), [(StudyError("the study is damaged"), 2), (NoFeasibleConfiguration("nothing fits"), 3)]
)
def test_an_error_is_a_message_and_its_exit_code(folder, monkeypatch, error, code):
    def tune(request, watch):
        raise error

    monkeypatch.setattr(planner, "tune", tune)
    done = run("tune", "train.py")
    assert (done.exit_code, done.stdout, done.stderr) == (code, "", f"error: {error}\n")
    as_json = run("tune", "train.py", "--format", "json")
    assert as_json.exit_code == code
    assert json.loads(as_json.stdout) == {
        "schema": 1,
        "error": {"kind": type(error).__name__, "message": str(error), "exit_code": code},
    }
    assert as_json.stderr == f"error: {error}\n"


def test_ctrl_c_without_an_answer_exits_with_130(folder, monkeypatch):
    def tune(request, watch):
        raise KeyboardInterrupt

    monkeypatch.setattr(planner, "tune", tune)
    done = run("tune", "train.py")
    assert (done.exit_code, done.stderr) == (130, "error: interrupted before there was a result\n")


def test_a_fault_of_autoplan_is_kept_in_a_file(folder, monkeypatch, capsys):
    monkeypatch.setattr(commands, "app", lambda: {}["missing"])
    with pytest.raises(SystemExit) as end:
        commands.main()
    assert end.value.code == 1
    told = capsys.readouterr().err
    kept = next(Path(".autoplan").glob("crash-*.txt"))
    assert told == (
        "error: autoplan itself failed (KeyError: 'missing'). This is a bug in autoplan, not a fault of your input. "
        f"Please report it with the file {kept}.\n"
    )
    assert "Traceback" in kept.read_text()


# estimate


def test_estimate_prints_the_document_and_nothing_else(folder, monkeypatch):
    asked = []

    def estimate(request, watch):
        asked.append(request)
        return ANSWER

    monkeypatch.setattr(planner, "estimate", estimate)
    done = run(
        *("estimate", "train.py", "--hardware", "tpu-v4-8", "--batch-size", "512", "--accumulation", "2"),
        *("--precision", "mixed_bfloat16", "--remat", "activations", "--steps-per-execution", "4"),
        *("--mesh", "data=4,model=2", "--shard-state", "--format", "json", "--", "--small"),
    )
    assert json.loads(done.stdout) == {**plans.analytic().to_dict(), "notes": []}
    assert (done.exit_code, done.stderr) == (0, "")
    request = asked[0]
    assert request.source.args == ["--small"]
    assert request == EstimateRequest(
        source=request.source,
        hardware="tpu-v4-8",
        settings={
            "global": 512,
            "accumulation": 2,
            "precision": "mixed_bfloat16",
            "remat": "activations",
            "steps_per_execution": 4,
            "shard_state": True,
        },
        mesh={"data": 4, "model": 2},
        explain=False,
    )


def test_estimate_in_text_and_with_explanations(folder, monkeypatch):
    monkeypatch.setattr(planner, "estimate", lambda request, watch: ANSWER)
    short = run("estimate", "train.py", "--hardware", "tpu-v4-8")
    assert short.stdout.splitlines()[0] == (
        "float32, batch 128 on tpu-v4-8. Nothing was run or measured: every figure is analytic."
    )
    long = run("estimate", "train.py", "--hardware", "tpu-v4-8", "--explain")
    assert len(long.stdout) > len(short.stdout)


def test_estimate_is_of_this_machine_unless_told_otherwise(folder, monkeypatch):
    asked = []
    monkeypatch.setattr(
        planner, "estimate", lambda request, watch: asked.append(request) or ConfigurationEstimate(plans.analytic())
    )
    assert run("estimate", "train.py").exit_code == 0
    assert (asked[0].hardware, asked[0].mesh) == ("local", None)


def test_estimate_takes_known_words(folder):
    done = run("estimate", "train.py", "--hardware", "tpu-v4-8", "--precision", "bf16")
    assert done.stderr.startswith("error: --precision bf16: expected one of float32, mixed_bfloat16")
    done = run("estimate", "train.py", "--hardware", "tpu-v4-8", "--remat", "ful")
    assert done.stderr == "error: --remat ful: expected one of none, activations, full; did you mean full?\n"


# compare


@pytest.fixture
def compared_with(monkeypatch):
    """What the planner was asked to compare; it answers with two rows."""
    requests = []

    def compare(request, watch):
        requests.append(request)
        watch(Event("stage", "estimating"))
        return comparison_rows.comparison(comparison_rows.row("a"), comparison_rows.row("b", samples_per_second=2.0))

    monkeypatch.setattr(planner, "compare", compare)
    return requests


def test_compare_asks_with_the_documented_defaults_and_prints_a_table(folder, compared_with):
    done = run("compare", "train.py")
    assert done.exit_code == 0
    assert compared_with == [CompareRequest(source=compared_with[0].source)]
    assert "The training fits on 2 of 2 kinds of hardware." in done.stdout
    assert "estimating" in done.stderr
    assert "estimating" not in done.stdout


def test_every_option_of_compare_reaches_the_planner(folder, compared_with):
    done = run(
        *("compare", "train.py", "--hardware", "tpu-v5e-4,gpu-t4", "--hardware", "mine.yaml", "--cost", "--fit", "2"),
        *("--evidence", "compiled", "--effective-batch", "64..128", "--fix", "precision=float32", "--backend", "jax"),
        *("--headroom", "10%", "--format", "json", "--", "--small"),
    )
    document = json.loads(done.stdout)
    assert [one["hardware"] for one in document["rows"]] == ["a", "b"]
    request = compared_with[0]
    assert (request.source.fit_index, request.source.args) == (2, ["--small"])
    assert request == CompareRequest(
        source=request.source,
        hardware=("tpu-v5e-4", "gpu-t4", "mine.yaml"),
        backend="jax",
        effective_batch=(64, 128),
        fix={"precision": "float32"},
        headroom=0.1,
        by_cost=True,
        compile=True,
    )
    run("compare", "train.py", "--family", "tpu,amd")
    assert compared_with[1].families == ("tpu", "amd")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--evidence", "measured"], "--evidence measured: expected one of analytic, compiled"),
        (["--hardware", ","], "--hardware ',': expected names of hardware with commas between"),
        (["--fix", "precison=float32"], "--fix precison: unknown setting; did you mean precision?"),
        (["--hardware", "tpu-v99-8"], "unknown hardware 'tpu-v99-8'"),
        (["--family", "tpus"], "unknown family 'tpus'; expected tpu, gpu, nvidia, amd, cpu or all"),
        (["--family", "tpu", "--hardware", "gpu-t4"], "--hardware and --family are both given"),
        (["--family", "tpu", "--evidence", "compiled"], "--evidence compiled compiles for each kind of hardware"),
    ],
)
def test_bad_words_of_compare_are_one_message(folder, words, message):
    done = run("compare", "train.py", *words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {message}")


# train


def test_train_becomes_the_runtime(folder, monkeypatch):
    file.write(plans.plan(), "plan.yaml")
    became = []
    monkeypatch.setattr(os, "execv", lambda path, words: became.append((path, words)))
    assert run("train", "train.py", "--plan", "plan.yaml", "--", "--epochs", "3").exit_code == 0
    head = [sys.executable, "-m", "autoplan.runtime", "train", "--plan", "plan.yaml", "--fit", "1", "train.py"]
    assert became == [(sys.executable, [*head, "--", "--epochs", "3"])]


def test_train_tells_what_the_plan_was_tuned_for_and_goes_on(folder, monkeypatch):
    elsewhere = plans.plan()
    chip = elsewhere.hardware.model_copy(update={"kind": "gpu", "description": "NVIDIA A100"})
    file.write(elsewhere.model_copy(update={"hardware": chip}), "plan.yaml")
    became = []
    monkeypatch.setattr(os, "execv", lambda path, words: became.append(path))
    done = run("train", "train.py", "--plan", "plan.yaml")
    assert (done.exit_code, became) == (0, [sys.executable])
    assert "note: plan.yaml was tuned for a different setup, so its figures may not apply (hardware" in done.stderr


def test_train_refuses_a_damaged_plan_before_anything_starts(folder, monkeypatch):
    Path("plan.yaml").write_text("schema: 7\n")
    monkeypatch.setattr(os, "execv", lambda path, words: pytest.fail("started"))
    done = run("train", "train.py", "--plan", "plan.yaml")
    assert done.exit_code == 2
    assert done.stderr.startswith("error: plan.yaml:1: schema: 7 is not a version")
    assert run("train", "other.py", "--plan", "plan.yaml").exit_code == 2
    assert run("train", "train.py").exit_code == 2


# Plans


def test_explain_tells_the_story_or_the_plan(folder):
    file.write(plans.plan(), "plan.yaml")
    told = run("explain", "plan.yaml")
    assert told.exit_code == 0
    assert told.stdout.splitlines()[0] == "An autoplan plan, measured on cpu (1 device)."
    assert json.loads(run("explain", "plan.yaml", "--format", "json").stdout) == plans.plain_plan()


def test_export_prints_a_module(folder):
    file.write(plans.plan(), "plan.yaml")
    done = run("export", "plan.yaml", "--to", "python")
    assert done.exit_code == 0
    compile(done.stdout, "exported.py", "exec")
    assert run("export", "plan.yaml", "--to", "rust").stderr == (
        "error: --to rust: unknown export target; choose from python\n"
    )


def test_schema_prints_a_json_schema():
    printed = json.loads(run("schema").stdout)
    assert printed["properties"]["config"] == {"$ref": "#/$defs/ConfigShape"}
    assert "precision" in printed["$defs"]["ConfigShape"]["properties"]


def test_check_answers_with_its_exit_code(folder):
    file.write(plans.plan(), "plan.yaml")
    done = run("check", "plan.yaml")
    assert done.exit_code == 2
    assert done.stdout.splitlines()[0] == ("plan.yaml is not valid here. Tune again, or restore the differing values:")
    as_json = run("check", "plan.yaml", "--format", "json")
    assert as_json.exit_code == 2
    assert json.loads(as_json.stdout)["valid"] is False


# Hardware


def test_hardware_list_and_show():
    listed = run("hardware", "list")
    assert "tpu-v4-N" in listed.stdout
    known = json.loads(run("hardware", "list", "--format", "json").stdout)["hardware"]
    assert {"tpu-v4", "gpu-h100-80gb", "cpu"} <= {row["key"] for row in known}
    shown = run("hardware", "show", "tpu-v4-8")
    assert shown.stdout.startswith("tpu-v4-8: 4 devices (2x2x1 chips) of tpu-v4, 30.75 GiB usable each")
    assert json.loads(run("hardware", "show", "tpu-v4-8", "--format", "json").stdout)["cluster"]["devices"] == 4


def test_unknown_hardware_names_what_is_near():
    done = run("hardware", "show", "gpu-h10")
    assert done.exit_code == 2
    assert done.stderr.startswith("error: unknown hardware 'gpu-h10'.")
