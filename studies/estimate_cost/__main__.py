"""How much time and memory does `autoplan estimate` take for ResNet-50 on tpu-v4-8 with batch 512?

    python -m studies.estimate_cost [--runs N]

Each run is a new process with empty caches. Memory is the proportional set size (a shared page counts by its share) of
the command and all its descendants, sampled every 0.1 s; the row has the largest sum.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from studies import harness

HERE = Path(__file__).resolve().parent
TARGET_SECONDS = 15.0
TARGET_BYTES = 3 * 2**29
QUESTION = ("--hardware", "tpu-v4-8", "--batch-size", "512", "--format", "json")


def estimate(folder: Path) -> tuple[float, int, dict[str, Any]]:
    """Run the command with empty caches. Returns seconds, peak bytes, and its JSON output."""
    command = [sys.executable, "-m", "autoplan", "estimate", str(HERE / "resnet50.py"), *QUESTION]
    seconds, peak, answer = harness.timed_command(command, folder)
    return seconds, peak, json.loads(answer)


def main() -> None:
    parser = harness.parser("studies.estimate_cost", __doc__)
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    harness.header("How much time and memory does an estimate of ResNet-50 for tpu-v4-8 with batch 512 take?")
    origin, rows = harness.provenance(), []
    for run in range(arguments.runs):
        with tempfile.TemporaryDirectory(prefix="autoplan-study-") as folder:
            seconds, peak, answer = estimate(Path(folder))
        rows.append({"run": run, "seconds": seconds, "peak GiB": peak / 2**30, "fits": answer["memory"]["fits"]})
    harness.write_rows(
        HERE / "results.csv", [{**row, "peak bytes": int(row["peak GiB"] * 2**30), **origin} for row in rows], "run"
    )
    harness.print_table(rows, ["run", "seconds", "peak GiB", "fits"])
    slowest, largest = max(row["seconds"] for row in rows), max(row["peak GiB"] for row in rows)
    middle = statistics.median(row["seconds"] for row in rows)
    print(f"\nseconds: median {middle:.1f}, slowest {slowest:.1f}; target {TARGET_SECONDS:.0f}: ", end="")
    print("met" if slowest < TARGET_SECONDS else "missed")
    print(f"memory: largest {largest:.2f} GiB; target {TARGET_BYTES / 2**30:.1f}: ", end="")
    print("met" if largest < TARGET_BYTES / 2**30 else "missed")


if __name__ == "__main__":
    main()
