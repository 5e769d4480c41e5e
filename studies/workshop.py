"""What several studies share: who measured what and when, the command in a folder of its own, rows, ratios.

Run as a script (`python studies/workshop.py SOURCE [ARGUMENTS]`) it runs SOURCE plainly, without autoplan, and prints
how many updates each of its fits made: the number that `autoplan train` has to end with.
"""

from __future__ import annotations

import contextlib
import csv
import math
import os
import platform
import re
import runpy
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from autoplan.machine import processes
from autoplan.plan import file
from autoplan.plan.records import Plan

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "tests/models/scripts"
_UPDATES = re.compile(r"fit (\d+): .*?(\d+) updates")
_TAIL_LINES = 12
_SAMPLE_SECONDS = 0.1


class StudyFailed(Exception):
    """A command of a study did not end as it should; the text holds the end of what it said."""


def versions(backend: str = "jax") -> str:
    """What the figures were made with."""
    names = ("autoplan", "keras", backend, "numpy")
    return ", ".join([f"Python {platform.python_version()}", *(f"{name} {_version(name)}" for name in names)])


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return version(f"{package}-cpu")


def machine() -> str:
    """The machine in public words."""
    memory = psutil.virtual_memory().total / 2**30
    return f"{platform.system()}, {os.cpu_count()}-core {platform.machine()} CPU, {memory:.0f} GiB"


def header(question: str, backend: str = "jax") -> None:
    """Say what is asked, of what and when. A load average above a few tenths at the start makes timings noise."""
    print(question)
    print(f"versions: {versions(backend)}")
    print(f"machine: {machine()}; load average at the start {os.getloadavg()[0]:.2f}")
    print(f"date: {datetime.now(UTC):%Y-%m-%d %H:%M} UTC", flush=True)


def provenance(backend: str = "jax") -> dict[str, str]:
    """Columns that every row carries, so that rows of several runs can stand in one file."""
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "load": f"{os.getloadavg()[0]:.2f}",
        "machine": machine(),
        "versions": versions(backend),
    }


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]], key: str) -> None:
    """Put rows into a CSV file; rows of other keys that were there stay, those of the same key are replaced."""
    new = {str(row[key]) for row in rows}
    kept: list[Mapping[str, Any]] = []
    if path.exists():
        with path.open(newline="", encoding="utf-8") as stream:
            kept = [row for row in csv.DictReader(stream) if row[key] not in new]
    together = [*kept, *rows]
    columns = list(dict.fromkeys(name for row in together for name in row))
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(together)


def print_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Rows as a Markdown table, ready for the study's README."""
    print("\n| " + " | ".join(columns) + " |\n|" + " --- |" * len(columns))
    for row in rows:
        print("| " + " | ".join(shown(row.get(name)) for name in columns) + " |")
    sys.stdout.flush()


def shown(value: Any) -> str:
    """A cell: floats to four figures, None as "not known"."""
    if value is None:
        return "not known"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def held_bytes(root: psutil.Process) -> int:
    """Proportional set size of a process and its descendants, in bytes; those that just ended count nothing."""
    with contextlib.suppress(psutil.Error):
        return sum(processes.proportional_bytes(one.pid) for one in (root, *root.children(recursive=True)))
    return 0


def watched(
    command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None
) -> tuple[float, int, str]:
    """A command in an empty folder, from cold -> seconds, the most bytes that its processes held, what it printed.

    StudyFailed with the end of what it said where it fails.
    """
    variables = {**os.environ, "XDG_CACHE_HOME": str(folder), **(environment or {})}
    # To files: a pipe that nobody reads while sampling could fill up.
    with (folder / "answer").open("wb") as answer, (folder / "said").open("wb") as said:
        started = time.perf_counter()
        running = subprocess.Popen(command, stdout=answer, stderr=said, env=variables, cwd=folder)
        root, peak = psutil.Process(running.pid), 0
        while running.poll() is None:
            looked = time.perf_counter()
            peak = max(peak, held_bytes(root))
            # The kernel walks all pages for a look, and their processes wait meanwhile: it may take 2% of their time.
            pause = max(_SAMPLE_SECONDS, 50 * (time.perf_counter() - looked))
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.wait(pause)
        seconds = time.perf_counter() - started
    if running.returncode != 0:
        raise StudyFailed((folder / "said").read_text(errors="replace")[-2000:])
    return seconds, peak, (folder / "answer").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Ran:
    """What became of a command."""

    seconds: float
    output: str
    code: int

    def tail(self) -> str:
        return "\n".join(self.output.strip().splitlines()[-_TAIL_LINES:])


