"""Can autoplan tune public Keras examples without changes, except for their data, or give a clear reason?

    python -m studies.public_examples --examples FOLDER --data FOLDER [--budget 3m] [--trials N] [CASE ...]
A case is a name (on all its backends), name@backend, or @backend.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoplan.plan import file
from studies import harness
from studies.public_examples.cases import ALL, CASES, REPLACED, Case, synthetic_data_for
from studies.public_examples.replaced import synthetic_files

HERE = Path(__file__).resolve().parent
QUESTION = "Can autoplan tune public Keras examples without changes, except for their data, or give a clear reason?"
LONGEST_REASON = 600
COLUMNS = ("case", "what it is", "outcome", "baseline", "plan", "speed-up", "low", "high", "numerics", "seconds")


@dataclass(frozen=True)
class Ended:
    """How `autoplan tune` ended: output, exit code (None if it hung and was killed), seconds of wall time."""

    output: str
    code: int | None
    seconds: float


def tune(command: Sequence[str], folder: Path, environment: Mapping[str, str], limit_seconds: float) -> Ended:
    """Run `autoplan tune` in a folder. At the time limit it is killed, which also ends its workers."""
    started = time.monotonic()
    with (folder / "output.txt").open("w+", encoding="utf-8", errors="replace") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "autoplan", "tune", *command],
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            code: int | None = process.wait(limit_seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            code = None
        output.seek(0)
        return Ended(output.read(), code, time.monotonic() - started)


def study(name: str, backend: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run one case and return its row."""
    case, origin = CASES[name], harness.provenance(backend)
    with harness.lab() as lab:
        if case.prepare:
            synthetic_files.prepare(case.prepare, lab.folder)
        script = arguments.examples / case.path
        command = [str(script), "--backend", backend, "--trials", str(arguments.trials), "--budget", arguments.budget]
        ended = tune([*command, *case.options], lab.folder, _environment(case, arguments), arguments.limit)
        if arguments.keep:
            (arguments.keep / f"{name}@{backend}.txt").write_text(ended.output, encoding="utf-8")
        path = lab.folder / "plan.yaml"
        found = _planned(path) if ended.code == 0 and path.exists() else _unplanned(ended)
    for place in (f"{lab.folder}/", f"{arguments.examples}/"):
        found["reason"] = found["reason"].replace(place, "")
    row = {"case": f"{name}@{backend}", "example": case.path, "what it is": case.kind}
    return {**row, **found, "seconds": round(ended.seconds, 1), **origin}


def _environment(case: Case, arguments: argparse.Namespace) -> dict[str, str]:
    return {
        "PYTHONPATH": harness.python_path(REPLACED),
        "XDG_CACHE_HOME": str(arguments.data / "cache"),
        **synthetic_data_for(case, arguments.data),
    }


def _planned(path: Path) -> dict[str, Any]:
    """Return the columns of a plan. The outcome is `plan`, or `baseline kept` with the reason."""
    plan = file.read(path)
    columns = harness.plan_row(plan)
    why, kept = columns.pop("why"), plan.config == plan.baseline.config
    return {**columns, "outcome": "baseline kept" if kept else "plan", "reason": why if kept else ""}


def _unplanned(ended: Ended) -> dict[str, Any]:
    """Return the outcome without a plan: `reason` for an error message with its exit code, otherwise `fault`."""
    if ended.code is None:
        return {"outcome": "fault", "reason": "hung"}
    errors = [match.start() for match in re.finditer("^error: ", ended.output, re.MULTILINE)]
    end = ended.output[errors[-1] if errors else -2000 :]
    clear = bool(errors) and ended.code in (2, 3) and "Traceback (most recent call last)" not in end
    text = " | ".join(line.strip() for line in end.splitlines() if line.strip())
    shown = text if len(text) <= LONGEST_REASON else f"{text[: LONGEST_REASON // 2]} ... {text[-LONGEST_REASON // 2 :]}"
    return {"outcome": "reason" if clear else "fault", "reason": shown}


def wanted(names: Sequence[str]) -> list[tuple[str, str]]:
    """Return (case, backend) for each argument of the command line; without arguments, all of them."""
    every = [(name, backend) for name, case in CASES.items() for backend in case.backends]
    known = {f"{name}@{backend}": [(name, backend)] for name, backend in every}
    known |= {name: [one for one in every if one[0] == name] for name in CASES}
    known |= {f"@{backend}": [one for one in every if one[1] == backend] for backend in ALL}
    words = harness.chosen(known, names) if names else [f"@{backend}" for backend in ALL]
    return [one for word in words for one in known[word]]


def main() -> None:
    parser = harness.parser("studies.public_examples", __doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help="name, name@backend or @backend")
    parser.add_argument("--examples", type=Path, required=True, help="a checkout of keras-team/keras-io")
    parser.add_argument("--trials", type=int, default=6)
    parser.add_argument("--budget", default="3m")
    parser.add_argument("--data", type=Path, required=True, help="a folder for synthetic files, kept between runs")
    parser.add_argument("--limit", type=float, default=1080.0, help="seconds of wall time after which a run has hung")
    parser.add_argument("--keep", type=Path, help="a folder for the output of each run")
    arguments = parser.parse_args()
    arguments.examples, arguments.data = arguments.examples.resolve(), arguments.data.resolve()
    harness.header(QUESTION)
    rows = []
    for name, backend in wanted(arguments.cases):
        rows.append(study(name, backend, arguments))
        harness.write_rows(HERE / "results.csv", rows[-1:], key="case")
        print(f"{rows[-1]['case']}: {rows[-1]['outcome']} in {rows[-1]['seconds']} s. {rows[-1]['reason']}", flush=True)
    harness.print_table(rows, COLUMNS)
    faults = sum(row["outcome"] == "fault" for row in rows)
    print(f"\n{len(rows) - faults} of {len(rows)} end with a plan, the baseline, or a clear reason")


if __name__ == "__main__":
    main()
