"""Every study has a README with its command, a `__main__` that `python -m` runs, and imports that resolve."""

import ast
import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from autoplan.jobs.messages import NumericsRun, UpdateRun
from autoplan.plan.records import Evidence
from autoplan.tuning.result import attribution
from autoplan.tuning.verification import judgement
from cost_models import Batch, Mesh, TrainConfig
from studies import harness
from studies.backend_auto import __main__ as backend_auto
from studies.memory_vs_published import cases, results
from studies.mesh import __main__ as mesh
from studies.same_training import __main__ as same_training
from studies.same_training import judging

ROOT = Path(__file__).resolve().parent.parent
STUDIES = ROOT / "studies"
FOLDERS = sorted(path.parent.name for path in STUDIES.glob("*/README.md"))
COMMANDS = [name for name in FOLDERS if name != "quickstart"]
"""The quickstart is the README's first command and needs no program of its own."""


def run(*command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "KERAS_BACKEND": "jax", "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True)


def imported_modules() -> list[str]:
    """Return the modules of studies that a study imports, anywhere in it, and the programs themselves."""
    names = {f"studies.{name}.__main__" for name in COMMANDS}
    for path in STUDIES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "studies":
                names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return sorted(name for name in names if _is_module(name))


def _is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def test_every_folder_is_a_study():
    folders = {path.name for path in STUDIES.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == set(FOLDERS)
    assert len(COMMANDS) >= 20


@pytest.mark.parametrize("name", COMMANDS)
def test_a_readme_gives_the_command(name):
    assert (STUDIES / name / "__main__.py").exists()
    assert f"\npython -m studies.{name}" in (STUDIES / name / "README.md").read_text()


def test_every_module_of_a_study_imports():
    modules = imported_modules()
    assert "studies.memory_vs_compiler.estimates" in modules
    done = run("-c", f"import importlib\nfor name in {modules}: importlib.import_module(name)")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["mesh", "memory_vs_compiler"])
def test_help_names_the_command(name):
    done = run("-m", f"studies.{name}", "--help")
    assert done.stdout.startswith(f"usage: python -m studies.{name}"), done.stderr


def test_the_tables_of_the_memory_study_come_from_its_rows():
    done = run("-m", "studies.memory_vs_compiler", "--summary")
    assert done.stdout.count("| target | rows | MAPE |") == 4, done.stderr
    readme = (STUDIES / "memory_vs_compiler/README.md").read_text()
    tables = re.findall(r"^\| (?:target \| rows|estimate) .*\n(?:\|.*\n)+", done.stdout, re.MULTILINE)
    developed, held_out, *_, answers = tables
    for table in (developed, held_out, answers):
        assert table.partition("\n")[2] in readme


def test_the_tables_of_published_memory_come_from_their_rows():
    done = run("-m", "studies.memory_vs_published", "--summary")
    readme = (STUDIES / "memory_vs_published/README.md").read_text()
    tables = re.findall(r"(?:^\|.*\n)+", done.stdout, re.MULTILINE)
    assert len(tables) == 5, done.stderr
    for table in tables:
        assert table in readme


def test_every_published_memory_row_is_estimated_or_left_out_with_a_reason():
    found, left_out = cases.read()
    rows = {row["id"] for row in cases.table("published.csv")}
    assert {one.row for one in (*found, *left_out)} == rows
    assert all(one.reason for one in left_out)
    assert {(one.row, one.remat) for one in found} == {(one.row, one.remat) for one in results.read()}


def test_no_study_changes_where_python_looks_for_modules():
    """A script that a study runs may: it is written as users write theirs."""
    changed = [
        str(path.relative_to(ROOT))
        for path in STUDIES.rglob("*.py")
        if re.search(r"sys\.path(\.(insert|append|extend)|\[|\s*\+?=)", path.read_text())
        and path.name != "count_updates.py"
    ]
    assert not changed


# Studies read texts of the product: a text that changes takes its study along.


def test_the_mesh_study_reads_a_plans_note_on_devices():
    one, two = (TrainConfig(Batch(64 // devices, devices), mesh=Mesh(devices)) for devices in (1, 2))
    findings = SimpleNamespace(space=SimpleNamespace(configs=[one, two]), cluster=SimpleNamespace(simulated=True))
    note = attribution.scaling(findings, [attribution.Rates(Evidence.MEASURED, {one: 1 / 2000, two: 1 / 3000})])
    assert mesh.scaling_note(SimpleNamespace(notes=["another", note])) == note
    assert mesh.scaling_rows(note) == [
        {
            "key": f"devices/{devices}", "what": "efficiency", "devices": devices,
            "evidence": "measured, simulated devices", "samples/s": rate, "efficiency %": share,
        }
        for devices, rate, share in ((1, "2000", 100), (2, "3000", 75))
    ]  # fmt: skip


def test_the_study_of_backends_reads_how_far_losses_differ():
    base, ours = (UpdateRun(seed=1, losses=[first] + [1.0] * 49) for first in (1.0, 1.001))
    detail = judgement.exactness(base, NumericsRun(runs=[ours])).detail
    plan = SimpleNamespace(verification=SimpleNamespace(numerics_detail=detail))
    assert backend_auto.losses_differ_by(plan) == pytest.approx(1e-3)


@pytest.mark.slow
def test_updates_are_counted_without_autoplan(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import keras, numpy\nmodel = keras.Sequential([keras.layers.Dense(1)])\nmodel.compile('sgd', 'mse')\n"
        "model.fit(numpy.ones((12, 2)), numpy.ones(12), batch_size=4, epochs=2, verbose=0)\n"
        "model.fit(numpy.ones((12, 2)), numpy.ones(12), batch_size=4, verbose=0)\n"
    )
    done = run("-m", "studies.count_updates", str(script))
    assert harness.updates_in(done.stdout) == {1: 6, 2: 3}, done.stderr


SMALL_TRAINING = """
import keras, numpy
keras.utils.set_random_seed(1)
x = numpy.random.default_rng(1).normal(size=(200, 3)).astype("float32")
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.01), "mse")
model.fit(x, x[:, :1], batch_size=8, verbose=0)
"""


@pytest.mark.slow
def test_the_study_of_same_training_records_variables_without_autoplan(tmp_path):
    """Keras's own accumulation of the same batches trains the same, and a change that is a little larger does not."""
    script, lab = tmp_path / "train.py", harness.Lab(tmp_path, {"KERAS_BACKEND": "jax"})
    script.write_text(SMALL_TRAINING)
    (tmp_path / "also").mkdir()
    (tmp_path / "also/sitecustomize.py").write_text("import pathlib; pathlib.Path('it_ran').touch()\n")
    chosen = same_training.Script(script, modules=(tmp_path / "also",))
    plain, split = (
        same_training.record(lab, chosen, name, (7, 20), **variables)
        for name, variables in (("plain", {}), ("split", {"SAME_TRAINING_SPLIT": "2"}))
    )
    assert (tmp_path / "it_ran").exists()
    assert (plain.updates, plain.counts, split.updates) == (25, [7, 20], 25)
    assert (plain.facts["calls"], split.facts["calls"]) == (25, 50)
    runs = judging.PlainRuns(plain, plain, None)
    found = judging.compare(runs, split, 20, 7)
    assert found.same
    assert 0 < found.largest < judging.LINE
    assert judging.compare_split(runs, split, 7).same
    assert judging.judge(judging.SAME, found, runs, split) == "right"
    assert judging.judge(judging.DIFFERS, found, runs, split) == "missing"

    kernel = {**split.arrays, "20:0": split.arrays["20:0"] + 2e-3 * split.change(0, "20")}
    other = judging.compare(runs, dataclasses.replace(split, arrays=kernel), 20, 7)
    assert other.largest == pytest.approx(2e-3, rel=0.01)
    assert judging.judge(judging.SAME, other, runs, split) == "false"
    assert judging.judge(judging.ROWS_LEFT_OUT, other, runs, split) == "right"  # until it leaves rows out
    other = dataclasses.replace(other, early=False)
    assert judging.judge(judging.ROWS_LEFT_OUT, other, runs, split) == "false"
    longer = dataclasses.replace(split, facts={**split.facts, "updates": 26})
    assert judging.compare(runs, longer, 20, 7).why == "26 updates instead of 25"


def test_totals_count_false_claims_and_same_plans_that_do_not_say_so():
    rows = [
        {"key": key, "says": says, "same": same, "verdict": verdict}
        for key, says, same, verdict in (
            ("a", "same", "True", "right"), ("b", "same", "False", "false"), ("c", "within seeds", "True", "missing"),
            ("d", "baseline", "True", "right"), ("e", "refused", "not known", "not judged"),
        )
    ]  # fmt: skip
    assert same_training.totals(rows) == [
        'false claims of "the same": 1 of 3 (b)',
        "plans that change the configuration and train the same: 2; said to be: 1 (50%)",
    ]
