"""The harness that studies share: versions and machine of a run, commands in a scratch folder, rows of results."""

from __future__ import annotations

import argparse
import contextlib
import csv
import math
import os
import platform
import re
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
    """A command of a study failed. The message holds the end of its output."""


def parser(study: str, description: str | None) -> argparse.ArgumentParser:
    """Return a parser for `python -m <study>` that prints the description as it is written."""
    return argparse.ArgumentParser(
        prog=f"python -m {study}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def python_path(*first: Path) -> str:
    """Return a PYTHONPATH with which a command in another folder finds this checkout, after the folders given."""
    return os.pathsep.join([*map(str, first), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])


def versions(backend: str = "jax") -> str:
    """Return the versions of Python, autoplan, Keras, the backend and NumPy."""
    names = ("autoplan", "keras", backend, "numpy")
    return ", ".join([f"Python {platform.python_version()}", *(f"{name} {_version(name)}" for name in names)])


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return version(f"{package}-cpu")


def machine() -> str:
    """Return the operating system, the CPU cores and the memory, without the name of the machine."""
    memory = psutil.virtual_memory().total / 2**30
    return f"{platform.system()}, {os.cpu_count()}-core {platform.machine()} CPU, {memory:.0f} GiB"


def header(question: str, backend: str = "jax") -> None:
    """Print the question, versions, machine and date. A load average above a few tenths makes the timings noisy."""
    print(question)
    print(f"versions: {versions(backend)}")
    print(f"machine: {machine()}; load average at the start {os.getloadavg()[0]:.2f}")
    print(f"date: {datetime.now(UTC):%Y-%m-%d %H:%M} UTC", flush=True)


def provenance(backend: str = "jax") -> dict[str, str]:
    """Return the columns date, load, machine and versions, which every row carries since runs share a file."""
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "load": f"{os.getloadavg()[0]:.2f}",
        "machine": machine(),
        "versions": versions(backend),
    }


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]], key: str) -> None:
    """Write rows into a CSV file. Earlier rows with the same key are replaced; rows with other keys stay."""
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
    """Print rows as a Markdown table, ready for the study's README."""
    print("\n| " + " | ".join(columns) + " |\n|" + " --- |" * len(columns))
    for row in rows:
        print("| " + " | ".join(shown(row.get(name)) for name in columns) + " |")
    sys.stdout.flush()


def shown(value: Any) -> str:
    """Return the text of a table cell: floats with four significant figures, None as "not known"."""
    if value is None:
        return "not known"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def held_bytes(root: psutil.Process) -> int:
    """Return the proportional set size of a process and its descendants, in bytes; ended processes count 0."""
    with contextlib.suppress(psutil.Error):
        return sum(processes.proportional_bytes(one.pid) for one in (root, *root.children(recursive=True)))
    return 0


def timed_command(
    command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None
) -> tuple[float, int, str]:
    """Run a command in an empty folder, with empty caches.

    Returns (seconds of wall time, the peak bytes of all its processes, its standard output).
    Raises StudyFailed with the end of its standard error if it fails.
    """
    variables = {**os.environ, "XDG_CACHE_HOME": str(folder), "PYTHONPATH": python_path(), **(environment or {})}
    # Files, because a pipe that nobody reads during sampling could fill up.
    with (folder / "stdout").open("wb") as output, (folder / "stderr").open("wb") as errors:
        started = time.perf_counter()
        running = subprocess.Popen(command, stdout=output, stderr=errors, env=variables, cwd=folder)
        root, peak = psutil.Process(running.pid), 0
        while running.poll() is None:
            sampled = time.perf_counter()
            peak = max(peak, held_bytes(root))
            # The kernel walks all pages for a sample while the processes wait: sampling may take 2% of their time.
            pause = max(_SAMPLE_SECONDS, 50 * (time.perf_counter() - sampled))
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.wait(pause)
        seconds = time.perf_counter() - started
    if running.returncode != 0:
        raise StudyFailed((folder / "stderr").read_text(errors="replace")[-2000:])
    return seconds, peak, (folder / "stdout").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Ran:
    """A command that has ended: wall seconds, standard output and error together, exit code."""

    seconds: float
    output: str
    code: int

    def tail(self) -> str:
        """Return the last lines of the output."""
        return "\n".join(self.output.strip().splitlines()[-_TAIL_LINES:])


