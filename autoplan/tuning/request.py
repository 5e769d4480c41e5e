"""`TuneRequest`, `EstimateRequest`, `CompareRequest`, `TuneResult`, `Event`: inputs and outputs of the planner."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autoplan import formatting
from autoplan.errors import ConfigError
from autoplan.plan import knobs
from autoplan.plan.records import CompilerEvidence, Failure, Measurement, Plan, Rejection
from autoplan.sources.source import SourceSpec
from cost_models.config import Batch, Mesh, TrainConfig
from cost_models.estimate import Estimate
from cost_models.hardware.cluster import Cluster

COMPILED_AT_MOST = 5
"""The largest number of configurations to compile where the user names none."""


@dataclass(frozen=True)
class TuneRequest:
    """The request of `autoplan tune`. Batch range in samples; budget in seconds; headroom a fraction of capacity.

    memory_limit_bytes   the most memory that the training may take: all devices of a CPU together, else each device
    compile_count        the largest number of configurations to compile for hardware that is not here; None: a few,
                         where a compiler is installed
    """

    source: SourceSpec
    hardware: str = "local"
    backend: str | None = None
    devices: int | None = None
    trials: int = 20
    budget_seconds: float | None = None
    effective_batch: tuple[int, int] | None = None
    fix: Mapping[str, str] = field(default_factory=dict)
    only: tuple[str, ...] = ()
    study: str | None = None
    headroom: float = 0.08
    memory_limit_bytes: int | None = None
    output: Path | None = None
    measure: bool = True
    compile_count: int | None = None
    dry_run: bool = False
    scratch: bool = False

    @property
    def most_compiled(self) -> int:
        """The largest number of configurations to compile; none where arithmetic alone was asked for."""
        if self.compile_count is not None:
            return self.compile_count
        return COMPILED_AT_MOST if self.measure else 0


@dataclass(frozen=True)
class EstimateRequest:
    """The request of `autoplan estimate`: one configuration on one hardware.

    settings   values of knobs under their flat names; the source's own values hold for all others
    mesh       devices by axis; None splits the batch over all devices of the hardware
    headroom   fraction of the capacity that stays free
    """

    source: SourceSpec
    hardware: str = "local"
    settings: Mapping[str, Any] = field(default_factory=dict)
    mesh: Mapping[str, int] | None = None
    headroom: float = 0.08
    explain: bool = False
    compile: bool = False

    def config(self, baseline: TrainConfig, cluster: Cluster) -> TrainConfig:
        """Return the configuration to estimate. ConfigError where mesh and hardware or batch do not match."""
        mesh = self._mesh(baseline, cluster)
        config = baseline.with_(batch=self._batch(baseline, cluster, mesh), mesh=mesh)
        for knob in knobs.KNOBS:
            if knob.name in self.settings and knob.field != "batch":
                config = knob.set(config, self.settings[knob.name])
        return config

    def _mesh(self, baseline: TrainConfig, cluster: Cluster) -> Mesh:
        """Return the mesh that was asked for, else all devices on the data axis."""
        if self.mesh is None and baseline.mesh.model > 1:
            raise ConfigError(
                f"the script splits its weights over devices ({baseline.mesh.describe()}), which is not yet estimated; "
                f"--mesh data={cluster.devices} estimates the same batch with the whole weights on every device"
            )
        axes = self.mesh or {"data": cluster.devices}
        mesh = Mesh(axes.get("data", 1), axes.get("model", 1))
        if mesh.devices > cluster.devices:
            raise ConfigError(
                f"a mesh of {mesh.devices} devices is larger than {cluster.name}, which has {cluster.devices}"
            )
        return mesh

    def _batch(self, baseline: TrainConfig, cluster: Cluster, mesh: Mesh) -> Batch:
        """Return the batch on this mesh. ConfigError names the meshes and the batch that would go together."""
        own = baseline.batch
        size = self.settings.get("global", own.global_size)
        if size % mesh.data:
            fitting = [axis for axis in range(1, cluster.devices + 1) if cluster.devices % axis == 0 == size % axis]
            meshes = formatting.listed([f"--mesh data={axis}" for axis in fitting], "or")
            raise ConfigError(
                f"a global batch of {size} does not divide over {mesh.data} devices on the data axis; what works "
                f"here: {meshes}, or another batch, such as --batch-size {-(-size // mesh.data) * mesh.data}"
            )
        accumulation = self.settings.get("accumulation", own.accumulation)
        return Batch.from_global(size, data=mesh.data, accumulation=accumulation)

    def assumptions(self, baseline: TrainConfig, cluster: Cluster) -> list[str]:
        """Return notes on what an estimate assumes that a reader would not guess."""
        notes = []
        if self.mesh is None and cluster.devices > baseline.mesh.devices:
            notes.append(
                f"no --mesh was given, so the batch is split over all {cluster.devices} devices; the script uses "
                f"{formatting.counted(baseline.mesh.devices, 'device')}, which `estimate --mesh "
                f"data={baseline.mesh.devices}` estimates"
            )
        if cluster.local and cluster.chip.kind == "cpu":
            notes.append(
                "the memory figures cover the training's state and buffers only; Python, libraries and data need more"
            )
        return notes


@dataclass(frozen=True)
class CompareRequest:
    """The request of `autoplan compare`: one training on many kinds of hardware.

    hardware, families   names, or families of the catalogue; neither: every TPU and GPU of it
    compile              ask the compilers of the named hardware, too
    """

    source: SourceSpec
    hardware: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    backend: str | None = None
    effective_batch: tuple[int, int] | None = None
    fix: Mapping[str, str] = field(default_factory=dict)
    headroom: float = 0.08
    by_cost: bool = False
    compile: bool = False

    @property
    def most_compiled(self) -> int:
        """The largest number of configurations to compile for each kind of hardware."""
        return COMPILED_AT_MOST


@dataclass(frozen=True)
class Event:
    """Something to show while tuning.

    kind: stage | note | trial_started | trial_phase | trial_finished | verification | finished
    whole_fit_seconds: of the script's own fit by what a trial measured; None where its length is not known
    whole_fit_known: whether its length is known, so that trials are ranked by it
    """

    kind: str
    text: str
    number: int | None = None
    config: TrainConfig | None = None
    outcome: Measurement | CompilerEvidence | Failure | None = None
    whole_fit_seconds: float | None = None
    whole_fit_known: bool = False
    best_number: int | None = None
    seconds_left: float | None = None


@dataclass(frozen=True)
class Candidate:
    """A configuration on the shortlist with what is estimated for it. `baseline`: it is the script's own."""

    config: TrainConfig
    estimate: Estimate | None
    reason: str
    baseline: bool = False


@dataclass(frozen=True)
class TuneResult:
    """plan is None only for a dry run, whose notes are in `notes`: a plan has its own."""

    plan: Plan | None
    shortlist: tuple[Candidate, ...]
    rejected: tuple[Rejection, ...]
    estimated_seconds: float | None
    study_path: str | None
    written_to: Path | None
    interrupted: bool = False
    notes: tuple[str, ...] = ()


Watch = Callable[[Event], None]
"""A function that receives every Event, in the thread that tunes."""


def silent(event: Event) -> None:
    """Show nothing."""
