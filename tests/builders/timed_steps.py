"""Small steps whose seconds can be worked out by hand, and their configurations."""

from __future__ import annotations

from typing import Any

from cost_models.config import Batch, Mesh, TrainConfig
from cost_models.workload.affine import Affine
from cost_models.workload.workload import Kind, Workload
from tests.builders.workloads import B, Step, cluster

K = N = 4096
LOCAL = cluster("gpu", local=True)
"""A chip of 100 TFLOP/s and 1 TB/s that reaches both in full."""


def config(local: int = 4096, data: int = 1, accumulation: int = 1, **more: Any) -> TrainConfig:
    """A configuration of so many samples on a device, so many devices and micro-steps an update."""
    return TrainConfig(Batch(local, data, accumulation), mesh=Mesh(data), **more)


def one_product() -> Workload:
    """A step of a single GEMM: batch x K by K x N."""
    step = Step()
    x, w = step.input(B, K), step.weight("w", K, N)
    return step.workload(step.dot(x, w, (B, N), B, K, N))


def convolving(dtype: str) -> Workload:
    """A convolution of 3 x 3 at every place, 64 channels to 64."""
    step = Step()
    x, w = step.input(B, 56, 56, 64, dtype=dtype), step.weight("w", 3, 3, 64, 64, dtype=dtype)
    gemm = (Affine(1), Affine(0, 56 * 56), Affine(64), Affine(9 * 64))
    flops = Affine(0, 2 * 56 * 56 * 64 * 9 * 64)
    return step.workload(step.op(Kind.CONV, (x, w), (B, 56, 56, 64), dtype=dtype, gemm=gemm, flops=flops))
