"""Messages about errors of a source before its fit."""

import runpy

import keras
import numpy as np
import pytest

from autoplan.errors import ScriptFailed
from autoplan.jobs.messages import Job
from autoplan.sources.source import SourceSpec
from autoplan.worker import run_to_fit
from tests.builders.observations import config

SOURCE = SourceSpec(kind="script", path="/nowhere/train.py", sha256="0" * 64)


class FailsTwice(keras.layers.Layer):
    def call(self, inputs):
        try:
            raise TypeError("a traced array has no values\nand more of it")
        except TypeError:
            return inputs.shape.no_such_name


class FailsOnce(keras.layers.Layer):
    def call(self, inputs):
        raise TypeError("a traced array has no values")


@pytest.mark.parametrize(
    ("layer", "last"),
    [
        (FailsTwice, "The first exception was TypeError: a traced array has no values"),
        (FailsOnce, "  • kwargs=<class 'inspect._empty'>"),
    ],
)
def test_the_first_of_two_errors_is_added_if_keras_reports_only_the_last(layer, last):
    with pytest.raises((TypeError, AttributeError)) as caught:
        layer()(keras.Input((3,)))
    assert str(run_to_fit.script_failed(SOURCE, caught.value)).splitlines()[-1] == last


def look_up():
    try:
        return {}["column"]
    except KeyError:
        raise ValueError("no such column") from None


def first_line(error, **more):
    return str(run_to_fit.script_failed(SOURCE, error, **more)).splitlines()[0]


@pytest.mark.parametrize("layer", [FailsTwice, FailsOnce])
def test_the_first_line_says_why_and_whether_the_script_fails_by_itself(layer):
    with pytest.raises((TypeError, AttributeError)) as caught:
        layer()(keras.Input((3,)))
    line = first_line(caught.value)
    assert line.startswith("/nowhere/train.py failed by itself: ")
    assert "TypeError: a traced array has no values" in line
    assert "Exception encountered" not in line
    tried = first_line(caught.value, under="under mixed_bfloat16, batch 64")
    assert tried.startswith("/nowhere/train.py failed under mixed_bfloat16, batch 64: ")


OWN = config(64)
BF16 = config(64, precision="mixed_bfloat16")


@pytest.mark.parametrize(
    ("script", "backend", "tried", "own", "under"),
    [
        ("", "jax", None, None, None),
        ("", "jax", OWN, OWN, None),
        ("", "jax", BF16, OWN, "under mixed_bfloat16, batch 64"),
        ("", "jax", config(32, 2), OWN, f"under {config(32, 2).describe()}"),
        ("", "jax", config(backend="tensorflow"), config(backend="tensorflow"), "on jax instead of tensorflow"),
        ("import os; os.environ['KERAS_BACKEND'] = 'torch'", "jax", None, None, "on jax instead of torch"),
        ("import os; os.environ['KERAS_BACKEND'] = 'jax'", "jax", None, None, None),
    ],
)
def test_a_job_knows_in_what_it_differs_from_the_script_by_itself(tmp_path, script, backend, tried, own, under):
    path = tmp_path / "train.py"
    path.write_text(script)
    spec = SOURCE.model_copy(update={"path": str(path)})
    job = Job(kind="trace", source=spec, backend=backend, config=tried, baseline=own)
    assert run_to_fit.circumstances(job) == under


def test_a_single_error_of_the_script_is_reported_as_it_is():
    with pytest.raises(ValueError, match="no such column") as caught:
        look_up()
    assert str(run_to_fit.script_failed(SOURCE, caught.value)).endswith("\nValueError: no such column")


@pytest.mark.parametrize(
    ("packages", "place", "name", "root"),
    [
        (["digits", "digits/models"], "digits/models", "digits.models.train", ""),
        ([], "digits/models", "models.train", "digits"),
    ],
)
def test_a_file_with_relative_imports_gets_the_name_of_its_module(tmp_path, packages, place, name, root):
    (tmp_path / place).mkdir(parents=True)
    for package in packages:
        (tmp_path / package / "__init__.py").touch()
    script = tmp_path / place / "train.py"
    script.write_text("from .data import load\n")
    with pytest.raises(ImportError) as caught:
        runpy.run_path(str(script), run_name="__main__")
    spec = SOURCE.model_copy(update={"path": str(script)})
    message = str(run_to_fit.script_failed(spec, caught.value)).splitlines()[-1]
    assert message.endswith(f"in a package: give {name} instead of the file, and run from {tmp_path / root}")
    module = spec.model_copy(update={"module": name})
    assert "instead of the file" not in str(run_to_fit.script_failed(module, caught.value))


def test_the_message_of_sys_exit_is_reported():
    message = str(run_to_fit.exited_early(SOURCE, SystemExit(ValueError("no data"))))
    assert message == "/nowhere/train.py called sys.exit before its fit: no data"


@pytest.mark.parametrize("batch", [0, -8, 16.5, float("nan"), float("inf"), "16", [16]])
def test_an_invalid_batch_size_is_an_error(batch):
    with pytest.raises(ScriptFailed, match=r"^fit 2 of /nowhere/train\.py has batch_size=.*; expected a whole number"):
        run_to_fit.check_fit(SOURCE, 2, object(), {"batch_size": batch})


@pytest.mark.parametrize("batch", [None, 1, 16, 16.0, np.int64(16), np.float32(16)])
def test_valid_batch_sizes_are_accepted(batch):
    run_to_fit.check_fit(SOURCE, 1, object(), {"batch_size": batch})
