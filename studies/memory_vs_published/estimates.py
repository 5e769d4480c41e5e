"""Estimates of a published row by `cost_models.memory`: as its software ran it, and as Keras would run it."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from cost_models import MemoryCost, Workload
from cost_models.hardware.lookup import cluster
from cost_models.hardware.platform import HOST, TargetPlatform
from cost_models.memory import program_memory
from cost_models.time.eager_torch import library_kernels
from cost_models.workload.serialization import workload_from_dict, workload_to_dict
from cost_models.workload.workload import Phase
from studies.memory_vs_published.cases import Case, Stack
from studies.time_vs_published.traces import Traced

_WITH_FUSED_ATTENTION = TargetPlatform.of(cluster("gpu-a100-80gb").chip)
"""The platform on which Keras chooses a fused attention kernel for 16 bits."""


@dataclass(frozen=True)
class Estimates:
    """Bytes of one device at the peak.

    as_run      by the kernels of the row's software
    operations  by Keras on PyTorch without a compiler, as `autoplan estimate` says: each operation writes its result
    compiled    by Keras on JAX, compiled by XLA
    state_bytes   parameters, the optimizer's slots, and gradients where they stay allocated
    """

    as_run: MemoryCost
    operations: MemoryCost
    compiled: MemoryCost
    state_bytes: int


def estimate(case: Case, folder: Path) -> Estimates:
    """Estimate a row. Traces are kept in the folder."""
    step = workload(case.traced, fused_attention=case.fused_attention, folder=folder)
    config = case.config
    on_torch = config.with_(backend="torch", jit_compile=False)
    operations = program_memory(step, on_torch, case.place)
    if case.stack is Stack.COMPILED:
        as_run = program_memory(step, config.with_(backend="torch"), case.place)
    else:
        as_run = program_memory(library_kernels(step, _HAS_KERNEL[case.stack]), on_torch, case.place)
    if case.keeps_gradients:
        as_run, operations = (with_all_gradients(cost) for cost in (as_run, operations))
    state_bytes = as_run.parameters + as_run.non_trainable + as_run.optimizer
    state_bytes += as_run.parameters if case.keeps_gradients else 0
    return Estimates(as_run, operations, program_memory(step, config, case.place), state_bytes)


def with_all_gradients(cost: MemoryCost) -> MemoryCost:
    """Return the bytes when gradients of all parameters are live at the peak.

    A gradient has its parameter's dtype. Parameters that are not trained are counted under `non_trainable`.
    """
    more = max(0, cost.parameters - cost.gradients)
    totals = {name: getattr(cost, name) + more for name in ("total", "total_low", "total_high")}
    return replace(cost, gradients=cost.gradients + more, **totals)


def _is_no_norm(layer: str, phase: Phase) -> bool:
    return not layer.rpartition("/")[2].startswith("norm")


def _is_no_activation(layer: str, phase: Phase) -> bool:
    return not layer.rpartition("/")[2].startswith("activation")


_HAS_KERNEL: Mapping[Stack, Callable[[str, Phase], bool] | None]
_HAS_KERNEL = {Stack.LIBRARY: None, Stack.WITHOUT_NORM: _is_no_norm, Stack.WITHOUT_GELU: _is_no_activation}
"""Whether the software of a row has one kernel for a layer of this name; None: for every layer."""


@lru_cache(maxsize=8)
def workload(what: Traced, *, fused_attention: bool, folder: Path) -> Workload:
    """Return the workload, from the folder or traced now.

    The answers that Keras got for the kernel of the row are forgotten: the kernel is the row's on any device.
    """
    kept = folder / f"{_name(what)}{'-fused' if fused_attention else ''}.json.gz"
    if kept.exists():
        return workload_from_dict(json.loads(gzip.decompress(kept.read_bytes())))
    traced = _trace(what, fused_attention)
    folder.mkdir(parents=True, exist_ok=True)
    kept.write_bytes(gzip.compress(json.dumps(workload_to_dict(traced)).encode(), 1, mtime=0))
    return traced


def _name(what: Traced) -> str:
    """Return a name of the trace that changes with the models and with the tracing."""
    from autoplan.worker import trace
    from studies.memory_vs_published.build import sources

    digest = hashlib.sha256(what.name.encode())
    for part in (*sorted(Path(trace.__path__[0]).glob("*.py")), *sources(what.kind)):
        digest.update(part.read_bytes())
    return digest.hexdigest()[:20]


def _trace(what: Traced, fused_attention: bool) -> Workload:
    from autoplan.worker.trace.target_platform import seen_as
    from studies.memory_vs_published.build import build
    from studies.time_vs_published.traces import trace

    with seen_as(_WITH_FUSED_ATTENTION if fused_attention else HOST):
        return replace(trace(what, build), answers=())
