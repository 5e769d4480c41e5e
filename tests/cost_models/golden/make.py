"""Writes the golden estimates: memory and time of ten stored workloads on four chips.

    python tests/cost_models/golden/make.py

Run it after a change that is meant to change estimates, and read the difference of `estimates.json` before you commit.
`workloads/` holds traces of models of studies/memory_vs_compiler, named MODEL-PRECISION-OPTIMIZER, as Keras traces them
on a CPU. `workloads/CHIP/` holds traces of models with attention or an LSTM in one kernel on a chip, as Keras traces
them there; `make.py --trace` traces these again, on JAX.
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

from cost_models import Batch, Precision, TrainConfig, Workload, estimate
from cost_models.hardware.lookup import cluster
from cost_models.workload.serialization import workload_from_dict, workload_to_dict

HERE = Path(__file__).resolve().parent
ESTIMATES = HERE / "estimates.json"
CHIPS = ("gpu-a100-80gb", "gpu-h100-80gb", "tpu-v5e-1", "cpu")
NAMES = tuple(path.name.removesuffix(".json.gz") for path in sorted((HERE / "workloads").glob("*.json.gz")))


FUSED = ("decoder-mixed_bfloat16-adamw", "mixture_of_experts-mixed_float16-adam", "lstm-float32-adam")
FUSING = ("A100", "H100")


def load(name: str, chip: str = "") -> Workload:
    """Return a stored workload: the one that was traced for a chip where there is one."""
    place = HERE / "workloads" / chip / f"{name}.json.gz"
    place = place if place.exists() else HERE / "workloads" / f"{name}.json.gz"
    return workload_from_dict(json.loads(gzip.decompress(place.read_bytes())))


def configs(workload: Workload) -> list[TrainConfig]:
    """Return a small batch, and one of eight times the size with accumulation."""
    small, precision = max(1, workload.local_batch // 2), Precision(workload.precision)
    return [
        TrainConfig(Batch(small), precision=precision),
        TrainConfig(Batch(8 * small, accumulation=4), precision=precision),
    ]


def estimates(name: str, chip: str) -> dict[str, Any]:
    """Return bytes and seconds of every component, by configuration."""
    workload, there = load(name, chip), cluster(chip)
    found = {}
    for config in configs(workload):
        answer = estimate(workload, config, there).to_dict()
        found[config.describe()] = {"memory": answer["memory"]["per_device_bytes"], "time": answer["time"]}
    return found


def trace_again() -> None:
    """Trace the models with attention or an LSTM for the chips on which it is one kernel."""
    from studies.memory_vs_compiler.estimates import workload_of
    from studies.memory_vs_compiler.points import TARGETS, Point

    for target in FUSING:
        chip = TARGETS[target]
        (HERE / "workloads" / chip).mkdir(exist_ok=True)
        for name in FUSED:
            model, precision, optimizer = name.split("-")
            workload = workload_of(Point(target, model, precision, optimizer, 1), None)
            text = json.dumps(workload_to_dict(workload))
            (HERE / "workloads" / chip / f"{name}.json.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def main() -> None:
    if "--trace" in sys.argv:
        trace_again()
    found = {name: {chip: estimates(name, chip) for chip in CHIPS} for name in NAMES}
    ESTIMATES.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
