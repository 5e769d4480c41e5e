"""Rules of the repository: layout, size of modules, what an import loads, and the checkers of the whole tree."""

import ast
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parent.parent
TOP_LEVEL = {
    ".ci", ".gitignore", "CHANGELOG.md", "CONTRIBUTING.md", "README.md", "autoplan", "cost_models", "pyproject.toml",
    "studies", "tests",
}  # fmt: skip
FRAMEWORKS = ["keras", "jax", "tensorflow", "torch", "optuna", "pandas"]
PACKAGES = ("autoplan", "cost_models")
MOST_IN_A_ROOM, MOST_ON_TOP = 14, 18
TOP_ROOMS = {"autoplan", "cost_models", "autoplan/runtime"}

COVERED_BY = {
    "autoplan/_version": "tests/autoplan/test_public.py",
    "autoplan/errors": "tests/autoplan/cli/test_commands.py",
    "autoplan/runtime/__main__": "tests/autoplan/test_export.py",
    "autoplan/runtime/backends/jax": "tests/autoplan/runtime/backends/test_conformance.py",
    "autoplan/runtime/backends/single_device": "tests/autoplan/runtime/backends/test_conformance.py",
    "autoplan/runtime/backends/tensorflow": "tests/autoplan/runtime/backends/test_conformance.py",
    "autoplan/worker/__main__": "tests/autoplan/test_worker.py",
    "autoplan/worker/process/server": "tests/autoplan/test_worker.py",
    "autoplan/worker/split_probe/attribution": "tests/autoplan/worker/split_probe/test_probe.py",
    "autoplan/worker/split_probe/gradient_sums": "tests/autoplan/worker/split_probe/test_probe.py",
    "autoplan/worker/split_probe/padding": "tests/autoplan/worker/split_probe/test_probe.py",
    "autoplan/worker/split_probe/micro_steps": "tests/autoplan/worker/split_probe/test_probe.py",
    "cost_models/errors": "tests/cost_models/test_validation.py",
}
"""Modules without a test file of their own, and the tests that run them."""
TESTS_OF_PACKAGES = {
    "tests/autoplan/test_new_knob.py": "a new knob takes four edits",
    "tests/autoplan/test_public.py": "the names that the package exports",
    "tests/autoplan/runtime/backends/test_conformance.py": "what every backend does alike",
    "tests/cost_models/golden/test_estimates.py": "estimates of stored workloads",
    "tests/cost_models/golden/test_intervals.py": "memory intervals of stored workloads",
}
"""Test files that belong to no single module, and what they show."""
PRIVATE_NAMES_IN_TESTS = {
    "tests/autoplan/jobs/test_client.py": {"_server"},
    "tests/autoplan/plan/test_schema.py": {"_fields", "_record_in"},
    "tests/autoplan/tuning/trials/test_study.py": {"_settle", "_study"},
}
"""Private names of the project that tests still use. The list may only become shorter."""
NAMES_OF_FRAMEWORKS = {
    "_accumulated_gradients", "_backend", "_distribute_strategy", "_flatten_layers", "_get_jax_state", "_iterations",
    "_learning_rate", "_outbound_nodes", "_remat_mode", "_seed_generators", "_serialize_function_to_config", "_storage",
    "_value",
}  # fmt: skip
"""Private names of Keras and Optuna, without which some tests could not look at what was built."""
OPEN_WORDS = re.compile(r"(?<!\.)(?<!def )\b(?:told|tells?|witness\w*|reckon\w*)\b", re.IGNORECASE)
# Spelled so that this file does not find itself.
STRAY = re.compile(r"(?<![\w.])/(?:wor[k]|roo[t]|hom[e]|op[t])/\w|TOD[O]|FIXM[E]|file:/{3}")


def tracked_files() -> list[Path]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


FILES = tracked_files()
PYTHON = [path for path in FILES if path.suffix == ".py"]
MODULES = [path for path in PYTHON if path.relative_to(ROOT).parts[0] in PACKAGES]
TESTS = [path for path in PYTHON if path.relative_to(ROOT).parts[:2] in {("tests", name) for name in PACKAGES}]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True)


