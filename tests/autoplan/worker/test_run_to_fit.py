"""What a source's own failure is told as."""

import runpy

import keras
import numpy as np
import pytest

from autoplan.errors import ScriptFailed
from autoplan.sources.source import SourceSpec
from autoplan.worker import run_to_fit

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
        (FailsTwice, "It began as TypeError: a traced array has no values"),
        (FailsOnce, "  • kwargs=<class 'inspect._empty'>"),
    ],
)
def test_where_keras_tells_only_the_last_of_two_errors_the_first_is_told_too(layer, last):
    with pytest.raises((TypeError, AttributeError)) as caught:
        layer()(keras.Input((3,)))
    assert str(run_to_fit.failed(SOURCE, caught.value)).splitlines()[-1] == last


def look_up():
    try:
        return {}["column"]
    except KeyError:
        raise ValueError("no such column") from None


def test_an_error_of_the_script_alone_is_told_as_it_is():
    with pytest.raises(ValueError, match="no such column") as caught:
        look_up()
    assert str(run_to_fit.failed(SOURCE, caught.value)).endswith("\nValueError: no such column")


@pytest.mark.parametrize(
    ("packages", "place", "name", "root"),
    [
        (["digits", "digits/models"], "digits/models", "digits.models.train", ""),
        ([], "digits/models", "models.train", "digits"),
    ],
)
def test_a_file_that_imports_its_neighbours_by_their_places_is_told_its_modules_name(
    tmp_path, packages, place, name, root
):
    (tmp_path / place).mkdir(parents=True)
    for package in packages:
        (tmp_path / package / "__init__.py").touch()
    script = tmp_path / place / "train.py"
    script.write_text("from .data import load\n")
    with pytest.raises(ImportError) as caught:
        runpy.run_path(str(script), run_name="__main__")
    spec = SOURCE.model_copy(update={"path": str(script)})
    told = str(run_to_fit.failed(spec, caught.value)).splitlines()[-1]
    assert told.endswith(f"inside a package alone: name it {name} in place of its file, from {tmp_path / root}")
    module = spec.model_copy(update={"module": name})
    assert "in place of its file" not in str(run_to_fit.failed(module, caught.value))


def test_a_script_that_leaves_with_an_exception_says_what_it_says():
    told = str(run_to_fit.left_early(SOURCE, SystemExit(ValueError("no data"))))
    assert told == "/nowhere/train.py ended itself before its fit: no data"


@pytest.mark.parametrize("batch", [0, -8, 16.5, float("nan"), float("inf"), "16", [16]])
def test_a_batch_of_no_samples_is_told(batch):
    with pytest.raises(ScriptFailed, match=r"^fit 2 of /nowhere/train\.py has batch_size=.*; expected a whole number"):
        run_to_fit.check_fit(SOURCE, 2, object(), {"batch_size": batch})


@pytest.mark.parametrize("batch", [None, 1, 16, 16.0, np.int64(16), np.float32(16)])
def test_a_batch_as_keras_takes_it_needs_no_word(batch):
    run_to_fit.check_fit(SOURCE, 1, object(), {"batch_size": batch})