@dataclass(frozen=True)
class Lab:
    """A scratch folder to run commands in. Each lab measures this machine's rates anew."""

    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)

    def run(self, *command: str, environment: Mapping[str, str] | None = None) -> Ran:
        """Run a command in the folder and measure the wall time of the whole process."""
        own = {"XDG_CACHE_HOME": str(self.folder / "cache"), "PYTHONPATH": python_path()}
        started = time.perf_counter()
        ended = subprocess.run(
            command,
            cwd=self.folder,
            env={**os.environ, **own, **self.environment, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        return Ran(time.perf_counter() - started, ended.stdout, ended.returncode)

    def python(self, *arguments: str, environment: Mapping[str, str] | None = None) -> Ran:
        """Run Python. Raises StudyFailed on an exit code other than 0."""
        ran = self.run(sys.executable, *arguments, environment=environment)
        if ran.code != 0:
            raise StudyFailed(f"{' '.join(arguments)} ended with code {ran.code}:\n{ran.tail()}")
        return ran

    def autoplan(self, *arguments: str, environment: Mapping[str, str] | None = None) -> Ran:
        """Run `autoplan`. Raises StudyFailed on an exit code other than 0."""
        return self.python("-m", "autoplan", *arguments, environment=environment)

    def tune(self, source: str, *options: str, arguments: Sequence[str] = (), name: str = "plan") -> tuple[Plan, Ran]:
        """Run `autoplan tune` with a study of its own and read the plan, `<name>.yaml` in the folder."""
        output = self.folder / f"{name}.yaml"
        ran = self.autoplan(
            "tune", source, "--output", str(output), "--study", str(self.folder / name), *options, *_after(arguments)
        )
        return file.read(output), ran

    def train(self, source: str, *, arguments: Sequence[str] = (), name: str = "plan", **more: Any) -> Ran:
        """Run `autoplan train` with the plan `<name>.yaml`."""
        return self.autoplan("train", source, "--plan", f"{name}.yaml", *_after(arguments), **more)

    def own_updates(self, source: str, arguments: Sequence[str] = ()) -> dict[int, int]:
        """Run a source without autoplan and return {number of the fit: its updates}."""
        return updates_in(self.python("-m", "studies.count_updates", source, *arguments).output)


@contextmanager
def lab(backend: str = "jax") -> Iterator[Lab]:
    """Make a temporary lab where Keras runs on `backend` unless a script sets another."""
    with tempfile.TemporaryDirectory(prefix="autoplan-study-") as folder:
        yield Lab(Path(folder), {"KERAS_BACKEND": backend})


def on_backend(case: str, backend: str) -> str:
    """Return the key of a case's row on a backend."""
    return case if backend == "jax" else f"{case} on {backend}"


def updates_in(output: str) -> dict[int, int]:
    """Read lines such as `fit 1: ...; 128 updates` into {1: 128}. The last line of a fit counts."""
    return {int(index): int(updates) for index, updates in _UPDATES.findall(output)}


def others_measured(plan: Plan) -> int:
    """Count the distinct configurations, without the baseline, that a trial measured."""
    found = {trial.config for trial in plan.trials if trial.outcome == "measured"}
    return len(found - {plan.baseline.config})


def plan_row(plan: Plan) -> dict[str, Any]:
    """Return the columns that describe a plan."""
    checked = plan.verification
    return {
        "evidence": plan.evidence.value,
        "baseline": plan.baseline.config.describe(),
        "plan": plan.config.describe(),
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
    """The geometric mean of ratios with its two-sided 95% confidence interval (Student's t over the logarithms)."""

    mean: float
    low: float
    high: float


def ratio(ratios: Iterable[float]) -> Ratio:
    """Return the mean ratio with its interval. Raises ValueError for fewer than two ratios, which have no spread."""
    from scipy.stats import t

    logs = [math.log(one) for one in ratios]
    if len(logs) < 2:
        raise ValueError("an interval needs at least two ratios")
    centre = sum(logs) / len(logs)
    spread = math.sqrt(sum((one - centre) ** 2 for one in logs) / (len(logs) - 1))
    half = float(t.ppf(0.975, len(logs) - 1)) * spread / math.sqrt(len(logs))
    return Ratio(math.exp(centre), math.exp(centre - half), math.exp(centre + half))


def chosen(cases: Mapping[str, Any], wanted: Sequence[str]) -> list[str]:
    """Return the cases that the command line names, or all. Raises SystemExit with the known ones."""
    unknown = [name for name in wanted if name not in cases]
    if unknown:
        raise SystemExit(f"unknown case {', '.join(unknown)}; known: {', '.join(cases)}")
    return list(wanted) or list(cases)


def _after(arguments: Sequence[str]) -> list[str]:
    return ["--", *arguments] if arguments else []
