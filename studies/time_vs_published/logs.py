"""Read seconds of a micro-step from the published logs of one source, whose tables include cold starts.

    python -m studies.time_vs_published.logs CLONE   # of github.com/lambdal/deeplearning-benchmark; writes steady.csv

The tables of that source average over short runs of six to a few hundred micro-steps. The averages include loading of
libraries, tuning of kernels, and the last, smaller batch. The logs show the progress of two passes. The result is the
median of all micro-steps of the second pass but the last, over all processes. Runs of 2022 have one pass; their first
ten micro-steps are skipped. Tables of 2022 name cards instead of folders; the log of a row is the log that prints the
figure of the table, which the table rounds down.
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
_LINE = re.compile(r"Epoch: (\d+) Iteration: (\d+)\s.*train\.total_ips : ([\d.]+) (?:img|images)/s")
_TABLED = re.compile(r"(?:training_sequences_per_second|Summary: train\.loss.*train\.compute_ips) : ([\d.]+)")
_WARM_UP = 10


def steady_seconds(log: str, samples: float) -> tuple[float, int] | None:
    """Return (seconds, number of micro-steps) of a log; `samples` counts a micro-step on all devices."""
    found = list(_of_bars(log)) or [samples / rate for rate in _of_lines(log)]
    return (statistics.median(found), len(found)) if found else None


def _of_bars(log: str) -> Iterator[float]:
    """Yield the seconds of micro-steps in progress bars of the second pass, without its last micro-step."""
    start = _SECOND_PASS.search(log)
    first = 0 if start else _WARM_UP
    for done, total, figure, unit in _BAR.findall(log[start.start() :] if start else log):
        if first < int(done) < int(total):
            yield float(figure) if unit == "s/it" else 1 / float(figure)


def _of_lines(log: str) -> list[float]:
    """Return the images per second of micro-steps of the last pass, without its first and last."""
    passes: dict[int, list[float]] = defaultdict(list)
    for number, _, rate in _LINE.findall(log):
        passes[int(number)].append(float(rate))
    return passes[max(passes)][1:-1] if passes else []


# Folders of the cards that tables of 2022 name (`scripts/compile_results_pytorch.py`); `{}` is the number, if several.
_FOLDERS = {
    "quadro-rtx8000-48gb": "{}QuadroRTX8000", "v100-16gb-sxm": "LambdaCloud_{}V100_16GB", "rtx-3090-24gb": "{}3090",
    "a10-24gb": "LambdaCloud_{}A10", "a100-40gb-pcie": "LambdaCloud_{}A100_40GB_PCIe", "rtx-4090-24gb": "{}4090",
    "a100-80gb-pcie": "{}A100_80GB_PCIe", "a100-80gb-sxm": "{}A100_80GB_SXM4", "rtx-a6000-48gb": "{}A6000",
    "h100-80gb-pcie": "{}H100_80GB_PCIe5", "h100-80gb-sxm": "{}H100_80GB_SXM5",
}  # fmt: skip
_TASKS = {
    ("bert-base", "amp"): "bert_base_squad_FP16", ("bert-large", "amp"): "bert_large_squad_FP16",
    ("resnet50-v1.5", "amp"): "resnet50_AMP", ("bert-base", "fp32(tf32 on Ampere+)"): "bert_base_squad_FP32",
    ("bert-large", "fp32(tf32 on Ampere+)"): "bert_large_squad_FP32",
    ("resnet50-v1.5", "fp32(tf32 on Ampere+)"): "resnet50_FP32",
}  # fmt: skip


def _section(row: dict[str, str]) -> str:
    """Return the folder of a row's logs, a key of `_logs`."""
    task = _TASKS.get((row["model"], row["precision"]))
    if not row["section"].endswith(".csv") or row["hw"] not in _FOLDERS or not task:
        return row["section"]
    folder = _FOLDERS[row["hw"]].format(f"{row['n']}x" if row["n"] != "1" else "")
    return f"results/{folder}_v1/PyTorch_{task}"


def _is_of(row: dict[str, str], log: str) -> bool:
    """Return whether a log belongs to a row: a row of 2022 names no log, so that their figures are compared."""
    tabled = _TABLED.findall(log)
    return not row["section"].endswith(".csv") or (
        bool(tabled) and int(float(tabled[-1])) == int(float(row["samples_per_s"]))
    )


def main() -> None:
    clone = Path(sys.argv[1])
    logs = _logs(clone)
    with (HERE / "published.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["source"] == "lambda" and _section(row) in logs]
    with STEADY.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["id", "seconds", "micro_steps", "log"])
        for row in rows:
            samples = int(row["n"]) * float(row["micro_batch"])
            texts = {name: _git(clone, "show", f"HEAD:{name}") for name in logs[_section(row)]}
            of_logs = {name: steady_seconds(log, samples) for name, log in texts.items() if _is_of(row, log)}
            for name, steady in of_logs.items():
                if steady:
                    writer.writerow([row["id"], f"{steady[0]:.5g}", steady[1], name])


def _logs(clone: Path) -> dict[str, list[str]]:
    """Return the names of logs by folder."""
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
