"""Does a plan shorten a whole training? Compares the script with `autoplan train`, in alternating pairs.

    python -m studies.fit_time [--pairs N] [--trials N] [--epochs N]

First, caches are cold for both sides: every run starts with an empty compilation cache. Then they are warm: each side
has a cache of its own that an earlier run has filled. The script measures the time of `model.fit`; the study measures
the time of the whole process.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from studies import harness

HERE = Path(__file__).resolve().parent
SCRIPT = str(HERE / "train.py")
TARGET = 1.15
LONG_ENOUGH_SECONDS = 60.0
SIDES = ("plain", "tuned")
_FIT = re.compile(r"fit seconds: ([0-9.]+)")


def train(lab: harness.Lab, side: str, arguments: list[str], cache: Path) -> dict[str, float]:
    """Run one whole training. Returns the seconds of the fit and of the process."""
    cache.mkdir(exist_ok=True)
    # Both sides use the compilation cache.
    environment = {"JAX_COMPILATION_CACHE_DIR": str(cache), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    if side == "plain":
        ran = lab.python(SCRIPT, *arguments, environment=environment)
    else:
        ran = lab.train(SCRIPT, arguments=arguments, environment=environment)
    found = _FIT.search(ran.output)
    if found is None:
        raise harness.StudyFailed(f"the script printed no time of its fit:\n{ran.tail()}")
    return {"fit": float(found.group(1)), "process": ran.seconds}


def pairs(lab: harness.Lab, count: int, arguments: list[str], *, warm: bool) -> list[dict[str, Any]]:
    """Run pairs of whole trainings. The side that runs first alternates."""
    kind = "warm" if warm else "cold"
    if warm:
        for side in SIDES:
            train(lab, side, arguments, lab.folder / f"warm-{side}")
    rows = []
    for number in range(count):
        took: dict[str, dict[str, float]] = {}
        for side in SIDES if number % 2 == 0 else reversed(SIDES):
            name = f"warm-{side}" if warm else f"cold-{side}-{number}"
            took[side] = train(lab, side, arguments, lab.folder / name)
        row: dict[str, Any] = {"key": f"{kind}/{number}", "caches": kind, "pair": number}
        for what in ("fit", "process"):
            row |= {f"{side} {what}": took[side][what] for side in SIDES}
            row[f"{what} ratio"] = took["plain"][what] / took["tuned"][what]
        rows.append(row)
        print(
            f"{kind} pair {number + 1}/{count}: fit {row['plain fit']:.1f} s and {row['tuned fit']:.1f} s, "
            f"ratio {row['fit ratio']:.3f}; process ratio {row['process ratio']:.3f}",
            flush=True,
        )
    return rows


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the ratios of the cold and of the warm pairs, with their confidence intervals."""
    table = []
    for kind in ("cold", "warm"):
        of_kind = [row for row in rows if row["caches"] == kind]
        for what in ("fit", "process"):
            found = harness.ratio(row[f"{what} ratio"] for row in of_kind)
            table.append(
                {"caches": kind, "what": what, "pairs": len(of_kind), "ratio": found.mean}
                | {"95% low": found.low, "95% high": found.high}
            )
    return table


def main() -> None:
    parser = harness.parser("studies.fit_time", __doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=100)
    given = parser.parse_args()
    harness.header("How much shorter is a whole training with its plan?")
    origin, arguments = harness.provenance(), ["--epochs", str(given.epochs)]
    with harness.lab() as lab:
        plan, ran = lab.tune(SCRIPT, "--trials", str(given.trials), arguments=arguments)
        row = harness.plan_row(plan)
        print(f"tuned in {ran.seconds:.0f} s: {row['baseline']} -> {row['plan']}")
        print(f"verified speed-up of micro-steps: {harness.shown(row['speed-up'])}", flush=True)
        rows = pairs(lab, given.pairs, arguments, warm=False) + pairs(lab, given.pairs, arguments, warm=True)
    results = [{**pair, "plan": row["plan"], "tune seconds": ran.seconds, **origin} for pair in rows]
    harness.write_rows(HERE / "results.csv", results, key="key")
    table = summary(rows)
    harness.print_table(table, ["caches", "what", "pairs", "ratio", "95% low", "95% high"])
    shortest = min(row["plain fit"] for row in rows)
    print(f"\nshortest fit of the plain script: {shortest:.1f} s (wanted: at least {LONG_ENOUGH_SECONDS:.0f} s)")
    for row in table:
        if row["what"] == "fit":
            verdict = "met" if row["95% low"] > TARGET else "missed"
            print(f"target, caches {row['caches']}: lower bound above {TARGET}; found {row['95% low']:.3f}: {verdict}")


if __name__ == "__main__":
    main()
