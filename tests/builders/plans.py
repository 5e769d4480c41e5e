"""Plans written by hand, with figures of the kind that real studies give."""

from __future__ import annotations

from typing import Any

from autoplan.plan.records import Plan
from cost_models.config import TrainConfig
from cost_models.estimate import Estimate
from tests.builders.workloads import GIB

MIB = 2**20


def short(value: Any) -> Any:
    """The value with the six significant digits that a plan file keeps, all the way down."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: short(item) for key, item in value.items()}
    return [short(item) for item in value] if isinstance(value, list) else value


def train_config(**changes: Any) -> TrainConfig:
    """The configuration of `config`, as records hold it."""
    return TrainConfig.from_dict(config(**changes))


def config(**changes: Any) -> dict[str, Any]:
    """A configuration on one device; `batch=(global, accumulation)`."""
    size, accumulation = changes.pop("batch", (128, 1))
    data = changes.get("mesh", {"data": 1})["data"]
    return {
        "backend": "jax",
        "precision": "float32",
        "batch": {
            "local": size // data,
            "global": size,
            "accumulation": accumulation,
            "effective": size * accumulation,
        },
        "mesh": {"data": data, "model": 1},
        "layout": {"shard_state": False},
        "remat": {"mode": "none"},
        "steps_per_execution": 1,
        "jit_compile": True,
        "keep_freed_memory": False,
    } | changes


def measurement(
    micro_step_seconds: float = 0.004, *, size: int = 128, accumulation: int = 1, **changes: Any
) -> dict[str, Any]:
    """Figures that agree with one another: samples/s and updates/s follow from the micro-step."""
    figures = {
        "micro_step_seconds": micro_step_seconds,
        "micro_step_seconds_low": micro_step_seconds * 0.96875,
        "micro_step_seconds_high": micro_step_seconds * 1.0625,
        "update_seconds": micro_step_seconds * accumulation,
        "samples_per_second": size / micro_step_seconds,
        "updates_per_second": 1 / (micro_step_seconds * accumulation),
        "compute_micro_step_seconds": micro_step_seconds * 0.9375,
        "input_bound": False,
        "setup_seconds": 0.75,
        "compile_seconds": 1.25,
        "first_step_seconds": 1.5,
        "recompilations": 0,
        "cache_hits": 0,
        "cache_misses": 3,
        "peak_bytes": 512 * MIB,
        "peak_bytes_source": "resident",
        "groups": 8,
        "micro_steps": 1000,
        "group_seconds": [micro_step_seconds] * 8,
        "simulated_devices": False,
        "others_busy_processors": 0.0,
        "wall_seconds": 9.5,
        "notes": [],
    }
    return short(figures | changes)


def estimate(micro_step_seconds: float = 0.0035, *, total_bytes: int = 300 * MIB, **time: Any) -> dict[str, Any]:
    """The JSON of `autoplan estimate`."""
    figures = {
        "schema": 1,
        "hardware": "tpu-v4-8",
        "evidence": "analytic",
        "config": config(),
        "memory": {
            "per_device_bytes": {
                "parameters": 100 * MIB,
                "non_trainable": 0,
                "gradients": 100 * MIB,
                "optimizer": total_bytes - 250 * MIB,
                "accumulators": 0,
                "weight_copies": 0,
                "activations": 40 * MIB,
                "workspace": 4 * MIB,
                "inputs": 6 * MIB,
                "collective_buffers": 0,
                "host": 0,
                "total": total_bytes,
                "total_low": total_bytes - 20 * MIB,
                "total_high": total_bytes + 20 * MIB,
            },
            "capacity_bytes": 30 * GIB,
            "headroom": 0.08,
            "fits": True,
            "may_fit": True,
        },
        "time": {
            "micro_step_seconds": micro_step_seconds,
            "update_seconds": micro_step_seconds,
            "compute_seconds": micro_step_seconds * 0.5,
            "memory_seconds": micro_step_seconds * 0.25,
            "communication_seconds": 0.0,
            "overhead_seconds": micro_step_seconds * 0.25,
            "samples_per_second": 128 / micro_step_seconds,
            "mfu": 0.21,
            "bound": "compute",
        }
        | time,
        "accuracy": None,
        "model_flops": None,
        "coverage": {"unknown_ops": []},
    }
    return short(figures)


def analytic(micro_step_seconds: float = 0.0035, **changes: Any) -> Estimate:
    """The estimate whose JSON `estimate` is."""
    return Estimate.from_dict(estimate(micro_step_seconds, **changes))


def plain_plan(**changes: Any) -> dict[str, Any]:
    """A measured plan of a script that ran with jit_compile off, as plain values."""
    slow = config(jit_compile=False, batch=(32, 4))
    return {
        "schema": 1,
        "evidence": "measured",
        "source": {
            "kind": "script",
            "path": "train.py",
            "sha256": "ab" * 32,
            "fit": {
                "index": 1,
                "structure": "cd" * 32,
                "samples": 8192,
                "epochs": 10,
                "data": "arrays",
                "updates": 640,
            },
            "args": ["--learning-rate", "1e-4"],
        },
        "hardware": {
            "name": "cpu",
            "devices": 1,
            "kind": "cpu",
            "capacity_bytes": 12 * GIB,
            "memory_limit_bytes": None,
            "simulated": False,
            "description": "2 cores",
        },
        "environment": {
            "python": "3.11.7",
            "keras": "3.15.1",
            "backend": "jax",
            "backend_version": "0.10.2",
            "platform": "Linux x86_64",
            "autoplan": "0.1.0",
        },
        "config": config(),
        "baseline": {
            "config": slow,
            "measured": measurement(0.0625, size=32, accumulation=4, compile_seconds=None),
            "predicted": estimate(0.05),
            "failure": None,
        },
        "predicted": estimate(),
        "compiled": None,
        "measured": measurement(),
        "verification": {
            "pairs": 5,
            "speedup": 62.5,
            "speedup_low": 60.25,
            "speedup_high": 64.0,
            "faster": True,
            "numerics": "exact",
            "numerics_detail": "losses of 20 updates agree within 3.1e-07",
            "validation_ran": True,
            "checkpoint_saved": True,
            "remainder_ran": True,
        },
        "validation": {
            "rows": 256,
            "fits": True,
            "evidence": "analytic",
            "needed_bytes": 200 * MIB,
            "fitting_rows": None,
            "fitting_ran": False,
        },
        "whole_fit": {"seconds": 3.81, "baseline_seconds": 161.25},
        "rescue": None,
        "trials": [
            {
                "number": 0,
                "config": slow,
                "predicted_update_seconds": None,
                "outcome": "measured",
                "measurement": measurement(0.0625, size=32, accumulation=4, compile_seconds=None),
                "compiled": None,
                "failure": None,
                "whole_fit_seconds": 161.25,
            },
            {
                "number": 1,
                "config": config(),
                "predicted_update_seconds": 0.0035,
                "outcome": "measured",
                "measurement": measurement(),
                "compiled": None,
                "failure": None,
                "whole_fit_seconds": 3.81,
            },
            {
                "number": 2,
                "config": config(precision="mixed_float16"),
                "predicted_update_seconds": 0.004,
                "outcome": "failed",
                "measurement": None,
                "compiled": None,
                "failure": {
                    "kind": "nan",
                    "message": "the loss was NaN\nafter 3 updates",
                    "log": ".autoplan/study/trial-2.log",
                    "wall_seconds": 4.5,
                    "held_bytes": None,
                    "outside": False,
                    "needed_bytes": None,
                    "available_bytes": None,
                },
                "whole_fit_seconds": None,
            },
        ],
        "rejected": [
            {
                "config": config(batch=(4096, 1)),
                "stage": "infeasible",
                "reason": "needs 19.4 GiB of 12.0",
                "figures": {"needed_bytes": 20830591386},
                "nearest": "accumulation 4 would fit",
            }
        ],
        "notes": ["BatchNorm's statistics are per micro-batch"],
    } | changes


def rescued_plan(**changes: Any) -> dict[str, Any]:
    """A plan whose baseline, batch 512, runs out of 1 GiB: it is accumulation 4, the smallest change that runs."""
    own, least, less = config(batch=(512, 1)), config(batch=(128, 4)), config(batch=(256, 2))
    failure = {"kind": "oom", "message": "held 1.02 GiB of 1.00 GiB in phase compile", "held_bytes": 1096 * MIB}
    failed = {"measured": None, "failure": failure}
    found = {
        "config": least,
        "changed": ["accumulation 4"],
        "because": "accumulation keeps the effective batch; less is not enough: accumulation 2 ran out of memory",
        "baseline_bytes": 1096 * MIB,
        "usable_bytes": GIB,
        "tried": [
            {"config": least, "changed": ["accumulation 4"], "outcome": "runs", "evidence": "measured"},
            {
                "config": less,
                "changed": ["accumulation 2"],
                "outcome": "out_of_memory",
                "evidence": "measured",
                "reason": "held 1.01 GiB of 1.00 GiB in phase warm-up",
                "needed_bytes": 1034 * MIB,
            },
        ],
    }
    verification = {"pairs": 0, "speedup": None, "faster": False, "numerics": "not_compared"}
    measured = measurement(size=128, accumulation=4)
    return (
        plain_plan(
            config=least,
            baseline={"config": own, "predicted": estimate(0.05), **failed},
            measured=measured,
            verification=verification,
            whole_fit={"seconds": 3.81, "baseline_seconds": None},
            rescue=found,
        )
        | changes
    )


def plan(**changes: Any) -> Plan:
    return Plan.model_validate(plain_plan(**changes))
