"""Does a forked trial behave like one that is started in a new process?

python -m studies.starting [--jobs N] [BACKEND ...]
"""

from __future__ import annotations

import csv
import os
import statistics
import tempfile
import time
from pathlib import Path

from autoplan.jobs.client import Client
from autoplan.jobs.messages import Job, JobKind
from autoplan.sources import source
from autoplan.worker.process.start_methods import START_METHOD
from studies import harness

HERE = Path(__file__).resolve().parent
MEASURED = {"groups": 3, "group_seconds": 0.1, "max_seconds": 20}
LIMIT_SECONDS = 120.0


def run(backend: str, method: str, jobs: int, log: Path) -> dict[str, object]:
    """Run jobs one after another and return their row."""
    spec = source.resolve(str(HERE / "train.py"))
    starts, steps, failed = [], [], []
    with Client(backend, environment={START_METHOD: method}) as client:
        for _ in range(jobs):
            began = time.monotonic()
            job = Job(kind=JobKind.MEASURE, source=spec, backend=backend, options=MEASURED)
            result = client.run(job, time_limit_seconds=LIMIT_SECONDS, log=log)
            if result.value is None:
                failed.append(str(result.failure))
                continue
            steps.append(result.value["micro_step_seconds"])
            starts.append(time.monotonic() - began - result.value["wall_seconds"])
    reports = sorted({line for line in log.read_text().splitlines() if line.startswith("started by")})
    return {
        "backend": backend,
        "method": method,
        "cores": os.cpu_count(),
        "jobs": jobs,
        "failed": len(failed),
        "reported": "; ".join(reports),
        "median_start_seconds": f"{statistics.median(starts):.2f}" if starts else "",
        "median_micro_step_milliseconds": f"{1000 * statistics.median(steps):.2f}" if steps else "",
        "failures": "; ".join(sorted(set(failed))),
    }


def main() -> None:
    parser = harness.parser("studies.starting", __doc__)
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("backends", nargs="*", default=["jax", "tensorflow", "torch"])
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for backend in arguments.backends:
            for method, jobs in (("fork", arguments.jobs), ("spawn", max(3, arguments.jobs // 20))):
                rows.append(run(backend, method, jobs, Path(folder) / f"{backend}-{method}.log"))
                print(rows[-1], flush=True)
    with (HERE / "results.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, rows[0])
        table.writeheader()
        table.writerows(rows)


if __name__ == "__main__":
    main()
