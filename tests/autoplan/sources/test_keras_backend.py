from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from autoplan.cli.commands import app
from autoplan.errors import ConfigError, NeverFits, ScriptFailed
from autoplan.jobs import client
from autoplan.runtime.backends import PRELOADED
from autoplan.sources import keras_backend
from autoplan.sources.keras_backend import BackendChoice, NamedBackend


@pytest.fixture(autouse=True)
def unset(monkeypatch, tmp_path):
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.setattr(
        keras_backend, "live_backend", lambda: None
    )  # other tests of this process may have imported Keras


@pytest.fixture
def have(monkeypatch):
    """Pretend that only these frameworks are installed."""

    def only(*names):
        monkeypatch.setattr(keras_backend, "installed", lambda name: name in names)

    only("jax", "tensorflow", "torch")
    return only


@pytest.fixture
def script(tmp_path):
    def write(text):
        path = tmp_path / "train.py"
        path.write_text(text)
        return path

    return write


FIRM = 'import os\nos.environ["KERAS_BACKEND"] = "torch"\nimport keras\n'
SOFT = 'import os\nos.environ.setdefault("KERAS_BACKEND", "torch")\nimport keras\n'


def test_runnable_backends_are_those_of_the_runtime():
    assert set(keras_backend.RUNNABLE) == set(PRELOADED)


def test_the_backend_is_that_of_the_plain_script(have, script, monkeypatch, tmp_path):
    assert keras_backend.choose().name == "tensorflow"  # Keras's own default
    (tmp_path / "keras.json").write_text(json.dumps({"backend": "jax"}))
    assert keras_backend.choose().name == "jax"
    assert keras_backend.choose(script=script(SOFT)).name == "torch"
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")
    assert keras_backend.choose(script=script(SOFT)).name == "tensorflow"
    assert keras_backend.choose(script=script(FIRM)).name == "torch"
    assert keras_backend.choose("jax", script(FIRM)).name == "jax"


def test_an_imported_keras_decides_unless_a_backend_is_requested(have, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    monkeypatch.setattr(keras_backend, "live_backend", lambda: "jax")
    assert keras_backend.choose().name == "jax"
    assert keras_backend.choose("tensorflow").name == "tensorflow"


def test_a_requested_backend_that_overrides_the_script_is_noted(have, script):
    message = "trials and plan are for jax, as requested; train.py names torch"
    assert keras_backend.choose("jax", script(FIRM)) == BackendChoice("jax", (message,))
    assert keras_backend.choose("torch", script(FIRM)) == BackendChoice("torch")


@pytest.mark.parametrize("text", [SOFT, "import keras\n"])
def test_an_uninstalled_default_is_replaced_with_a_note(have, script, text):
    have("jax")
    chosen = keras_backend.choose(script=script(text))
    by = "train.py names torch" if text == SOFT else "Keras's default names tensorflow"
    note = f"{by}, which is not installed, so trials and plan are for jax"
    assert chosen == BackendChoice("jax", (f"{note}; set KERAS_BACKEND=jax when you run the script without autoplan",))


def test_a_backend_that_somebody_chose_must_be_installed(have, script, monkeypatch):
    have("jax")
    missing = r"is not installed; pip install 'autoplan\[torch\]', or give --backend jax"
    with pytest.raises(ConfigError, match=rf"the torch backend \(requested\) {missing}"):
        keras_backend.choose("torch")
    with pytest.raises(ConfigError, match=rf"the torch backend \(train.py\) {missing}"):
        keras_backend.choose(script=script(FIRM))
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    with pytest.raises(ConfigError, match=rf"\(the environment variable KERAS_BACKEND\) {missing}"):
        keras_backend.choose()


def test_without_an_installed_backend_the_default_is_named(have):
    have()
    with pytest.raises(ConfigError, match=r"\(Keras's default\) is not installed; pip install 'autoplan\[tens"):
        keras_backend.choose()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("x = 1", None),
        ('os.environ["KERAS_BACKEND"] = name', None),
        ('os.environ["KERAS_BACKEND"] = ""', None),
        ('os.environ["OTHER"] = "jax"', None),
        ('os.environ["KERAS_BACKEND"] = "jax"', ("jax", True)),
        ('environ["KERAS_BACKEND"] = other = "jax"', ("jax", True)),
        ('os.putenv("KERAS_BACKEND", "jax")', ("jax", True)),
        ('os.environ.setdefault("KERAS_BACKEND", "jax")', ("jax", False)),
        ('if True:\n    os.environ["KERAS_BACKEND"] = "jax"\nos.environ["KERAS_BACKEND"] = "torch"', ("torch", True)),
        ("this is no Python", None),
    ],
)
def test_assignments_of_the_variable_in_a_script_are_found(script, text, found):
    assert keras_backend.backend_in_script(script(text)) == (
        None if found is None else NamedBackend(found[0], "train.py", found[1])
    )


