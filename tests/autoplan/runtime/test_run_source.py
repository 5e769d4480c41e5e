"""Sources run in this process: scripts, builders, and what a builder may return as data."""

import sys
from pathlib import Path

import keras
import pytest

from autoplan.errors import SourceError
from autoplan.runtime.run_source import run_source
from autoplan.sources.source import SourceSpec

BUILDER = """
import keras

def build_model():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    {compiling}
    return {returned}
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Run in a temporary folder, and restore the interpreter after the source."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "made", raising=False)
    return tmp_path


def spec(path, **fields):
    return SourceSpec(path=str(path), sha256="0" * 64, **{"kind": "script", **fields})


def built(tmp_path, data="", *, compiling='model.compile("sgd", "mse")', returned="model", function="build_model"):
    """The calls of `on_builder`."""
    path = tmp_path / "made.py"
    path.write_text(BUILDER.format(compiling=compiling, returned=returned) + data)
    calls = []
    run_source(spec(path, kind="builder", function=function), lambda model, arguments: calls.append((model, arguments)))
    (call,) = calls
    return call


def test_a_script_runs_as_main_with_its_arguments_in_its_directory(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import os, pathlib, sys\npathlib.Path('seen').write_text(f'{__name__} {sys.argv[1:]} {os.getcwd()}')\n"
    )
    there = tmp_path / "made" / "anew"
    run_source(spec(script, args=["--epochs", "2"]), None, directory=str(there))
    assert (there / "seen").read_text() == f"__main__ ['--epochs', '2'] {there}"
    assert Path.cwd() == there


def test_an_exception_of_a_script_passes_unchanged(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("raise ZeroDivisionError('mine')\n")
    with pytest.raises(ZeroDivisionError, match="mine"):
        run_source(spec(script), None)


@pytest.mark.parametrize(
    ("data", "names"),
    [
        ("", set()),
        ("train_data = {'x': 1, 'batch_size': 8}", {"x", "batch_size"}),
        ("train_data = (1, 2)", {"x", "y"}),
        ("train_data = (1, 2, 3)", {"x", "y", "sample_weight"}),
        ("train_data = [1, 2]", {"x"}),
        ("train_data = lambda: (1, 2)", {"x", "y"}),
    ],
)
def test_a_builders_data_become_arguments_of_fit(tmp_path, data, names):
    model, arguments = built(tmp_path, data)
    assert isinstance(model, keras.Model)
    assert arguments.keys() == names


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        ({"function": "make"}, r"has no function make\(\); expected one that returns a compiled model"),
        ({"returned": "3"}, r"build_model\(\) returned int; expected a compiled keras.Model"),
        ({"compiling": "pass"}, "returned a model that is not compiled; call model.compile"),
    ],
)
def test_a_builder_that_makes_no_compiled_model_is_an_error(tmp_path, wishes, message):
    with pytest.raises(SourceError, match=message):
        built(tmp_path, **wishes)
