"""Writes the golden estimates: memory and time of ten stored workloads on four chips.

    python tests/cost_models/golden/make.py

Run it after a change that is meant to change estimates, and read the difference of `estimates.json` before you commit.
`workloads/` holds traces of models of studies/memory_vs_compiler, named MODEL-PRECISION-OPTIMIZER.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from cost_models import Batch, Precision, TrainConfig, Workload, estimate
from cost_models.hardware.lookup import cluster
from cost_models.workload.serialization import workload_from_dict

HERE = Path(__file__).resolve().parent
ESTIMATES = HERE / "estimates.json"
CHIPS = ("gpu-a100-80gb", "gpu-h100-80gb", "tpu-v5e-1", "cpu")
NAMES = tuple(path.name.removesuffix(".json.gz") for path in sorted((HERE / "workloads").glob("*.json.gz")))


def load(name: str) -> Workload:
    return workload_from_dict(json.loads(gzip.decompress((HERE / "workloads" / f"{name}.json.gz").read_bytes())))


def configs(workload: Workload) -> list[TrainConfig]:
    """Return a small batch, and one of eight times the size with accumulation."""
    small, precision = max(1, workload.local_batch // 2), Precision(workload.precision)
    return [
        TrainConfig(Batch(small), precision=precision),
        TrainConfig(Batch(8 * small, accumulation=4), precision=precision),
    ]


def estimates(name: str, chip: str) -> dict[str, Any]:
    """Return bytes and seconds of every component, by configuration."""
    workload, there = load(name), cluster(chip)
    found = {}
    for config in configs(workload):
        answer = estimate(workload, config, there).to_dict()
        found[config.describe()] = {"memory": answer["memory"]["per_device_bytes"], "time": answer["time"]}
    return found


def main() -> None:
    found = {name: {chip: estimates(name, chip) for chip in CHIPS} for name in NAMES}
    ESTIMATES.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
