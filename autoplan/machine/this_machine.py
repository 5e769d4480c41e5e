"""Reads facts about this machine: CPU cores, memory, accelerators, and environment variables that change its speed."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import psutil

from autoplan.machine import cgroups

_SETTINGS = ("CUDA_VISIBLE_DEVICES", "JAX_PLATFORMS", "XLA_FLAGS", "XLA_CLIENT_MEM_FRACTION", "OMP_NUM_THREADS")


def cpu_count() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def load_average() -> float | None:
    """Return the mean number of running or waiting processes over the last minute; None if the system has none."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def memory_bytes(root: Path = Path("/")) -> int:
    """Return the memory that processes may use: physical memory, or less if a control group limits it.

    root  the folder that contains `proc` and `sys`
    """
    return min([psutil.virtual_memory().total, *cgroups.limits_bytes(root)])


def processor_name() -> str:
    """Return the processor's name as the system reports it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def accelerators(root: Path = Path("/")) -> list[str]:
    """Return the accelerators that are visible without a driver: kernel entries of NVIDIA and AMD, TPU device files.

    root  the folder that contains `proc`, `sys` and `dev`
    """
    nvidia = [path.name for path in root.glob("proc/driver/nvidia/gpus/*")]
    amd = [path.name for path in root.glob("sys/class/kfd/kfd/topology/nodes/*")]
    tpu = [path.name for path in root.glob("dev/accel*")]
    return sorted(nvidia + amd + tpu)


def settings() -> dict[str, str]:
    """Return the environment variables that change the speed or size of programs; "not set" for an absent variable."""
    return {name: os.environ.get(name, "not set") for name in _SETTINGS}