def test_the_top_level_has_only_known_entries():
    assert {path.relative_to(ROOT).parts[0] for path in FILES} == TOP_LEVEL


def test_no_module_is_longer_than_500_lines():
    long = {name(path): lines for path in PYTHON if (lines := len(path.read_text().splitlines())) > 500}
    assert not long


def test_no_function_is_longer_than_60_lines():
    long = {}
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno - node.lineno >= 60:
                long[f"{name(path)}:{node.name}"] = node.end_lineno - node.lineno + 1
    assert not long


def test_no_module_has_a_name_without_meaning():
    meaningless = re.compile("helper|util|misc|common|stuff", re.IGNORECASE)
    assert not [name(path) for path in PYTHON if meaningless.search(path.stem)]


def test_no_file_names_a_machine_or_unfinished_work():
    found = [f"{name(path)}: {match[0]}" for path in FILES for match in STRAY.finditer(path.read_text(errors="ignore"))]
    assert not found


def test_every_test_file_stands_where_its_module_stands():
    odd = []
    for path in TESTS:
        if path.stem.startswith("test_") and name(path) not in TESTS_OF_PACKAGES:
            module = ROOT.joinpath(*path.relative_to(ROOT).parts[1:-1], path.stem.removeprefix("test_"))
            if not (module.with_suffix(".py").exists() or module.is_dir()):
                odd.append(name(path))
    assert not odd


def test_every_module_has_its_test_file():
    missing = []
    for path in MODULES:
        module = path.relative_to(ROOT).with_suffix("")
        own = ROOT / "tests" / module.parent / f"test_{module.name}.py"
        if module.name != "__init__" and not own.exists() and str(module) not in COVERED_BY:
            missing.append(name(path))
    assert not missing


def test_lists_of_exceptions_name_files_that_are_there():
    listed = [f"{module}.py" for module in COVERED_BY] + [*COVERED_BY.values(), *TESTS_OF_PACKAGES]
    assert not [file for file in listed if not (ROOT / file).is_file()]


def test_no_room_is_crowded():
    rooms: dict[str, set[str]] = {}
    for path in MODULES:
        *parents, file = path.relative_to(ROOT).parts
        for depth in range(1, len(parents) + 1):
            child = parents[depth] if depth < len(parents) else file
            rooms.setdefault("/".join(parents[:depth]), set()).add(child)
    crowded = {
        room: len(held)
        for room, children in rooms.items()
        if len(held := children - {"__init__.py"}) > (MOST_ON_TOP if room in TOP_ROOMS else MOST_IN_A_ROOM)
    }
    assert not crowded


def test_a_knob_is_named_in_few_modules():
    """Its field, its row, its legal values, its cost and how it is applied; whatever else needs it reads the table."""
    named = [path for path in MODULES if re.search(r"\bkeep_freed_memory\b", path.read_text())]
    assert len(named) <= 8, [name(path) for path in named]


def test_docstrings_and_names_use_the_words_of_the_field():
    """Such words leave open who does what: a message is shown, a value is returned, a program is compiled."""
    found = {name(path): words for path in MODULES if (words := OPEN_WORDS.findall(path.read_text()))}
    assert sum(map(len, found.values())) < 10, found


def test_docstrings_have_subjects():
    """A sentence that begins with one of these words has no noun for the thing that it is about."""
    found = []
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_bytes())):
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                starts = re.findall(r"(?:^|[.:]\s+)(?:Of|What|Whoever|Such)\b.{0,40}", node.value.value)
                found += [f"{name(path)}:{node.lineno}: {start}" for start in starts]
    assert not found


def test_no_class_name_occurs_twice():
    found: dict[str, list[str]] = {}
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(name(path))
    assert not {class_name: paths for class_name, paths in found.items() if len(paths) > 1}


@pytest.mark.parametrize("package", ["autoplan", "cost_models"])
def test_no_module_imports_itself_through_others(package):
    graph = grimp.build_graph(package, exclude_type_checking_imports=True)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    TopologicalSorter(imports).prepare()  # CycleError names the modules of a circle


