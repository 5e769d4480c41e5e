"""A new knob takes one field, one row, one function for its legal values and one that applies it; nothing else changes.

The four are written into a copy of the packages, and the copy is used as a contributor would use it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FIELD = """
    prefetched: int = 1
"""
ROW = """
    Knob(
        ("prefetched",),
        whole_number(),
        "batches that are made ahead of their use",
        keras_statement="PREFETCHED = {value}",
    ),
"""
LEGAL_VALUES = '''

@legal_values("prefetched")
def prefetched(situation: Situation) -> Legal:
    """One batch, or four."""
    return Legal((1, 4))
'''
APPLY = '''

@model_setting("prefetched")
def set_prefetched(model: Any, value: int) -> None:
    """Set the number of batches that are made ahead."""
    model.prefetched = value
'''
SCRIPT = """
import keras, numpy as np
x = np.zeros((64, 4), "float32")
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(x, x[:, :1], batch_size=32, verbose=0)
print("prefetched", getattr(model, "prefetched", "as Keras has it"))
"""


def insert(path: Path, text: str, before: str | None = None) -> None:
    """Add text before the only line that starts so, or at the end."""
    content = path.read_text()
    if before is None:
        path.write_text(content + text)
        return
    assert content.count(before) == 1, f"{before!r} stands {content.count(before)} times in {path.name}"
    path.write_text(content.replace(before, text.lstrip("\n") + before))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Run Python on a copy of the packages that has the knob."""
    copy = tmp_path_factory.mktemp("copy")
    for package in ("autoplan", "cost_models"):
        shutil.copytree(ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
    insert(
        copy / "cost_models/config.py",
        FIELD,
        before="\n    def __post_init__(self) -> None:\n        if self.batch.data",
    )
    insert(copy / "autoplan/plan/knobs.py", ROW, before=')\n"""In the order of a plan."""')
    insert(copy / "autoplan/tuning/space/legal_values.py", LEGAL_VALUES)
    insert(copy / "autoplan/runtime/model_settings.py", APPLY)
    (copy / "train.py").write_text(SCRIPT)

    def run(*arguments: str) -> str:
        environment = os.environ | {"PYTHONPATH": f"{copy}{os.pathsep}{ROOT}"}
        done = subprocess.run(
            [sys.executable, "-P", *arguments], cwd=copy, env=environment, text=True, capture_output=True, timeout=280
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="module")
def tuned(run):
    return json.loads(run("-m", "tests.builders.made_up_knob", "train.py", "plan.yaml").splitlines()[-1])


def test_it_is_searched(tuned):
    assert (tuned["own"], set(tuned["tried"]), tuned["chosen"]) == (1, {1, 4}, 4)


def test_it_is_fixed_by_the_user(tuned):
    assert 2 in tuned["fixed"]
    assert set(tuned["fixed"]) <= {1, 2}, "the script's own is the baseline"


def test_a_wrong_value_is_refused_with_what_is_expected(run):
    code = "from autoplan.tuning.space.options import parse_fix; parse_fix({'prefetched': '0'})"
    with pytest.raises(AssertionError, match="prefetched cannot be '0'; expected a whole number of at least 1"):
        run("-c", code)


def test_it_is_explained(run, tuned):
    assert "prefetched 4" in run("-m", "autoplan", "explain", "plan.yaml")


def test_it_is_exported(run, tuned):
    assert "PREFETCHED = 4\n" in run("-m", "autoplan", "export", "plan.yaml")


def test_it_is_described_in_the_schema(run):
    schema = json.loads(run("-m", "autoplan", "schema"))
    assert schema["$defs"]["ConfigShape"]["properties"]["prefetched"] == {
        "default": 1,
        "description": "batches that are made ahead of their use",
        "minimum": 1,
        "title": "Prefetched",
        "type": "integer",
    }


def test_it_is_applied_when_the_script_trains(run, tuned):
    assert "prefetched as Keras has it" in run("train.py")
    assert "prefetched 4" in run("-m", "autoplan", "train", "train.py", "--plan", "plan.yaml")
