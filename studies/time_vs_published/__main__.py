"""How far are predicted seconds of a training step from published measurements?

    python -m studies.time_vs_published [--cache FOLDER] [--sources A,B]   # predict every row, write results.csv
    python -m studies.time_vs_published --summary                          # the tables of README.md
    python -m studies.time_vs_published --excluded                         # rows left out, with the reasons
    python -m studies.time_vs_published --figure                           # figure.png; needs matplotlib
    python -m studies.time_vs_published --without RULE [--cache FOLDER]    # what one rule of cost_models.time is worth
    python -m studies.time_vs_published --ledger [--cache FOLDER]          # the same of every rule; writes ledger.csv

Models are built in Keras with abstract variables and traced; nothing is trained. Traces are kept in the cache.
"""

from __future__ import annotations

import collections
import csv
import os
import tempfile
from pathlib import Path
from typing import Any

from studies import harness

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results.csv"


def predict_all(folder: Path, sources: set[str]) -> None:
    """Predict every row that is not left out; rows of other sources stay in results.csv."""
    from studies.time_vs_published import cases
    from studies.time_vs_published.predict import predict, predict_memory

    chosen = [case for case in cases.read()[0] if not sources or case.source in sources]
    lines = [line for line in rows() if sources and line["source"] not in sources]
    for case in sorted(chosen, key=lambda case: (case.source, case.traced.name, case.chip)):
        found = predict(case, folder)
        memory = (
            predict_memory(case, folder) if case.peak_bytes and case.devices == 1 and not case.shard_state else None
        )
        lines.append(
            {
                "row": case.row,
                "source": case.source,
                "family": case.family,
                "model": case.model,
                "size": case.traced.size,
                "chip": case.chip,
                "devices": case.devices,
                "precision": case.traced.precision,
                "batch": case.batch,
                "framework": case.framework,
                "stack": case.stack + " channels first" * case.nchw + " bridged" * case.bridged,
                "measured_seconds": f"{case.measured_seconds:.6g}",
                "predicted_seconds": f"{found.seconds:.6g}",
                "exposed_seconds": f"{found.exposed_seconds:.4g}",
                "model_flops": f"{found.model_flops:.6g}",
                "measured_gib": f"{case.peak_bytes / 2**30:.3f}" if memory else "",
                "predicted_gib": f"{memory[0] / 2**30:.3f}" if memory else "",
                "fits": memory[1] if memory else "",
            }
        )
    with RESULTS.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted(lines, key=lambda line: line["row"]))


def rows() -> list[dict[str, Any]]:
    if not RESULTS.exists():
        return []
    with RESULTS.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def excluded() -> None:
    from studies.time_vs_published import cases

    count = collections.Counter((one.source, one.reason) for one in cases.read()[1])
    print("| source | rows | reason |\n| --- | --- | --- |")
    for (source, reason), number in sorted(count.items()):
        print(f"| {source} | {number} | {reason} |")


def main() -> None:
    parser = harness.parser("studies.time_vs_published", __doc__)
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "autoplan-time-vs-published")
    parser.add_argument("--sources", default="")
    for name in ("summary", "excluded", "figure"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--without", action="append", metavar="RULE", help="measure what one rule is worth")
    parser.add_argument("--ledger", action="store_true", help="measure what every rule is worth; writes ledger.csv")
    asked = parser.parse_args()
    os.environ |= {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    if asked.excluded:
        excluded()
    elif asked.ledger or asked.without:
        from studies.time_vs_published import ledger

        ledger.measure(asked.without or ledger.rules(), asked.cache)
    elif asked.figure:
        from studies.time_vs_published import report

        report.figure(rows(), HERE / "figure.png")
    else:
        if not asked.summary:
            predict_all(asked.cache, set(filter(None, asked.sources.split(","))))
        from studies.time_vs_published import report

        report.summary(rows())


if __name__ == "__main__":
    main()
