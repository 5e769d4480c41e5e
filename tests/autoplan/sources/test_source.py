import hashlib
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from autoplan.errors import SourceError
from autoplan.sources.source import from_callable, resolve

BUILDER = "import keras\ndef build_model():\n    return keras.Sequential()\n"


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return str(path)


# Scripts


def test_a_script_keeps_its_arguments_its_hash_and_the_folder_it_was_called_from(here):
    write(here / "code/train.py", "model.fit(x, y)\n")
    spec = resolve("code/train.py", ["--epochs", "3"], fit_index=2)
    assert (spec.kind, spec.args, spec.fit_index) == ("script", ["--epochs", "3"], 2)
    assert spec.path == str(here / "code/train.py")
    assert spec.directory == str(here)
    assert spec.sha256 == hashlib.sha256(b"model.fit(x, y)\n").hexdigest()
    assert spec.module is None


@pytest.mark.parametrize(
    "tail",
    [
        "build_model().fit(x, y)",
        "if __name__ == '__main__':\n    build_model().fit(x, y)",
        "def main():\n    build_model().fit(x, y)\nif __name__ == '__main__':\n    main()",
        "def train():\n    build_model().fit(x)\ndef main():\n    train()\nmain()",
        "class Trainer:\n    def run(self):\n        build_model().fit(x)\nTrainer().run()",
        "for seed in range(3):\n    with scope():\n        history = build_model().fit(x)",
    ],
)
def test_a_file_that_builds_and_also_fits_when_run_is_a_script(here, tail):
    write(here / "both.py", BUILDER + tail + "\n")
    assert resolve("both.py").kind == "script"
    assert resolve("both.py:build_model").kind == "builder"


@pytest.mark.parametrize(
    "tail",
    [
        "",
        "def train_data():\n    return 1, 2\n",
        "def train():\n    build_model().fit(x)\n",
        "if __name__ == '__main__':\n    build_model().summary()\n",
    ],
)
def test_a_file_that_builds_and_never_fits_when_run_is_a_builder(here, tail):
    write(here / "model.py", BUILDER + tail)
    spec = resolve("model.py")
    assert (spec.kind, spec.function) == ("builder", "build_model")


@pytest.mark.parametrize(
    "text",
    [
        "from models import build_model\n",
        "build_model = make_builder(3)\n",
        "try:\n    import fast\nexcept ImportError:\n    def build_model():\n        return 1\n",
    ],
)
def test_a_builder_may_be_imported_or_assigned(here, text):
    write(here / "model.py", text)
    assert resolve("model.py").kind == "builder"


def test_a_name_bound_inside_a_function_is_no_builder(here):
    write(here / "train.py", "def main():\n    def build_model():\n        return 1\n")
    assert resolve("train.py").kind == "script"


def test_another_function_may_be_named(here):
    write(here / "zoo.py", "def small():\n    return 1\ndef large():\n    return 2\n")
    assert resolve("zoo.py:large").function == "large"
    assert resolve("zoo.py", function="small").function == "small"


def test_a_script_in_another_encoding_is_read_as_python_reads_it(here):
    (here / "latin.py").write_bytes("# -*- coding: latin-1 -*-\nname = 'é'\nmodel.fit(x)\n".encode("latin-1"))
    assert resolve("latin.py").kind == "script"


# Modules


def test_a_module_is_found_without_importing_its_package(here):
    write(here / "pack/__init__.py", "raise RuntimeError('imported')\n")
    file = write(here / "pack/nets.py", BUILDER)
    spec = resolve("pack.nets:build_model")
    assert (spec.kind, spec.module, spec.path) == ("builder", "pack.nets", file)
    assert "pack" not in sys.modules


def test_dash_m_runs_a_module_or_the_main_of_a_package(here):
    write(here / "pack/__init__.py", "")
    main = write(here / "pack/__main__.py", "model.fit(x)\n")
    train = write(here / "pack/train.py", "model.fit(x)\n")
    assert resolve("-m pack").path == main
    spec = resolve("-m pack.train", ["--fast"])
    assert (spec.kind, spec.module, spec.path, spec.args) == ("script", "pack.train", train, ["--fast"])


