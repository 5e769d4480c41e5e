"""Estimates memory and time of a training configuration by plain arithmetic, with no framework and no device."""

from cost_models.candidates import Candidates, Table, price
from cost_models.config import AttentionMode, Batch, Layout, Mesh, Precision, Remat, RematMode, TrainConfig
from cost_models.errors import AutoplanError, ConfigError, HardwareError, WorkloadError
from cost_models.estimate import Estimate, estimate, estimate_many, explain
from cost_models.hardware.cluster import Chip, Cluster, Link
from cost_models.memory import MemoryCost, memory
from cost_models.time.cost import TimeCost
from cost_models.time.step import step_time
from cost_models.workload.workload import Op, Tensor, Variable, Workload

__all__ = [
    "AttentionMode",
    "AutoplanError",
    "Batch",
    "Candidates",
    "Chip",
    "Cluster",
    "ConfigError",
    "Estimate",
    "HardwareError",
    "Layout",
    "Link",
    "MemoryCost",
    "Mesh",
    "Op",
    "Precision",
    "Remat",
    "RematMode",
    "Table",
    "Tensor",
    "TimeCost",
    "TrainConfig",
    "Variable",
    "Workload",
    "WorkloadError",
    "estimate",
    "estimate_many",
    "explain",
    "memory",
    "price",
    "step_time",
]
