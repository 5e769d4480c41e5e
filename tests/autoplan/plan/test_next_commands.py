from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from autoplan.plan import file, next_commands
from tests.builders import plans

SCRIPTS = Path(__file__).parents[2] / "models" / "scripts"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def lines(kind, path, *, args=(), data="arrays"):
    plain = plans.plain_plan()["source"]
    source = plain | {"kind": kind, "path": str(path), "args": list(args), "fit": plain["fit"] | {"data": data}}
    return next_commands.train_lines(plans.plan(source=source), "p.yaml")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("-m package.train", "-m package.train"),
        ("/elsewhere/model.py:build_large", "/elsewhere/model.py:build_large"),
        ("{folder}/my models/model.py:build", "'my models/model.py:build'"),
    ],
)
def test_the_command_names_the_source_as_it_is_typed(folder, source, words):
    assert lines("script", source.format(folder=folder)) == [f"autoplan train {words} --plan p.yaml"]


def test_scripts_and_builders_with_data_are_trained_by_a_command(folder):
    assert lines("script", folder / "train.py", args=["--lr", "1e-4"]) == [
        "autoplan train train.py --plan p.yaml -- --lr 1e-4"
    ]
    assert lines("builder", folder / "model.py") == ["autoplan train model.py --plan p.yaml"]
    assert lines("builder", folder / "model.py", data=None) == ["autoplan train model.py --plan p.yaml"], "older plans"


@pytest.mark.parametrize(
    ("path", "imports", "call"),
    [
        ("{folder}/models.py", "from models import build_model", "build_model()"),
        ("{folder}/models.py:build_large", "from models import build_large", "build_large()"),
        ("package.module:build_large", "from package.module import build_large", "build_large()"),
        ("{folder}/my-models.py", "import runpy", "runpy.run_path('my-models.py')['build_model']()"),
        ("/elsewhere/models.py:build", "import runpy", "runpy.run_path('/elsewhere/models.py')['build']()"),
    ],
)
def test_a_builder_without_data_is_trained_in_python(folder, path, imports, call):
    assert lines("builder", path.format(folder=folder), data="synthetic") == [
        "import os",
        "os.environ['KERAS_BACKEND'] = 'jax'",
        "import autoplan",
        imports,
        "plan = autoplan.load_plan('p.yaml')",
        "with autoplan.scope(plan):",
        f"    model = {call}",
        "autoplan.fit(plan, model, x, y)",
    ]


def test_what_was_handed_over_in_python_is_there_already(folder):
    assert lines("callable", "Case.build_small")[2:4] == ["with autoplan.scope(plan):", "    model = build_small()"]
    assert lines("callable", "<lambda>")[3] == "    model = build_model()"
    assert lines("instance", "sequential") == [
        "import autoplan",
        "plan = autoplan.load_plan('p.yaml')",
        "model = autoplan.rebuild(plan, model)",
        "autoplan.fit(plan, model, x, y)",
    ]


STRUCTURE = """
import keras
from builder_no_data import build_model
from autoplan.runtime.model_facts import structure
print(structure(build_model()))
"""
DATA = "import numpy as np\nx, y = np.ones((64, 16, 16, 3), 'float32'), np.eye(5, dtype='float32')[np.zeros(64, int)]\n"


def run(code, folder):
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_lines_for_a_builder_without_data_train(folder):
    """Pasted as they stand, behind data of one's own: the plan halves the micro-batch of 32."""
    (folder / "builder_no_data.py").write_text((SCRIPTS / "builder_no_data.py").read_text())
    source = {
        "kind": "builder",
        "path": str(folder / "builder_no_data.py"),
        "sha256": "0" * 64,
        "fit": {"index": 1, "structure": run(STRUCTURE, folder).strip(), "samples": None, "epochs": 1}
        | {"data": "synthetic"},
    }
    baseline = {"config": plans.config(batch=(32, 1))}
    plan = plans.plan(source=source, config=plans.config(batch=(16, 2)), baseline=baseline)
    file.write(plan, "p.yaml")
    pasted = "\n".join(next_commands.train_lines(plan, "p.yaml"))
    assert "4/4" in run(f"{DATA}{pasted}", folder), "64 samples in micro-batches of 16"
