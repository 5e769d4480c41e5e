"""The command as real processes: what it imports, how it streams, how it ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import autoplan
from autoplan.plan import file
from autoplan.plan.records import Plan
from tests.builders import plans
from tests.builders.slow import slow

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def process(*words: str, settings: dict[str, str] | None = None):
    """A real `autoplan` process."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | (settings or {})
    return subprocess.run([sys.executable, "-m", "autoplan", *words], env=environment, text=True, capture_output=True)


# Nothing heavy is imported too early


@pytest.mark.parametrize(
    "words", [["--help"], ["tune", "--help"], ["estimate", "--help"], ["hardware", "--help"], ["--version"]]
)
def test_help_imports_nothing_heavy(words):
    """The help of `tune` lists the table of knobs, whose package imports NumPy."""
    heavy = ["keras", "jax", "tensorflow", "torch", "optuna", "pandas", "rich", *([] if "tune" in words else ["numpy"])]
    code = (
        "import sys\n"
        f"sys.argv = ['autoplan', *{words!r}]\n"
        "from autoplan.cli.commands import main\n"
        "try:\n"
        "    main()\n"
        "except SystemExit as end:\n"
        "    assert end.code in (0, None), end.code\n"
        f"sys.stderr.write(repr([name for name in {heavy!r} if name in sys.modules]))\n"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, text=True, capture_output=True, check=True)
    assert done.stderr == "[]"
    assert done.stdout


def test_importing_autoplan_imports_nothing_heavy():
    code = (
        "import sys, autoplan; sys.stdout.write(repr(sorted({'keras', 'jax', 'optuna', 'pandas'} & set(sys.modules))))"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, text=True, capture_output=True, check=True)
    assert done.stdout == "[]"


@pytest.mark.parametrize(
    "words", [["explain", "plan.yaml"], *slow(["export", "plan.yaml"], ["hardware", "list"], ["schema"])]
)
def test_no_command_of_the_planner_imports_a_framework(folder, words):
    file.write(plans.plan(), "plan.yaml")
    code = (
        "import sys\n"
        f"sys.argv = ['autoplan', *{words!r}]\n"
        "from autoplan.cli.commands import main\n"
        "try:\n"
        "    main()\n"
        "except SystemExit as end:\n"
        "    assert end.code in (0, None), end.code\n"
        "sys.stderr.write(repr([name for name in ('keras', 'jax', 'optuna', 'pandas') if name in sys.modules]))\n"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, text=True, capture_output=True, check=True)
    assert done.stderr == "[]"


def test_a_reader_that_leaves_early_is_no_fault(folder):
    listing = subprocess.Popen(
        [sys.executable, "-m", "autoplan", "schema"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    listing.stdout.close()
    told = listing.stderr.read()
    listing.stderr.close()
    assert listing.wait(timeout=60) != 0
    assert told == b""


def test_a_terminal_without_arrows_gets_question_marks(folder):
    file.write(plans.plan(), "plan.yaml")
    done = subprocess.run(
        [sys.executable, "-m", "autoplan", "explain", "plan.yaml"],
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii"},
        text=True,
        capture_output=True,
        check=True,
    )
    assert "jit_compile off ? on" in done.stdout


# The whole command, as a process


def test_version_and_help():
    assert process("--version").stdout == f"autoplan {autoplan.__version__}\n"
    told = process("-h")
    assert told.returncode == 0
    for command in ("tune", "estimate", "compare", "train", "explain", "export", "check", "schema", "hardware"):
        assert f"\n  {command} " in told.stdout


def test_from_a_script_to_a_plan_to_its_training(folder):
    """Planned for the catalogue's processor, so that no trial is run: this machine's compiler stands for its own."""
    script = ROOT / "tests" / "models" / "scripts" / "mlp.py"
    shutil.copy(script, "mlp.py")
    settings = {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    planned = process("tune", "mlp.py", "--hardware", "cpu", "--format", "json", settings=settings)
    assert planned.returncode == 0, planned.stderr
    plan = Plan.model_validate(json.loads(planned.stdout))
    assert plan.evidence == "compiled"
    assert file.read("plan.yaml").config == plan.config
    assert Path("plan.yaml").read_text().startswith("# Nothing was run for this plan: ")
    trained = process("train", "mlp.py", "--plan", "plan.yaml", settings=settings)
    assert trained.returncode == 0, trained.stderr
    assert f"fit 1: {plan.config.describe()}; {plan.source.fit.updates} updates" in trained.stderr


@pytest.mark.slow
def test_a_script_is_compared_on_real_hardware_of_the_catalogue(folder):
    shutil.copy(ROOT / "tests" / "models" / "scripts" / "mlp.py", "mlp.py")
    names = "tpu-v5e-4,gpu-h100-80gb,gpu-mi300x"
    words = ("compare", "mlp.py", "--hardware", names, "--cost", "--format", "json")
    done = process(*words, settings={"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"})
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert sorted(row["hardware"] for row in answer["rows"]) == sorted(names.split(","))
    assert all(row["trains"] and row["evidence"] == "analytic" and 0 < row["mfu"] < 1 for row in answer["rows"])
    costs = [row["usd_per_million_samples"] for row in answer["rows"]]
    assert costs == sorted(costs)
    assert not Path("plan.yaml").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_an_interruption_of_a_real_process(folder, number):
    Path("train.py").write_text("import time\nprint('started', flush=True)\ntime.sleep(600)\nmodel.fit()\n")
    tuning = subprocess.Popen(
        [sys.executable, "-m", "autoplan", "tune", "train.py", "--hardware", "cpu"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        lines = iter(tuning.stdout.readline, "")
        assert any("inspecting the training up to its fit" in line for line in lines)
        tuning.send_signal(number)
        _, told = tuning.communicate(timeout=60)
    finally:
        tuning.kill()
    assert (tuning.returncode, told) == (130, "error: interrupted before there was a result\n")


def test_an_answer_on_a_full_disk_is_one_message(folder):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "autoplan", "hardware", "list"],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert (done.returncode, done.stderr) == (2, "error: the result could not be printed: no space left on device\n")
