"""Seconds of a micro-step out of the published logs of one source, where its tables average cold starts in.

    python studies/time_vs_published/logs.py CLONE   # of github.com/lambdal/deeplearning-benchmark; writes steady.csv

That source's tables divide by the whole time of short runs, of six to a few hundred micro-steps, so that loading of
libraries, tuning of kernels and the last, smaller batch are averaged in. Its logs hold the progress of two passes; of
the second one the median of all but the last micro-step is taken, on all its processes.
"""

from __future__ import annotations

import csv
import re
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
STEADY = HERE / "steady.csv"
_BAR = re.compile(r"Iteration:\s+\d+%\|[^|]*\|\s*(\d+)/(\d+)\s*\[[\d:]+<[^,]*,\s*([\d.]+)(it/s|s/it)\]")
_SECOND_PASS = re.compile(r"Epoch:\s+50%")
_LINE = re.compile(r"Epoch: (\d+) Iteration: (\d+)\s.*train\.total_ips : ([\d.]+) img/s")


def steady_seconds(log: str, samples: float) -> tuple[float, int] | None:
    """(seconds, micro-steps looked at) of a log; `samples` are those of a micro-step on all devices."""
    found = list(_of_bars(log)) or [samples / rate for rate in _of_lines(log)]
    return (statistics.median(found), len(found)) if found else None


def _of_bars(log: str) -> Iterator[float]:
    """Seconds of micro-steps as progress bars of the second pass show them, without the last of the pass."""
    start = _SECOND_PASS.search(log)
    for done, total, figure, unit in _BAR.findall(log[start.start() :] if start else ""):
        if int(done) < int(total):
            yield float(figure) if unit == "s/it" else 1 / float(figure)


def _of_lines(log: str) -> list[float]:
    """Images a second of micro-steps of the last pass, without its first and last."""
    passes: dict[int, list[float]] = defaultdict(list)
    for number, _, rate in _LINE.findall(log):
        passes[int(number)].append(float(rate))
    return passes[max(passes)][1:-1] if passes else []


def main() -> None:
    clone = Path(sys.argv[1])
    logs = _logs(clone)
    with (HERE / "published.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["source"] == "lambda" and row["section"] in logs]
    with STEADY.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["id", "seconds", "micro_steps", "log"])
        for row in rows:
            samples = int(row["n"]) * float(row["micro_batch"])
            of_logs = {
                name: steady_seconds(_git(clone, "show", f"HEAD:{name}"), samples) for name in logs[row["section"]]
            }
            for name, steady in of_logs.items():
                if steady:
                    writer.writerow([row["id"], f"{steady[0]:.5g}", steady[1], name])


def _logs(clone: Path) -> dict[str, list[str]]:
    """Names of logs by the section that `published.csv` says."""
    found: dict[str, list[str]] = defaultdict(list)
    for name in _git(clone, "ls-tree", "-r", "--name-only", "HEAD", "pytorch/results").splitlines():
        if name.endswith(".txt"):
            found[name.removeprefix("pytorch/").rpartition("/")[0]].append(name)
    return found


def _git(clone: Path, *arguments: str) -> str:
    run = subprocess.run(["git", "-C", str(clone), *arguments], capture_output=True, check=True)
    return run.stdout.decode(errors="replace")


if __name__ == "__main__":
    main()
