"""Does tuning find the smallest change with which a training fits into memory, in few trials?

    python -m studies.rescue [--backend NAME] [CASE ...]

First the script runs without autoplan and without a limit, with each accumulation and in another precision, to measure
its peaks. Each memory limit is between two of these peaks, so that the smallest change that fits is known beforehand.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoplan.plan.records import Plan
from studies import harness

HERE = Path(__file__).resolve().parent
SCRIPT = str(HERE / "train.py")
MIB = 2**20
BATCH = 2048
ACCUMULATIONS = (1, 2, 4, 8)
ENOUGH_TRIALS = 6
NO_FEASIBLE_CONFIGURATION = 3
COLUMNS = (
    *("case", "limit MiB", "own peak MiB", "expected", "least change", "trials", "rungs", "plan", "trained peak MiB"),
    *("loss differs by", "passes"),
)
_ENDED = re.compile(r"^ended: (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Case:
    """A memory limit between the peaks of two variants of the script: the first fits, the second does not.

    runs        the smallest change that fits; None if nothing fits
    does_not    the smaller change that does not fit
    """

    runs: str | None
    does_not: str
    options: tuple[str, ...] = ("--only", "batch")


CASES = {
    "accumulation 2": Case("accumulation 2", "as it is"),
    "accumulation 4": Case("accumulation 4", "accumulation 2"),
    "accumulation 8": Case("accumulation 8", "accumulation 4"),
    "precision": Case("precision mixed_bfloat16", "as it is", ("--only", "precision,batch", "--fix", "accumulation=1")),
    "nothing": Case(None, "the start"),
}


def ended(ran: harness.Ran) -> dict[str, Any]:
    """Return what the script prints at its end: its peak memory and its last loss."""
    found = _ENDED.search(ran.output)
    if found is None:
        raise harness.StudyFailed(f"the script printed no result:\n{ran.tail()}")
    value: dict[str, Any] = json.loads(found.group(1))
    return value


def truths(lab: harness.Lab) -> dict[str, dict[str, Any]]:
    """Run every variant of the script without autoplan. Returns peaks in bytes and losses."""
    ways = {"the start": ["--batch-size", "1", "--samples", "4", "--width", "8"]}
    for accumulation in ACCUMULATIONS:
        name = "as it is" if accumulation == 1 else f"accumulation {accumulation}"
        split = ["--accumulation", str(accumulation)] if accumulation > 1 else []
        ways[name] = ["--batch-size", str(BATCH // accumulation), *split]
    ways["precision mixed_bfloat16"] = ["--precision", "mixed_bfloat16"]
    found = {name: ended(lab.python(SCRIPT, *words)) for name, words in ways.items()}
    for name, one in found.items():
        print(f"without autoplan, {name}: {one['peak_bytes'] / MIB:.0f} MiB, loss {one['loss']:.6f}", flush=True)
    return found


def limit_of(case: Case, truth: Mapping[str, Mapping[str, Any]]) -> int:
    """Return the limit in bytes: between the two peaks, or below the memory of a process that hardly trains."""
    if case.runs is None:
        return int(truth[case.does_not]["peak_bytes"] - 64 * MIB)
    return int((truth[case.runs]["peak_bytes"] + truth[case.does_not]["peak_bytes"]) // 2)


def rungs(plan: Plan) -> str:
    """Return a text of the changes that were tried, in order, with their outcomes."""
    rescue = plan.rescue
    if rescue is None:
        return "no rescue"
    texts = []
    for rung in rescue.tried:
        held = "" if rung.needed_bytes is None else f" at {rung.needed_bytes / MIB:.0f} MiB"
        texts.append(f"{', '.join(rung.changed)}: {rung.outcome.replace('_', ' ')}{held} ({rung.evidence})")
    return "; ".join(texts)


def rescued(lab: harness.Lab, name: str, case: Case, truth: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Tune with the limit, then train with the plan. Returns the row of the case."""
    limit = limit_of(case, truth)
    words = (*case.options, "--memory-limit", f"{limit // MIB}MiB", "--trials", "4")
    own = truth["as it is"]
    row = {"limit MiB": limit / MIB, "own peak MiB": own["peak_bytes"] / MIB, "expected": case.runs or "nothing runs"}
    if case.runs is None:
        ran = lab.run(sys.executable, "-m", "autoplan", "tune", SCRIPT, "--output", "nothing.yaml", *words)
        answer = [line for line in ran.output.splitlines() if line.startswith("error: ")]
        print("\n".join(answer), flush=True)
        found = {"least change": f"exit code {ran.code}", "rungs": " ".join(answer), "plan": "none"}
        return {**row, **found, "passes": ran.code == NO_FEASIBLE_CONFIGURATION and bool(answer)}
    plan, _ = lab.tune(SCRIPT, *words, name=name.replace(" ", "-"))
    trained = ended(lab.train(SCRIPT, name=name.replace(" ", "-")))
    least = ", ".join(plan.rescue.changed) if plan.rescue else "none"
    trials = sum(rung.evidence == "measured" for rung in plan.rescue.tried) if plan.rescue else 0
    print(f"{name}: {plan.rescue.because if plan.rescue else 'no rescue'}", flush=True)
    return {
        **row,
        "least change": least,
        "trials": trials,
        "rungs": rungs(plan),
        "plan": harness.plan_row(plan)["plan"],
        "trained peak MiB": trained["peak_bytes"] / MIB,
        "loss differs by": abs(trained["loss"] / own["loss"] - 1),
        "passes": least == case.runs and trials <= ENOUGH_TRIALS and trained["peak_bytes"] <= limit,
    }


def main() -> None:
    parser = harness.parser("studies.rescue", __doc__)
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--backend", default="jax")
    arguments = parser.parse_args()
    harness.header("Does tuning find the smallest change with which a training fits into memory?", arguments.backend)
    rows = []
    with harness.lab(arguments.backend) as lab:
        truth = truths(lab)
        for name in harness.chosen(CASES, arguments.cases):
            case = harness.on_backend(name, arguments.backend)
            origin = harness.provenance(arguments.backend)
            try:
                row = rescued(lab, name, CASES[name], truth)
            except harness.StudyFailed as failed:
                row = {"passes": False, "error": str(failed)}
            rows.append({"case": case, **row, **origin})
            harness.write_rows(HERE / "results.csv", rows[-1:], key="case")
            print(f"{case}: {'passes' if row['passes'] else 'fails'} {row.get('error', '')}", flush=True)
    harness.print_table(rows, COLUMNS)


if __name__ == "__main__":
    main()
