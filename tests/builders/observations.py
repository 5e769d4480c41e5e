"""Facts of a training and a machine, as a worker and the catalogue report them."""

from __future__ import annotations

from typing import Any

from autoplan.jobs.messages import Observation
from autoplan.tuning.space.known_issues import Versions
from cost_models.config import TrainConfig
from cost_models.hardware.cluster import Chip, Cluster, Link
from tests.builders.workloads import GIB

VERSIONS = Versions("3.15.1", "0.10.2", "cpu")


def config(size: int = 64, accumulation: int = 1, **changes: Any) -> TrainConfig:
    """A configuration; `size` is the global batch."""
    return TrainConfig.from_dict({"batch": {"global": size, "accumulation": accumulation}, **changes})


def observation(own: TrainConfig | None = None, **changes: Any) -> Observation:
    """A fit of 1024 samples for 3 epochs in arrays that can be re-batched, with nothing special about it."""
    own = own or config()
    samples = changes.get("samples", 1024)
    plain = {
        "config": own.to_dict(),
        "structure": "0" * 64,
        "parameters": 1000,
        "samples": samples,
        "epochs": 3,
        "steps_per_epoch": None if samples is None else -(-samples // own.batch.global_size),
        "explicit_steps_per_epoch": False,
        "data": "arrays",
        "rebatchable": True,
        "batch_norm": False,
        "random_layers": False,
        "recurrent": False,
        "unweighted_metrics": False,
        "custom_train_step": False,
        "schedule": False,
        "ema": False,
        "optimizer": "Adam",
        "layer_kinds": ["Dense"],
        "setup_seconds": 0.5,
        "devices": 1,
        "device_kind": "cpu",
        "device_memory_bytes": None,
        "environment": {
            "python": "3.11.9",
            "keras": "3.15.1",
            "backend": "jax",
            "backend_version": "0.10.2",
            "platform": "linux-x86_64",
            "autoplan": "0.1.0",
        },
    }
    return Observation.model_validate(plain | changes)


def cluster(
    devices: int = 1, *, kind: str = "cpu", usable_bytes: int = 8 * GIB, local: bool = True, pages: float | None = None
) -> Cluster:
    """Some devices of one chip; on a CPU more than one are simulated."""
    chip = Chip(
        name="a chip",
        kind=kind,
        peak_flops_per_second={"float32": 1e11},
        memory_bytes=2 * usable_bytes,
        usable_memory_bytes=usable_bytes,
        memory_bytes_per_second=1e10,
        kernel_launch_seconds=1e-6,
        dispatch_seconds=1e-4,
        fresh_page_bytes_per_second=pages,
    )
    link = Link("memory" if kind == "cpu" else "switch", 1e10, 0.0)
    return Cluster("a machine", chip, devices, inner_link=link, simulated=kind == "cpu" and devices > 1, local=local)