def test_no_string_names_a_source_file():
    """Modules that are renamed would leave such a string behind; a sentence of a docstring may name a file."""
    pattern = re.compile(r"^(autoplan|cost_models)/[\w/]+\.py$")
    found = [
        f"{name(path)}:{node.lineno}"
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and pattern.match(node.value)
    ]
    assert not found


def test_no_test_module_imports_another():
    """What several need stands in `tests/builders`."""
    pattern = re.compile(r"^\s*(?:from|import) [\w.]*\btest_\w+", re.MULTILINE)
    found = [f"{name(path)}: {match[0].strip()}" for path in TESTS for match in pattern.finditer(path.read_text())]
    assert not found


def private_names(path: Path) -> set[str]:
    """Private names that a test uses of other objects than its own, and that it imports from the two packages."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Attribute):
            own = ast.unparse(node.value) in {"self", "cls", "super()"}
            found |= set() if own else {node.attr}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in PACKAGES:
            found |= {alias.name for alias in node.names}
    return {one for one in found if re.match(r"_[^_]", one)} - NAMES_OF_FRAMEWORKS


def test_tests_use_no_private_names_but_a_few():
    tests = [path for path in PYTHON if path.relative_to(ROOT).parts[0] == "tests"]
    used = {name(path): names for path in tests if (names := private_names(path))}
    assert used == PRIVATE_NAMES_IN_TESTS


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(["-m", "ruff", "check", "."], id="ruff-check"),
        pytest.param(["-m", "ruff", "format", "--check", "."], id="ruff-format"),
        pytest.param(["-m", "mypy"], id="mypy"),
        pytest.param(["-c", "from importlinter.cli import lint_imports_command as run; run()"], id="import-linter"),
    ],
)
def test_the_checkers_pass(command):
    done = run(*command)
    assert done.returncode == 0, done.stdout + done.stderr


def test_importing_autoplan_imports_no_framework():
    done = run("-c", f"import sys, autoplan, cost_models; print(sorted(set({FRAMEWORKS}) & set(sys.modules)))")
    assert done.stdout == "[]\n", done.stderr


def test_help_imports_no_framework():
    code = f"""
import sys
from autoplan.cli.commands import main
sys.argv = ["autoplan", "--help"]
try:
    main()
finally:
    print(sorted(set({FRAMEWORKS}) & set(sys.modules)))
"""
    done = run("-c", code)
    assert "tune" in done.stdout, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


def test_one_local_command_equals_ci():
    """The README shows two commands; the second one is what CI runs, letter for letter."""
    commands = re.findall(r"^```sh\n(.+)\n```$", (ROOT / "README.md").read_text(), re.MULTILINE)
    first, second = commands[:2]
    assert "autoplan tune studies/quickstart/train.py" in first
    assert second.endswith("-m pytest")
    assert second in (ROOT / ".ci/run").read_text().splitlines()


def test_relative_links_of_the_documents_exist():
    broken = []
    for path in FILES:
        if path.suffix == ".md":
            targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", path.read_text())
            broken += [f"{name(path)}: {target}" for target in targets if not (path.parent / target).exists()]
    assert not broken


def test_paths_in_the_documents_exist():
    """A module that moves takes the lines that name it along."""
    named = re.compile(r"`((?:autoplan|cost_models|studies|tests)/[\w./]*)`")
    documents = [path for path in FILES if path.suffix == ".md" and path.name != "CHANGELOG.md"]
    found = [(name(path), place) for path in documents for place in named.findall(path.read_text())]
    assert found
    assert not [(document, place) for document, place in found if not (ROOT / place).exists()]


def test_the_table_of_rooms_is_complete():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    rooms = {f"{path.parent.parent.name}/{path.parent.name}" for path in ROOT.glob("[ac]*/*/__init__.py")}
    assert {"autoplan/tuning", "cost_models/xla"} <= rooms
    assert not [room for room in sorted(rooms) if f"`{room}/`" not in text]
