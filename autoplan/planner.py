"""Implements `tune`, `estimate`, `compare` and `probe` for the CLI and the Python API: the entry to all planning.

Tuning goes source -> observe -> trace -> space -> prune -> trials or a compiler -> verification -> Plan. The training's
code runs in worker processes; this process imports no framework.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autoplan.comparison.compare import Sought, compared, sought
from autoplan.comparison.result import Comparison
from autoplan.errors import ConfigError
from autoplan.jobs import workers as worker_processes
from autoplan.jobs.budget import Clock
from autoplan.jobs.client import Client
from autoplan.jobs.runner import TRACED_ON
from autoplan.machine import local_hardware
from autoplan.plan import file
from autoplan.plan.records import Failure
from autoplan.sources import keras_backend
from autoplan.tuning.backend_choice import on_a_backend
from autoplan.tuning.estimates.configuration import ConfigurationEstimate, answered
from autoplan.tuning.estimates.findings import versions_of
from autoplan.tuning.estimates.largest_part import largest_part_note
from autoplan.tuning.measure import dry_run, measure, refuse_unusable_study
from autoplan.tuning.plan_for_absent_hardware import plan_for_absent_hardware
from autoplan.tuning.request import (
    Candidate,
    CompareRequest,
    EstimateRequest,
    Event,
    TuneRequest,
    TuneResult,
    Watch,
    silent,
)
from autoplan.tuning.result.notes import issue_notes, limit_note
from autoplan.tuning.survey import (
    found,
    found_on_all_backends,
    job_runner,
    measured_here,
    named_cluster,
    with_notes,
    workers_for,
)
from cost_models.config import Batch, Mesh
from cost_models.estimate import estimate as analytic_estimate
from cost_models.estimate import explain
from cost_models.hardware.cluster import Cluster

__all__ = [
    "Candidate",
    "CompareRequest",
    "Comparison",
    "EstimateRequest",
    "Event",
    "TuneRequest",
    "TuneResult",
    "Watch",
    "compare",
    "estimate",
    "probe",
    "silent",
    "tune",
]


def tune(request: TuneRequest, watch: Watch = silent) -> TuneResult:
    """Find, measure and verify the fastest way to run a training.

    Raises an AutoplanError for whatever the user can mend. Ctrl-C (KeyboardInterrupt) ends the trials, and once more
    the verification; a plan of what there is by then is written each time.
    """
    clock = Clock.start(request.budget_seconds)
    if request.output is not None:
        file.ensure_writable(request.output)
    afar = not local_hardware.is_local(request.hardware)
    return on_a_backend(request, watch, lambda chosen: _tune(request, chosen, clock, watch), afar=afar)


def _tune(request: TuneRequest, chosen: keras_backend.BackendChoice, clock: Clock, watch: Watch) -> TuneResult:
    with workers_for(chosen) as workers:
        cluster = named_cluster(request, workers, chosen.name, request.devices, watch)
        with job_runner(workers, request.source, chosen.name, cluster, clock, watch, scratch=request.scratch) as jobs:
            here = measured_here(request, jobs)
            if here and not request.dry_run:
                refuse_unusable_study(request, jobs)
            every_backend = request.backend == keras_backend.AUTO
            findings = found(request, jobs, watch, others_follow=every_backend)
            jobs = jobs.with_(baseline=findings.space.baseline, padding=findings.observation.padding)
            if every_backend:
                jobs, findings = found_on_all_backends(request, jobs, findings, workers, watch)
            findings = with_notes(findings, *chosen.notes, limit_note(request.memory_limit_bytes, cluster))
            if request.dry_run:
                return dry_run(request, findings, here=here)
            plan = measure if here else plan_for_absent_hardware
            return plan(request, jobs, findings, watch)


def estimate(request: EstimateRequest, watch: Watch = silent) -> ConfigurationEstimate:
    """Estimate memory and time of one configuration on one kind of hardware; where it was asked for, compile it too.

    Raises an AutoplanError for whatever the user can mend.
    """
    backend = keras_backend.choose(TRACED_ON).name
    with workers_for() as workers:
        cluster = workers.cluster(request.hardware, backend, None, lambda text: watch(Event("stage", text)))
        with job_runner(workers, request.source, backend, cluster, Clock.start(None), watch) as jobs:
            observation = jobs.observe(abstract=True)
            baseline = observation.config
            jobs = jobs.with_(baseline=baseline)
            config = request.config(baseline, cluster)
            traced = jobs.trace(config.with_(batch=Batch(config.batch.local), mesh=Mesh()))
            if isinstance(traced, Failure):
                raise ConfigError(f"the training step cannot be built under {config.describe()}: {traced.message}")
            _, workload = traced
            analytic = analytic_estimate(workload, config, cluster, headroom=request.headroom)
            compiled = None
            if request.compile:
                compiled = answered(jobs.compile(config, analytic=analytic), config)
            explanation = explain(workload, config, cluster) if request.explain else None
            largest = largest_part_note(analytic, observation, cluster)
            issues = issue_notes(config, observation, versions_of(observation, cluster))
            notes = (*issues, *observation.assumed, *request.assumptions(baseline, cluster))
            return ConfigurationEstimate(analytic, compiled, explanation, notes, largest)


def compare(request: CompareRequest, watch: Watch = silent) -> Comparison:
    """Compare hardware: where a training fits, its best configuration, speed and price. Nothing is run or measured.

    Raises an AutoplanError for whatever the user can mend; what is wrong with one kind of hardware stands in its row.
    """
    wanted = sought(request)
    return on_a_backend(request, watch, lambda chosen: _compare(request, chosen, wanted, watch), afar=True)


def _compare(
    request: CompareRequest, chosen: keras_backend.BackendChoice, wanted: Sequence[Sought], watch: Watch
) -> Comparison:
    with workers_for() as workers:

        def find(name: str) -> Cluster:
            return workers.cluster(name, chosen.name, None, lambda text: watch(Event("stage", text)))

        # An unknown name is an error before the source is run.
        clusters = [find(one.names[0]) for one in wanted]
        with job_runner(workers, request.source, chosen.name, clusters[0], Clock.start(None), watch) as jobs:
            return compared(request, jobs, wanted, find, watch)


def probe(backend: str | None = None, devices: int | None = None) -> dict[str, Any]:
    """Measure this machine's rates and store them for `local`. WorkerError where they cannot be measured."""
    name = keras_backend.choose(backend).name
    with Client(name) as client:
        return worker_processes.probe(client, name, devices)
