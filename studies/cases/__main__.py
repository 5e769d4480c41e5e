"""Do small trainings on which tuning is easily wrong get what their users must get, through whole commands?

python -m studies.cases [CASE ...]
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from studies import harness
from studies.cases.checking import Case, Outcome
from studies.cases.table import CASES

HERE = Path(__file__).resolve().parent
QUESTION = "Do small trainings on which tuning is easily wrong get what their users must get?"
COLUMNS = ("case", "kind", "exit codes", "seconds", "passes", "wrong")
LIMIT_SECONDS = 600.0
TIMED_OUT = -1


def run(case: Case, lab: harness.Lab, cache: Path) -> Outcome:
    """Run the commands of a case on a copy of its script.

    cache   a folder for the rates of this machine, which are measured once for all cases
    """
    shutil.copy(HERE / "inputs" / case.script, lab.folder / case.script)
    runs = tuple(_run(case, lab, cache, command) for command in case.commands)
    return Outcome(lab.folder, runs)


def _run(case: Case, lab: harness.Lab, cache: Path, command: str) -> harness.Ran:
    words = [case.script if word == "SCRIPT" else word for word in shlex.split(command)]
    start = [sys.executable, *([] if words[0] == "python" else ["-m", "autoplan"])]
    variables = {"XDG_CACHE_HOME": str(cache), "PYTHONPATH": harness.python_path()}
    started = time.perf_counter()
    with (lab.folder / "output.txt").open("w+", encoding="utf-8", errors="replace") as output:
        process = subprocess.Popen(
            [*start, *(words[1:] if words[0] == "python" else words)],
            cwd=lab.folder,
            env={**os.environ, **variables, **case.environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            code = process.wait(LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            code = TIMED_OUT
        output.seek(0)
        return harness.Ran(time.perf_counter() - started, output.read(), code)


def study(name: str, keep: Path | None, cache: Path) -> dict[str, Any]:
    """Run one case and return its row."""
    case = CASES[name]
    origin = harness.provenance(case.environment.get("KERAS_BACKEND", "jax"))
    with harness.lab() as lab:
        outcome = run(case, lab, cache)
        wrong = case.judge(outcome)
        if keep is not None:
            shown = "\n".join(
                f"$ {command}\n{one.output}" for command, one in zip(case.commands, outcome.runs, strict=True)
            )
            (keep / f"{name}.txt").write_text(shown, encoding="utf-8")
            if (lab.folder / "plan.yaml").exists():
                shutil.copy(lab.folder / "plan.yaml", keep / f"{name}.yaml")
    return {
        "case": name,
        "kind": case.kind,
        "commands": "; ".join(case.commands),
        "exit codes": " ".join(str(one.code) for one in outcome.runs),
        "seconds": round(sum(one.seconds for one in outcome.runs), 1),
        "passes": not wrong,
        "wrong": " ".join(wrong.replace(str(lab.folder), "").split())[:300],
        **origin,
    }


def main() -> None:
    parser = harness.parser("studies.cases", __doc__)
    parser.add_argument("cases", nargs="*", help=", ".join(CASES))
    parser.add_argument("--keep", type=Path, help="a folder for the output and the plan of each case")
    arguments = parser.parse_args()
    if arguments.keep:
        arguments.keep.mkdir(parents=True, exist_ok=True)
    harness.header(QUESTION)
    rows = []
    with tempfile.TemporaryDirectory(prefix="autoplan-study-") as cache:
        for name in harness.chosen(CASES, arguments.cases):
            rows.append(study(name, arguments.keep, Path(cache)))
            harness.write_rows(HERE / "results.csv", rows[-1:], key="case")
            print(f"{name}: {'passes' if rows[-1]['passes'] else 'FAILS: ' + rows[-1]['wrong']}", flush=True)
    harness.print_table(rows, COLUMNS)
    print(f"\n{sum(row['passes'] for row in rows)} of {len(rows)} cases get what they must get")


if __name__ == "__main__":
    main()