@dataclass(frozen=True)
class Lab:
    """A scratch folder to run commands in. The profile of this machine is measured afresh in each lab."""

    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)

    def run(self, *command: str, environment: Mapping[str, str] | None = None) -> Ran:
        """Run a command in the folder and time the whole process, in seconds of wall time."""
        variables = {"XDG_CACHE_HOME": str(self.folder / "cache"), **self.environment, **(environment or {})}
        started = time.perf_counter()
        ended = subprocess.run(
            command,
            cwd=self.folder,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        return Ran(time.perf_counter() - started, ended.stdout, ended.returncode)

    def python(self, *arguments: str, environment: Mapping[str, str] | None = None) -> Ran:
        """Run Python; StudyFailed unless it ends well."""
        ran = self.run(sys.executable, *arguments, environment=environment)
        if ran.code != 0:
            raise StudyFailed(f"{' '.join(arguments)} ended with code {ran.code}:\n{ran.tail()}")
        return ran

    def autoplan(self, *arguments: str, environment: Mapping[str, str] | None = None) -> Ran:
        """Run the command; StudyFailed unless it ends well."""
        return self.python("-m", "autoplan", *arguments, environment=environment)

    def tune(self, source: str, *options: str, arguments: Sequence[str] = (), name: str = "plan") -> tuple[Plan, Ran]:
        """`autoplan tune` with a study of its own -> the plan that it wrote to `<name>.yaml` in the folder."""
        output = self.folder / f"{name}.yaml"
        ran = self.autoplan(
            "tune", source, "--output", str(output), "--study", str(self.folder / name), *options, *_after(arguments)
        )
        return file.read(output), ran

    def train(self, source: str, *, arguments: Sequence[str] = (), name: str = "plan", **more: Any) -> Ran:
        """`autoplan train` with the plan of that name."""
        return self.autoplan("train", source, "--plan", f"{name}.yaml", *_after(arguments), **more)

    def own_updates(self, source: str, arguments: Sequence[str] = ()) -> dict[int, int]:
        """Updates that each fit of a source makes by itself, by the fit's number."""
        return updates_in(self.python(str(Path(__file__).resolve()), source, *arguments).output)


@contextmanager
def lab(backend: str = "jax") -> Iterator[Lab]:
    """A lab that is gone afterwards, where Keras runs on `backend` unless a script decides otherwise."""
    with tempfile.TemporaryDirectory(prefix="autoplan-study-") as folder:
        yield Lab(Path(folder), {"KERAS_BACKEND": backend})


def of_backend(case: str, backend: str) -> str:
    """The key of a case's row on a backend."""
    return case if backend == "jax" else f"{case} on {backend}"


def updates_in(output: str) -> dict[int, int]:
    """`fit 1: ...; 128 updates` lines -> {1: 128}; of several lines for one fit the last counts."""
    return {int(index): int(updates) for index, updates in _UPDATES.findall(output)}


def others_measured(plan: Plan) -> int:
    """Distinct configurations besides the baseline that a trial measured."""
    found = {str(trial.config) for trial in plan.trials if trial.outcome == "measured"}
    return len(found - {str(plan.baseline.config)})


def plan_row(plan: Plan) -> dict[str, Any]:
    """What a plan says, as columns."""
    from cost_models.config import TrainConfig

    checked = plan.verification
    return {
        "evidence": plan.evidence.value,
        "baseline": TrainConfig.from_dict(plan.baseline.config).describe(),
        "plan": TrainConfig.from_dict(plan.config).describe(),
        "others measured": others_measured(plan),
        "failed trials": sum(trial.outcome == "failed" for trial in plan.trials),
        "speed-up": checked.speedup if checked else None,
        "low": checked.speedup_low if checked else None,
        "high": checked.speedup_high if checked else None,
        "pairs": checked.pairs if checked else 0,
        "numerics": checked.numerics if checked else "not_compared",
        "why": plan.notes[0] if plan.notes else "",
    }


@dataclass(frozen=True)
class Ratio:
    """Geometric mean of ratios with the two-sided 95% interval of Student's t over their logarithms."""

    mean: float
    low: float
    high: float


def ratio(ratios: Iterable[float]) -> Ratio:
    """ValueError for fewer than two ratios: one says nothing of its own spread."""
    from scipy.stats import t

    logs = [math.log(one) for one in ratios]
    if len(logs) < 2:
        raise ValueError("an interval needs at least two ratios")
    centre = sum(logs) / len(logs)
    spread = math.sqrt(sum((one - centre) ** 2 for one in logs) / (len(logs) - 1))
    half = float(t.ppf(0.975, len(logs) - 1)) * spread / math.sqrt(len(logs))
    return Ratio(math.exp(centre), math.exp(centre - half), math.exp(centre + half))


def chosen(cases: Mapping[str, Any], wanted: Sequence[str]) -> list[str]:
    """The cases named on the command line, or all. SystemExit names the known ones."""
    unknown = [name for name in wanted if name not in cases]
    if unknown:
        raise SystemExit(f"unknown case {', '.join(unknown)}; known: {', '.join(cases)}")
    return list(wanted) or list(cases)


def _after(arguments: Sequence[str]) -> list[str]:
    return ["--", *arguments] if arguments else []


def _count_updates(source: str, arguments: Sequence[str]) -> None:
    """Run a script, or fit a builder's model on its data, and print the updates of each fit."""
    os.environ.setdefault("KERAS_BACKEND", "jax")
    import keras

    plain, fits = keras.Model.fit, []

    def fit(model: Any, *given: Any, **named: Any) -> Any:
        before = int(model.optimizer.iterations)
        history = plain(model, *given, **named)
        fits.append(int(model.optimizer.iterations) - before)
        print(f"fit {len(fits)}: as it is; {fits[-1]} updates", flush=True)
        return history

    keras.Model.fit = fit
    sys.argv = [source, *arguments]
    sys.path.insert(0, str(Path(source).parent))
    names = runpy.run_path(source, run_name="__main__")
    if not fits and "build_model" in names and "train_data" in names:
        names["build_model"]().fit(*names["train_data"]())


if __name__ == "__main__":
    _count_updates(sys.argv[1], sys.argv[2:])