def test_a_dotted_name_without_dash_m_is_a_module_too(here):
    write(here / "pack/__init__.py", "")
    write(here / "pack/__main__.py", "model.fit(x)\n")
    write(here / "pack/train.py", "model.fit(x)\n")
    write(here / "pack/nets.py", BUILDER)
    write(here / "pack/sub/__init__.py", "")
    write(here / "pack/sub/__main__.py", "model.fit(x)\n")
    assert [(s.kind, s.module) for s in map(resolve, ("pack.train", "pack.nets", "pack.sub"))] == [
        ("script", "pack.train"),
        ("builder", "pack.nets"),
        ("script", "pack.sub"),
    ]
    with pytest.raises(SourceError, match=r"there is no Python module pack\.trian"):
        resolve("pack.trian")
    with pytest.raises(SourceError, match=r"there is no file nowhere\.train"):
        resolve("nowhere.train")


def test_an_installed_module_is_found():
    spec = resolve("json.tool:main")
    assert spec.module == "json.tool"
    assert Path(spec.path).name == "tool.py"


# Bad input


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the source is empty; expected a script"),
        ("trian.py", "there is no file trian.py; did you mean train.py?"),
        (
            "zzz.py",
            "there is no file zzz.py; this folder has binary.py, empty.py, link.py, model.py, pipe.py, train.py",
        ),
        ("nowhere/train.py", "there is no file nowhere/train.py: there is no folder nowhere"),
        ("train.py/x.py", "there is no file train.py/x.py"),
        ("pipe.py", "pipe.py is not a regular file; expected a Python file that can be read more than once"),
        ("link.py", "there is no file link.py: it is a link to gone.py, which does not exist"),
        ("t" * 300, f"{'t' * 300} cannot be read: "),
        ("folder", "folder is a folder; expected a Python file, or -m package.module"),
        ("empty.py", "empty.py is empty"),
        ("wrong.py", "wrong.py is not Python 3.* (line 2: "),
        ("binary.py", "binary.py is not Python"),
        ("work.ipynb", "work.ipynb is a notebook; call autoplan.optimize(build_model, data) in it"),
        ("train.py:build_model", "train.py has no build_model; it defines no function"),
        ("model.py:bild_model", "model.py has no bild_model; did you mean build_model?"),
        ("model.py:", "'model.py:' does not end in a function name"),
        (":build_model", "':build_model' does not end in a function name"),
        ("no.such.module:build_model", "there is no Python module no.such.module"),
        ("-m", "'' is not a module name"),
        ("-m folder.train.x", "there is no Python module folder.train.x"),
        ("-m json", "the package json has no __main__.py"),
    ],
)
def test_bad_input_has_one_clear_message(here, text, message):
    write(here / "train.py", "model.fit(x)\n")
    write(here / "model.py", BUILDER)
    write(here / "empty.py", " \n")
    write(here / "wrong.py", "x = 1\nprint 'hello'\n")
    (here / "binary.py").write_bytes(b"\x00\x01\x7fELF")
    write(here / "work.ipynb", "{}")
    (here / "folder").mkdir()
    (here / "link.py").symlink_to("gone.py")
    os.mkfifo(here / "pipe.py")
    with pytest.raises(SourceError) as caught:
        resolve(text)
    shown = str(caught.value).replace(f"Python {sys.version_info[0]}.{sys.version_info[1]}", "Python 3.*")
    assert shown.startswith(message)
    assert "\n" not in shown


def test_the_error_for_an_unreadable_file_contains_the_reason(here):
    with pytest.raises(SourceError, match=r"/proc/self/mem cannot be read: .*Errno 5"):
        resolve("/proc/self/mem")


def test_the_first_fit_is_number_one(here):
    with pytest.raises(SourceError, match="--fit 0 is invalid"):
        resolve("train.py", fit_index=0)


def test_resolving_imports_no_framework(here):
    write(here / "model.py", BUILDER)
    code = "import sys; from autoplan.sources.source import resolve; resolve('model.py')"
    code += "; print({'keras', 'jax', 'tensorflow', 'torch'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


# The scripts that everything is tried on


@pytest.mark.parametrize("name", ["builder", "builder_no_data"])
def test_builder_files_are_builders(scripts, name):
    assert resolve(str(scripts / f"{name}.py")).kind == "builder"


def test_every_other_script_is_a_script(scripts):
    files = [path for path in scripts.glob("*.py") if not path.stem.startswith("builder")]
    kinds = {path.stem: resolve(str(path)).kind for path in files}
    assert len(kinds) > 15
    assert set(kinds.values()) == {"script"}


# Callables


def test_a_callable_is_described_by_its_name_and_source():
    def build_net():
        return 1

    spec = from_callable(build_net)
    assert (spec.kind, spec.directory) == ("callable", str(Path.cwd()))
    assert spec.path.endswith("build_net")
    assert spec.payload
    assert spec.sha256 == from_callable(build_net).sha256
