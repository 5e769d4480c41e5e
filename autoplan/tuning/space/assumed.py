"""What `estimate` is of: the configuration that was asked for, and what was taken for granted."""

from __future__ import annotations

from autoplan.errors import ConfigError
from autoplan.tuning.request import EstimateRequest
from cost_models.config import Batch, Layout, Mesh, Precision, Remat, RematMode, TrainConfig
from cost_models.hardware.cluster import Cluster


def estimated_config(request: EstimateRequest, baseline: TrainConfig, cluster: Cluster) -> TrainConfig:
    """What was asked, the script's own where nothing was, all devices on `data` unless a mesh was given."""
    axes = request.mesh or {"data": cluster.devices}
    mesh = Mesh(axes.get("data", 1), axes.get("model", 1))
    if mesh.devices > cluster.devices:
        raise ConfigError(f"a mesh of {mesh.devices} devices is more than the {cluster.devices} of {cluster.name}")
    batch = Batch.from_global(
        request.batch_size or baseline.batch.global_size,
        data=mesh.data,
        accumulation=request.accumulation or baseline.batch.accumulation,
    )
    return baseline.with_(
        batch=batch,
        mesh=mesh,
        precision=Precision(request.precision) if request.precision else baseline.precision,
        remat=Remat(RematMode(request.remat)) if request.remat else baseline.remat,
        layout=Layout(request.shard_state or baseline.layout.shard_state),
        steps_per_execution=request.steps_per_execution or baseline.steps_per_execution,
        jit_compile=baseline.jit_compile if request.jit_compile is None else request.jit_compile,
    )


def assumed(request: EstimateRequest, baseline: TrainConfig, cluster: Cluster) -> list[str]:
    """What a reader would not guess of an estimate."""
    notes = []
    if request.mesh is None and cluster.devices > baseline.mesh.devices:
        own = baseline.mesh.devices
        notes.append(
            f"no --mesh was given, so the batch is split over all {cluster.devices} devices; `tune` starts from the "
            f"script's own mesh (--mesh data={own})"
        )
    if cluster.local and cluster.chip.kind == "cpu":
        notes.append("memory is that of the training alone, without what the process holds besides")
    return notes
