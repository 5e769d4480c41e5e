"""Does `--backend auto` find the backend on which a training is fastest, with the same losses?

    python -m studies.backend_auto [--trials N] [--own BACKEND] [CASE ...]

Cases: mlp, resnet20, decoder, wide. Without a case: all of them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from autoplan.plan.records import Plan
from studies import harness

HERE = Path(__file__).resolve().parent
SCRIPT = str(HERE / "train.py")
BACKENDS = ("jax", "tensorflow", "torch")
TOLERANCE = 1e-3
OPTIONS = ("--backend", "auto", "--fix", "precision=float32")  # with another precision, losses differ on every backend
CASES = {name: name for name in ("mlp", "resnet20", "decoder", "wide")}
COLUMNS = (
    *("case", "baseline", "plan", *(f"best samples/s on {name}" for name in BACKENDS), "two best within"),
    *("speed-up", "low", "high", "losses differ by", "tune seconds", "passes"),
)
_DIFFERENCE = re.compile(r"largest relative difference of a loss over (\d+) updates: ([0-9.e+-]+)")


def best_rates(plan: Plan) -> dict[str, float]:
    """Return the samples per second of the best trial on each backend."""
    rates: dict[str, float] = {}
    for trial in plan.trials:
        if trial.measurement is not None:
            name = trial.config.backend
            rates[name] = max(rates.get(name, 0.0), trial.measurement.samples_per_second)
    return rates


def losses_differ_by(plan: Plan) -> float | None:
    """Return the largest relative difference of a loss; None if the plan stays on its backend (no comparison)."""
    found = _DIFFERENCE.search(plan.verification.numerics_detail if plan.verification else "")
    return float(found.group(2)) if found and int(found.group(1)) >= 50 else None


def study(name: str, trials: int, own: str) -> dict[str, Any]:
    """Tune on all backends. `own`, the backend of the baseline, should be a slow one, so that the plan has to move."""
    origin = harness.provenance()
    with harness.lab(own) as lab:
        plan, ran = lab.tune(SCRIPT, *OPTIONS, "--trials", str(trials), arguments=(name,))
    rates = best_rates(plan)
    ordered = sorted(rates.values(), reverse=True)
    fastest, differ = max(rates, key=lambda backend: rates[backend]), losses_differ_by(plan)
    return {
        "case": name,
        "tune seconds": ran.seconds,
        **harness.plan_row(plan),
        **{f"best samples/s on {backend}": rates.get(backend) for backend in BACKENDS},
        "two best within": ordered[0] / ordered[1] if len(ordered) > 1 else None,
        "losses differ by": differ,
        "fastest backend": fastest,
        "passes": plan.config.backend == fastest and (fastest == own or (differ is not None and differ <= TOLERANCE)),
        "error": "",
        **origin,
    }


def main() -> None:
    parser = harness.parser("studies.backend_auto", __doc__)
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--own", choices=BACKENDS, default="torch", help="the backend of the baseline")
    given = parser.parse_args()
    harness.header("Does --backend auto find the backend on which a training is fastest?")
    rows = []
    for name in harness.chosen(CASES, given.cases):
        try:
            rows.append(study(name, given.trials, given.own))
        except harness.StudyFailed as failed:
            rows.append({"case": name, "passes": False, "error": str(failed), **harness.provenance()})
        harness.write_rows(HERE / "results.csv", rows[-1:], key="case")
        print(f"{name}: {'passes' if rows[-1]['passes'] else 'fails'} {rows[-1]['error']}", flush=True)
    harness.print_table(rows, COLUMNS)
    for row in rows:
        print(f"{row['case']}: {row.get('why', row['error'])}")


if __name__ == "__main__":
    main()
