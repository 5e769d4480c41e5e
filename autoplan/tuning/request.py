"""What the planner is asked, what it answers, and what it says on the way: values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autoplan.jobs.client import SourceSpec
from autoplan.plan.records import CompilerEvidence, Failure, Measurement, Plan, Rejection

WITNESSES = 5
"""So many configurations are compiled unless told otherwise."""


@dataclass(frozen=True)
class TuneRequest:
    """What `autoplan tune` was asked. Batch range in samples; budget in seconds; headroom a fraction of capacity.

    memory_limit_bytes   what the training may take at most: of all devices of a processor together, of each elsewhere
    witnesses            so many configurations are compiled for hardware that is not here; None: a few, where that
                         can be done
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
    witnesses: int | None = None
    dry_run: bool = False
    scratch: bool = False

    @property
    def most_compiled(self) -> int:
        """So many configurations a compiler may be asked about: none where arithmetic alone was asked for."""
        if self.witnesses is not None:
            return self.witnesses
        return WITNESSES if self.measure else 0


@dataclass(frozen=True)
class EstimateRequest:
    """What `autoplan estimate` was asked: one configuration on one hardware. None means "as the source has it"."""

    source: SourceSpec
    hardware: str = "local"
    batch_size: int | None = None
    accumulation: int | None = None
    precision: str | None = None
    remat: str | None = None
    steps_per_execution: int | None = None
    jit_compile: bool | None = None
    mesh: Mapping[str, int] | None = None
    shard_state: bool = False
    headroom: float = 0.08
    explain: bool = False
    compile: bool = False


@dataclass(frozen=True)
class CompareRequest:
    """What `autoplan compare` was asked: one training on many kinds of hardware.

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
        """So many configurations the compiler of each hardware may be asked about."""
        return WITNESSES


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
    config: Mapping[str, Any] | None = None
    outcome: Measurement | CompilerEvidence | Failure | None = None
    whole_fit_seconds: float | None = None
    whole_fit_known: bool = False
    best_number: int | None = None
    seconds_left: float | None = None


@dataclass(frozen=True)
class Candidate:
    """A configuration on the shortlist with what is forecast for it. `baseline`: it is the script's own."""

    config: Mapping[str, Any]
    estimate: Mapping[str, Any] | None
    reason: str
    baseline: bool = False


@dataclass(frozen=True)
class TuneResult:
    """plan is None only for a dry run."""

    plan: Plan | None
    shortlist: tuple[Candidate, ...]
    rejected: tuple[Rejection, ...]
    forecast_seconds: float | None
    study_path: str | None
    written_to: Path | None
    interrupted: bool = False


Watch = Callable[[Event], None]
"""Somebody who is told of every Event, in the thread that tunes."""
