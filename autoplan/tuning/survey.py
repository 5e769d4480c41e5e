"""Runs all steps before the first trial: observes the fit, estimates its legal configurations and prunes them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from autoplan import formatting
from autoplan.errors import ConfigError, NoFeasibleConfiguration, NothingMeasured, WorkloadError
from autoplan.jobs.budget import Clock
from autoplan.jobs.messages import Observation
from autoplan.jobs.runner import JobRunner, temporary_folder
from autoplan.jobs.split_probe import with_probe
from autoplan.jobs.workers import Workers
from autoplan.sources import keras_backend
from autoplan.sources.source import SourceSpec
from autoplan.tuning.backend_choice import OtherBackend, with_other_backends
from autoplan.tuning.compiler_check import why_not_here
from autoplan.tuning.estimates.estimator import estimate_space, without_estimates
from autoplan.tuning.estimates.findings import Findings, versions_of
from autoplan.tuning.request import Event, TuneRequest, Watch
from autoplan.tuning.space.legal_configs import Space, baseline_alone, legal_configs
from cost_models.hardware.cluster import Cluster, limited


@contextmanager
def workers_for(chosen: keras_backend.BackendChoice | None = None) -> Iterator[Workers]:
    """Worker processes for the length of the block.

    chosen  a source that fails on a backend other than its own gets an error that says why this backend was chosen
    """
    with ExitStack() as stack:
        if chosen is not None:
            stack.enter_context(keras_backend.explain_failures(chosen))
        yield Workers(stack)


@contextmanager
def job_runner(
    workers: Workers,
    source: SourceSpec,
    backend: str,
    cluster: Cluster,
    clock: Clock,
    watch: Watch,
    *,
    scratch: bool = False,
) -> Iterator[JobRunner]:
    """A runner of jobs for one source on one cluster; its temporary files are removed at the end of the block."""
    with temporary_folder() as folder:
        yield JobRunner(
            workers[backend],
            source,
            backend,
            cluster,
            clock,
            logs=folder,
            scratch=folder if scratch else None,
            tracer=workers.tracer(),
            notify=lambda text: watch(Event("note", text)),
        )


def named_cluster(request: TuneRequest, workers: Workers, backend: str, devices: int | None, watch: Watch) -> Cluster:
    """Return the hardware of a request, with no more memory than the user allows."""
    cluster = workers.cluster(request.hardware, backend, devices, lambda text: watch(Event("stage", text)))
    return cluster if request.memory_limit_bytes is None else limited(cluster, request.memory_limit_bytes)


def measured_here(request: TuneRequest, jobs: JobRunner) -> bool:
    """Return whether trials measure candidates: they do unless the hardware is absent or measuring is off."""
    return request.measure and jobs.cluster.local


def found(request: TuneRequest, jobs: JobRunner, watch: Watch, *, others_follow: bool = False) -> Findings:
    """Observe the training on one backend, estimate its legal configurations and prune them.

    others_follow   other backends are asked after this one, so it is no error if only this one refuses `--fix`

    Where nothing fits with the whole state on each device, state that is split over the devices is considered too.
    NoFeasibleConfiguration where nothing fits; WorkloadError where nothing can be estimated and nothing is measured.
    """
    watch(Event("stage", f"inspecting the training up to its fit, on {jobs.backend}"))
    here = measured_here(request, jobs)
    observation = jobs.observe(abstract=not here)
    watch(Event("stage", "comparing an update with its halves"))
    observation = with_probe(jobs, observation, effective_batch_is_free=request.effective_batch is not None)
    try:
        space = _space(request, observation, jobs.cluster)
    except ConfigError as refused:
        alone = _baseline_alone(request, observation, jobs.cluster) if others_follow else None
        if alone is None:
            raise
        return _refused(observation, jobs.cluster, alone, f"not tried on {jobs.backend}: {refused}")
    jobs = jobs.with_(baseline=space.baseline)
    try:
        return _survey(request, jobs, observation, space, watch, decided=here)
    except NothingMeasured:
        raise
    except NoFeasibleConfiguration:
        split = _space(request, observation, jobs.cluster, shard_state=True)
        asked = not here and request.most_compiled > 0 and why_not_here(jobs, space) is None
        if split.configs != space.configs:
            watch(
                Event(
                    "note",
                    "nothing fits with the whole state on each device; considering split state",
                )
            )
        elif not asked:
            raise
        return _survey(request, jobs, observation, split, watch, decided=here or asked)


def found_on_all_backends(
    request: TuneRequest, jobs: JobRunner, own: Findings, workers: Workers, watch: Watch
) -> tuple[JobRunner, Findings]:
    """Add what is found on the other backends that are installed."""

    def find(there: JobRunner) -> Findings:
        cluster = named_cluster(request, workers, there.backend, None, watch)
        return found(request, there.with_(cluster=cluster), watch)

    names = [name for name in keras_backend.RUNNABLE if name != jobs.backend and keras_backend.installed(name)]
    others = {name: OtherBackend(jobs.with_(client=workers[name], backend=name, baseline=None), find) for name in names}
    jobs, findings = with_other_backends(jobs, own, others)
    if not findings.space.configs:
        raise ConfigError("; ".join(findings.notes))
    return jobs, findings


def _refused(observation: Observation, cluster: Cluster, space: Space, why: str) -> Findings:
    """Return findings on a backend on which the options leave no configuration."""
    versions = versions_of(observation, cluster)
    return Findings(observation, cluster, versions, space, estimates={}, shortlist=(), rejected=(), notes=(why,))


def with_notes(findings: Findings, *notes: str | None) -> Findings:
    """Return the findings with further notes; None adds nothing."""
    return replace(findings, notes=(*findings.notes, *(note for note in notes if note)))


def _space(request: TuneRequest, observation: Observation, cluster: Cluster, *, shard_state: bool = False) -> Space:
    return legal_configs(
        observation,
        cluster,
        versions_of(observation, cluster),
        fix=request.fix,
        only=request.only,
        effective_batch=request.effective_batch,
        shard_state=shard_state,
    )


def _baseline_alone(request: TuneRequest, observation: Observation, cluster: Cluster) -> Space | None:
    return baseline_alone(
        observation, cluster, fix=request.fix, only=request.only, effective_batch=request.effective_batch
    )


def _survey(
    request: TuneRequest, jobs: JobRunner, observation: Observation, space: Space, watch: Watch, *, decided: bool
) -> Findings:
    """Estimate and prune; where nothing can be traced, go without estimates.

    decided  trials or a compiler will decide where estimates are not sure
    """
    watch(Event("stage", f"estimating {formatting.counted(len(space.configs), 'configuration')}"))
    versions = versions_of(observation, jobs.cluster)
    try:
        return estimate_space(
            jobs,
            observation,
            space,
            versions,
            headroom=request.headroom,
            remat_asked="remat" in request.only,
            measurable=decided,
        )
    except WorkloadError as error:
        if not measured_here(request, jobs):
            raise
        findings = without_estimates(jobs, observation, space, versions, str(error))
        watch(Event("note", findings.notes[0]))
        return findings
