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
from autoplan.sources.keras_backend import Chosen, Named


@pytest.fixture(autouse=True)
def unset(monkeypatch, tmp_path):
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.setattr(keras_backend, "_live", lambda: None)  # other tests of this process may have imported Keras


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


def test_the_backends_that_are_offered_are_those_that_the_runtime_has():
    assert set(keras_backend.RUNNABLE) == set(PRELOADED)


def test_it_is_the_one_that_the_plain_script_would_run_on(have, script, monkeypatch, tmp_path):
    assert keras_backend.choose().name == "tensorflow"  # Keras's own default
    (tmp_path / "keras.json").write_text(json.dumps({"backend": "jax"}))
    assert keras_backend.choose().name == "jax"
    assert keras_backend.choose(script=script(SOFT)).name == "torch"
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")
    assert keras_backend.choose(script=script(SOFT)).name == "tensorflow"
    assert keras_backend.choose(script=script(FIRM)).name == "torch"
    assert keras_backend.choose("jax", script(FIRM)).name == "jax"


def test_a_keras_that_this_process_has_imported_decides_but_for_what_is_asked(have, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    monkeypatch.setattr(keras_backend, "_live", lambda: "jax")
    assert keras_backend.choose().name == "jax"
    assert keras_backend.choose("tensorflow").name == "tensorflow"


def test_what_overrules_the_script_is_said(have, script):
    told = "trials and plan are on jax, as asked; train.py names torch"
    assert keras_backend.choose("jax", script(FIRM)) == Chosen("jax", (told,))
    assert keras_backend.choose("torch", script(FIRM)) == Chosen("torch")


@pytest.mark.parametrize("text", [SOFT, "import keras\n"])
def test_a_mere_default_yields_to_what_is_installed_and_that_is_said(have, script, text):
    have("jax")
    chosen = keras_backend.choose(script=script(text))
    by = "train.py names torch" if text == SOFT else "Keras's default names tensorflow"
    told = f"{by}, which is not installed here; trials and plan are on jax"
    assert chosen == Chosen("jax", (f"{told}: set KERAS_BACKEND=jax when you run the script by itself",))


def test_a_backend_that_somebody_chose_must_be_installed(have, script, monkeypatch):
    have("jax")
    missing = r"is not installed here; pip install 'autoplan\[torch\]', or give --backend jax"
    with pytest.raises(ConfigError, match=rf"the torch backend \(asked for\) {missing}"):
        keras_backend.choose("torch")
    with pytest.raises(ConfigError, match=rf"the torch backend \(train.py\) {missing}"):
        keras_backend.choose(script=script(FIRM))
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    with pytest.raises(ConfigError, match=rf"\(KERAS_BACKEND of the environment\) {missing}"):
        keras_backend.choose()


def test_without_any_backend_one_is_named(have):
    have()
    with pytest.raises(ConfigError, match=r"\(Keras's default\) is not installed here; pip install 'autoplan\[tens"):
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
def test_what_a_script_writes_into_the_variable(script, text, found):
    assert keras_backend.named_in(script(text)) == (None if found is None else Named(found[0], "train.py", found[1]))


def test_a_source_without_a_file_names_none(tmp_path):
    assert keras_backend.named_in(None) is None
    assert keras_backend.named_in("") is None
    assert keras_backend.named_in(tmp_path) is None
    assert keras_backend.named_in("build_model of a notebook") is None


@pytest.mark.parametrize("words", [["tune", "train.py"], ["hardware", "probe"]])
def test_commands_refuse_an_unknown_one_before_a_worker_starts(tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("model.fit()\n")
    monkeypatch.setattr(client.Client, "run", lambda *_, **__: pytest.fail("a worker was started"))
    monkeypatch.setenv("KERAS_BACKEND", "bogus")
    done = CliRunner().invoke(app, words)
    told = "unknown backend 'bogus' (KERAS_BACKEND of the environment); expected jax, tensorflow or torch"
    assert (done.exit_code, done.stderr) == (2, f"error: {told}\n")


def test_the_option_takes_known_words_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("model.fit()\n")
    done = CliRunner().invoke(app, ["tune", "train.py", "--backend", "pytorch"])
    told = "--backend pytorch: expected jax, tensorflow or torch, or auto to have it tuned"
    assert (done.exit_code, done.stderr) == (2, f"error: {told}\n")


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"backend": 3}'])
def test_a_keras_json_that_says_nothing_is_as_none(have, tmp_path, text):
    (tmp_path / "keras.json").write_text(text)
    assert keras_backend.choose().name == keras_backend.KERAS_DEFAULT


def test_the_default_is_what_keras_takes():
    spec = importlib.util.find_spec("keras")  # found, not imported: that would fix this process's backend
    source = Path(spec.origin).with_name("src").joinpath("backend", "config.py").read_text(encoding="utf-8")
    assert f'_BACKEND = "{keras_backend.KERAS_DEFAULT}"' in source.splitlines()


ELSEWHERE = Chosen("jax", ("trials and plan are on jax, as asked; train.py names tensorflow",))


def test_a_source_that_fails_on_another_backend_than_its_own_is_told_so():
    with pytest.raises(ScriptFailed) as caught, keras_backend.explaining(ELSEWHERE):
        raise ScriptFailed("train.py failed by itself:\nTypeError: no such tensor")
    assert str(caught.value).splitlines() == [
        "train.py failed by itself:",
        "TypeError: no such tensor",
        "trials and plan are on jax, as asked; train.py names tensorflow",
        "a source that uses its own backend's framework directly runs on that one alone",
    ]


@pytest.mark.parametrize(
    ("chosen", "error"),
    [
        (Chosen("jax"), ScriptFailed("train.py failed by itself")),
        (ELSEWHERE, NeverFits("train.py ended without calling model.fit")),
        (ELSEWHERE, ConfigError("--fix mesh=data=3: no such mesh")),
    ],
)
def test_what_has_nothing_to_do_with_the_backend_is_left_as_it_is(chosen, error):
    with pytest.raises(type(error)) as caught, keras_backend.explaining(chosen):
        raise error
    assert caught.value is error


def test_another_is_preferred_to_a_default_that_nobody_chose(have, script, monkeypatch, tmp_path):
    found = keras_backend.choose(prefer="jax")
    assert (found.name, found.instead_of) == ("jax", "tensorflow")
    assert found.notes[0].startswith(
        "Keras's default names tensorflow and nobody chose a backend, so the plan is for jax"
    )
    (tmp_path / "keras.json").write_text(json.dumps({"backend": "tensorflow"}))  # Keras itself writes that
    assert keras_backend.choose(prefer="jax").name == "jax"
    (tmp_path / "keras.json").write_text(json.dumps({"backend": "torch"}))
    assert keras_backend.choose(prefer="jax") == Chosen("torch")
    assert keras_backend.choose(script=script(SOFT), prefer="jax").name == "torch"
    assert keras_backend.choose("tensorflow", prefer="jax").name == "tensorflow"
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")
    assert keras_backend.choose(prefer="jax") == Chosen("tensorflow")


def test_what_is_not_installed_is_not_preferred(have):
    have("tensorflow")
    assert keras_backend.choose(prefer="jax") == Chosen("tensorflow")
    have("jax")
    assert keras_backend.choose(prefer="jax").instead_of is None
