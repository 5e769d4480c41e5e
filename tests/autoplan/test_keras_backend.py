from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from autoplan import jobs, keras_backend
from autoplan.cli import app
from autoplan.errors import ConfigError
from autoplan.runtime.backends import PRELOADED


@pytest.fixture(autouse=True)
def unset(monkeypatch, tmp_path):
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))


def test_the_backends_that_are_offered_are_those_that_the_runtime_has():
    assert set(keras_backend.RUNNABLE) == set(PRELOADED)


def test_what_is_asked_comes_before_the_environment_and_that_before_the_default(monkeypatch):
    assert keras_backend.chosen() == "jax"
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    assert keras_backend.chosen("jax") == "jax"
    with pytest.raises(ConfigError, match="the torch backend"):
        keras_backend.chosen()


def test_a_backend_that_was_asked_for_from_python_is_mended_there():
    with pytest.raises(ConfigError, match="the tensorflow backend cannot be run yet; expected jax: give backend='jax'"):
        keras_backend.chosen("tensorflow")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tensorflow", "the tensorflow backend cannot be run yet; expected jax: set KERAS_BACKEND=jax"),
        ("torch", "the torch backend cannot be run yet; expected jax: set KERAS_BACKEND=jax"),
        ("bogus", "unknown backend 'bogus'; expected jax: set KERAS_BACKEND=jax"),
    ],
)
@pytest.mark.parametrize("words", [["tune", "train.py"], ["estimate", "train.py", "--hardware", "tpu-v4-8"]])
def test_commands_refuse_it_before_a_worker_starts(tmp_path, monkeypatch, name, message, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("model.fit()\n")
    monkeypatch.setenv("KERAS_BACKEND", name)
    monkeypatch.setattr(jobs.Client, "run", lambda *_, **__: pytest.fail("a worker was started"))
    done = CliRunner().invoke(app, words)
    assert (done.exit_code, done.stderr) == (2, f"error: {message}\n")


def test_another_backend_in_keras_json_is_noted(tmp_path, monkeypatch):
    (tmp_path / "keras.json").write_text(json.dumps({"backend": "tensorflow"}))
    told = "keras.json names tensorflow; trials and plan are on jax"
    assert keras_backend.notes() == [f"{told}: set KERAS_BACKEND=jax when you run the script by itself"]
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    assert keras_backend.notes() == []


@pytest.mark.parametrize("text", [None, "{", "[]", "{}", '{"backend": "jax"}', '{"backend": 3}'])
def test_a_keras_json_that_names_no_other_is_not_noted(tmp_path, text):
    if text is not None:
        (tmp_path / "keras.json").write_text(text)
    assert keras_backend.notes() == []