def test_a_source_without_a_file_names_none(tmp_path):
    assert keras_backend.backend_in_script(None) is None
    assert keras_backend.backend_in_script("") is None
    assert keras_backend.backend_in_script(tmp_path) is None
    assert keras_backend.backend_in_script("build_model of a notebook") is None


@pytest.mark.parametrize("words", [["tune", "train.py"], ["hardware", "probe"]])
def test_commands_reject_an_unknown_backend_before_a_worker_starts(tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("model.fit()\n")
    monkeypatch.setattr(client.Client, "run", lambda *_, **__: pytest.fail("a worker was started"))
    monkeypatch.setenv("KERAS_BACKEND", "bogus")
    done = CliRunner().invoke(app, words)
    message = "unknown backend 'bogus' (the environment variable KERAS_BACKEND); expected jax, tensorflow or torch"
    assert (done.exit_code, done.stderr) == (2, f"error: {message}\n")


def test_the_option_rejects_unknown_values(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("model.fit()\n")
    done = CliRunner().invoke(app, ["tune", "train.py", "--backend", "pytorch"])
    message = "--backend pytorch: expected jax, tensorflow or torch, or auto to tune the backend"
    assert (done.exit_code, done.stderr) == (2, f"error: {message}\n")


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"backend": 3}'])
def test_an_invalid_keras_json_is_ignored(have, tmp_path, text):
    (tmp_path / "keras.json").write_text(text)
    assert keras_backend.choose().name == keras_backend.KERAS_DEFAULT


def test_the_default_is_that_of_keras():
    spec = importlib.util.find_spec("keras")  # found, not imported: that would fix this process's backend
    source = Path(spec.origin).with_name("src").joinpath("backend", "config.py").read_text(encoding="utf-8")
    assert f'_BACKEND = "{keras_backend.KERAS_DEFAULT}"' in source.splitlines()


ELSEWHERE = BackendChoice("jax", ("trials and plan are for jax, as requested; train.py names tensorflow",))


def test_an_error_of_a_source_on_another_backend_mentions_the_backend():
    with pytest.raises(ScriptFailed) as caught, keras_backend.explain_failures(ELSEWHERE):
        raise ScriptFailed("train.py failed by itself:\nTypeError: no such tensor")
    assert str(caught.value).splitlines() == [
        "train.py failed by itself:",
        "TypeError: no such tensor",
        "trials and plan are for jax, as requested; train.py names tensorflow",
        "a source that uses a framework directly only runs on that backend",
    ]


@pytest.mark.parametrize(
    ("chosen", "error"),
    [
        (BackendChoice("jax"), ScriptFailed("train.py failed by itself")),
        (ELSEWHERE, NeverFits("train.py ended without calling model.fit")),
        (ELSEWHERE, ConfigError("--fix mesh=data=3: no such mesh")),
    ],
)
def test_errors_that_do_not_depend_on_the_backend_are_unchanged(chosen, error):
    with pytest.raises(type(error)) as caught, keras_backend.explain_failures(chosen):
        raise error
    assert caught.value is error


def test_the_preferred_backend_replaces_a_default(have, script, monkeypatch, tmp_path):
    found = keras_backend.choose(prefer="jax")
    assert (found.name, found.instead_of) == ("jax", "tensorflow")
    assert found.notes[0].startswith("no backend was chosen (Keras's default names tensorflow), so the plan is for jax")
    (tmp_path / "keras.json").write_text(json.dumps({"backend": "tensorflow"}))  # Keras itself writes that
    assert keras_backend.choose(prefer="jax").name == "jax"
    (tmp_path / "keras.json").write_text(json.dumps({"backend": "torch"}))
    assert keras_backend.choose(prefer="jax") == BackendChoice("torch")
    assert keras_backend.choose(script=script(SOFT), prefer="jax").name == "torch"
    assert keras_backend.choose("tensorflow", prefer="jax").name == "tensorflow"
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")
    assert keras_backend.choose(prefer="jax") == BackendChoice("tensorflow")


def test_an_uninstalled_backend_is_not_preferred(have):
    have("tensorflow")
    assert keras_backend.choose(prefer="jax") == BackendChoice("tensorflow")
    have("jax")
    assert keras_backend.choose(prefer="jax").instead_of is None
