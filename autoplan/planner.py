"""The whole story, a line a step: source -> observe -> trace -> space -> prune -> search -> verify -> Plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any, TypeVar

from autoplan import formatting
from autoplan.comparison.compare import Sought, compared, sought
from autoplan.comparison.result import Comparison
from autoplan.errors import ConfigError, HardwareError, NoFeasibleConfiguration, SourceError, WorkerError, WorkloadError
from autoplan.jobs.budget import Clock
from autoplan.jobs.client import Client
from autoplan.jobs.messages import Job, JobKind, Observation
from autoplan.jobs.runner import TRACED_ON, JobRunner, replaced_once, temporary_folder
from autoplan.machine import hardware_profile, local_hardware
from autoplan.plan import file
from autoplan.plan.records import Failure, Plan
from autoplan.sources import keras_backend
from autoplan.tuning.backend_choice import Place, widened
from autoplan.tuning.compiler_check import Witnessed, why_not_here, witnessed
from autoplan.tuning.estimates.configuration import ConfigurationEstimate, answered
from autoplan.tuning.estimates.estimator import Findings, survey, versions_of, without_estimates
from autoplan.tuning.request import Candidate, CompareRequest, EstimateRequest, Event, TuneRequest, TuneResult, Watch
from autoplan.tuning.result.build_plan import analytic_plan, compiled_plan, measured_plan
from autoplan.tuning.result.notes import limit_note
from autoplan.tuning.space.legal_configs import Space, legal_configs
from autoplan.tuning.trials.identity import identity, known_at_once, stem
from autoplan.tuning.trials.runner import Reference, Runner, Tried
from autoplan.tuning.trials.storage import StudyPlace, study_name
from autoplan.tuning.trials.study import PREDICTED_FIRST, Study, knob_choices, refuse_unusable
from autoplan.tuning.verification.statistics import Timed, exactness_expected
from autoplan.tuning.verification.verifier import MOST_PAIRS, PAIRS, Verified, Verifier, verification_seconds
from cost_models.config import BACKENDS_WITH_DISTRIBUTION, Batch, Mesh
from cost_models.estimate import estimate as estimate_workload
from cost_models.estimate import explain
from cost_models.hardware.cluster import Cluster, limited

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

Answer = TypeVar("Answer")
VERIFICATION_ATTEMPTS = 2
PROBE_SECONDS = 600.0
TRIAL_SECONDS = 12.0
"""What a trial takes besides setting up: compiling, warming up, eight groups with the input path and a few without."""


def silent(event: Event) -> None:
    """A watcher that shows nothing."""


def tune(request: TuneRequest, watch: Watch = silent) -> TuneResult:
    """Find, measure and verify the fastest way to run a training.

    Raises an AutoplanError for whatever the user can mend. Ctrl-C (KeyboardInterrupt) ends the trials, and once more
    the verification; a plan of what there is by then is written each time.
    """
    clock = Clock.start(request.budget_seconds)
    if request.output is not None:
        file.ensure_writable(request.output)
    afar = not local_hardware.is_local(request.hardware)
    return _on_a_backend(request, watch, lambda chosen: _tune(request, chosen, clock, watch), afar=afar)


def _tune(request: TuneRequest, chosen: keras_backend.BackendChoice, clock: Clock, watch: Watch) -> TuneResult:
    with ExitStack() as stack:
        stack.enter_context(keras_backend.explain_failures(chosen))
        workers = Workers(stack)
        looks = stack.enter_context(temporary_folder())
        cluster = _limited(request, _cluster(workers, request.hardware, chosen.name, request.devices, watch))
        jobs = JobRunner(
            workers[chosen.name],
            request.source,
            chosen.name,
            cluster,
            clock,
            logs=looks,
            scratch=looks if request.scratch else None,
            tracer=workers.tracer(),
            notify=lambda text: watch(Event("note", text)),
        )
        if request.study is not None and _measured_here(request, jobs) and not request.dry_run:
            refuse_unusable(StudyPlace.choose(request.study, ""), known_at_once(jobs))
        watch(Event("stage", f"looking at the training up to its fit, on {chosen.name}"))
        findings = _found(request, jobs, watch)
        jobs = jobs.with_(baseline=findings.space.baseline)
        if request.backend == keras_backend.AUTO:
            places = _places(request, jobs, workers, watch)
            jobs, findings = widened(jobs, findings, places)
        limit = limit_note(request.memory_limit_bytes, cluster)
        findings = replace(findings, notes=(*findings.notes, *chosen.notes, *([limit] if limit else [])))
        if request.dry_run:
            return _dry_run(request, findings, here=_measured_here(request, jobs))
        if not _measured_here(request, jobs):
            return _planned_from_afar(request, jobs, findings, watch)
        return _measure(request, jobs, findings, watch)


def estimate(request: EstimateRequest, watch: Watch = silent) -> ConfigurationEstimate:
    """Estimate memory and time of one configuration on one kind of hardware; where it was asked for, compile it too.

    Raises an AutoplanError for whatever the user can mend.
    """
    backend = keras_backend.choose(TRACED_ON).name
    with ExitStack() as stack:
        workers = Workers(stack)
        looks = stack.enter_context(temporary_folder())
        cluster = _cluster(workers, request.hardware, backend, None, watch)
        jobs = JobRunner(workers[backend], request.source, backend, cluster, Clock.start(None), logs=looks)
        observation = jobs.observe(abstract=True)
        baseline = observation.config
        config, notes = request.config(baseline, cluster), request.assumptions(baseline, cluster)
        traced = jobs.with_(baseline=baseline).trace(config.with_(batch=Batch(config.batch.local), mesh=Mesh()))
        if isinstance(traced, Failure):
            raise ConfigError(f"the training step cannot be built under {config.describe()}: {traced.message}")
        estimated = estimate_workload(traced[1], config, cluster, headroom=request.headroom)
        compiled = None
        if request.compile:
            found = jobs.with_(baseline=baseline).compile(config, model_flops=estimated.model_flops)
            compiled = answered(found, config)
        explanation = explain(traced[1], config, cluster) if request.explain else None
        return ConfigurationEstimate(estimated, compiled, explanation, tuple(notes))


def compare(request: CompareRequest, watch: Watch = silent) -> Comparison:
    """On which hardware a training fits, how best there, how fast, and for how much: nothing is run or measured.

    Raises an AutoplanError for whatever the user can mend; what is wrong with one kind of hardware stands in its row.
    """
    wanted = sought(request)
    return _on_a_backend(request, watch, lambda chosen: _compare(request, wanted, chosen, watch), afar=True)


def _compare(
    request: CompareRequest, wanted: Sequence[Sought], chosen: keras_backend.BackendChoice, watch: Watch
) -> Comparison:
    with ExitStack() as stack:
        workers = Workers(stack)
        looks = stack.enter_context(temporary_folder())

        def find(name: str) -> Cluster:
            return _cluster(workers, name, chosen.name, None, watch)

        # A name that nobody knows is told before the source is run.
        clusters = [find(one.names[0]) for one in wanted]
        jobs = JobRunner(
            workers[chosen.name],
            request.source,
            chosen.name,
            clusters[0],
            Clock.start(None),
            logs=looks,
            tracer=workers.tracer(),
            notify=lambda text: watch(Event("note", text)),
        )

        def ask(there: JobRunner, findings: Findings) -> Witnessed:
            why_not = why_not_here(there, findings.space)
            if why_not is not None:
                raise HardwareError(why_not)
            return _said(request, None, there, findings, watch)[1]

        return compared(request, jobs, wanted, find, ask, watch)


def probe(backend: str | None = None, devices: int | None = None) -> dict[str, Any]:
    """This machine's real rates, measured now and kept for `local`. WorkerError when it cannot be measured."""
    name = keras_backend.choose(backend).name
    with Client(name) as client:
        return _probed(client, name, devices)


class Workers(dict[str, Client]):
    """Worker processes by backend, each backend's server started when it is first asked something."""

    def __init__(self, stack: ExitStack) -> None:
        super().__init__()
        self._stack = stack

    def __missing__(self, backend: str) -> Client:
        self[backend] = self._stack.enter_context(Client(backend))
        return self[backend]

    def tracer(self) -> Client | None:
        """Those that can trace a training step, whatever it trains on; None where JAX is not installed."""
        return self[TRACED_ON] if keras_backend.installed(TRACED_ON) else None


def _on_a_backend(
    request: TuneRequest | CompareRequest,
    watch: Watch,
    run: Callable[[keras_backend.BackendChoice], Answer],
    *,
    afar: bool,
) -> Answer:
    """Run on the chosen backend; where that was only preferred and the source does not run on it, on the default.

    afar  for hardware that is not here JAX is preferred to a default: its compilers can be asked
    """
    chosen = _backend(request, prefer=TRACED_ON if afar else None)
    try:
        return run(chosen)
    except SourceError:
        if chosen.instead_of is None:
            raise
        watch(
            Event("note", f"the training does not get to its fit on {chosen.name}: going on with {chosen.instead_of}")
        )
        return run(keras_backend.BackendChoice(chosen.instead_of))


def _backend(request: TuneRequest | CompareRequest, prefer: str | None) -> keras_backend.BackendChoice:
    """The backend of the baseline: what `--backend` or `--fix backend=` says, else the script's own.

    ConfigError when the two differ, and for a backend that is not there.
    """
    asked = None if request.backend is None else keras_backend.check_option(request.backend)
    fixed = request.fix.get("backend")
    if asked is not None and fixed not in (None, asked):
        raise ConfigError(f"--backend {asked} and --fix backend={fixed}: keep one of them")
    source = request.source
    script = source.path if source.kind in ("script", "builder") else None
    return keras_backend.choose(None if asked == keras_backend.AUTO else asked or fixed, script, prefer=prefer)


def _places(request: TuneRequest, jobs: JobRunner, workers: Workers, watch: Watch) -> dict[str, Place]:
    """The other backends that are installed."""

    def find(there: JobRunner) -> Findings:
        watch(Event("stage", f"looking at the training up to its fit, on {there.backend}"))
        cluster = _limited(request, _cluster(workers, request.hardware, there.backend, None, watch))
        return _found(request, there.with_(cluster=cluster), watch)

    others = [name for name in keras_backend.RUNNABLE if name != jobs.backend and keras_backend.installed(name)]
    return {name: Place(jobs.with_(client=workers[name], backend=name, baseline=None), find) for name in others}


def _measured_here(request: TuneRequest, jobs: JobRunner) -> bool:
    return request.measure and jobs.cluster.local


def _found(request: TuneRequest, jobs: JobRunner, watch: Watch) -> Findings:
    """What there is to know before a trial, of the training on one backend."""
    here = _measured_here(request, jobs)
    observation = jobs.observe(abstract=not here)
    space = _space(request, observation, jobs.cluster)
    jobs = jobs.with_(baseline=space.baseline)
    try:
        return _survey(request, jobs, observation, space, watch, decided=here)
    except NoFeasibleConfiguration:
        split = _space(request, observation, jobs.cluster, shard_state=True)
        asked = not here and request.most_compiled > 0 and why_not_here(jobs, space) is None
        if split.configs != space.configs:
            watch(Event("note", "nothing fits with the whole state on each device; looking at state that is split"))
        elif not asked:
            raise
        return _survey(request, jobs, observation, split, watch, decided=here or asked)


def _cluster(workers: Workers, name: str, backend: str, devices: int | None, watch: Watch) -> Cluster:
    """The hardware that was named. `local` is measured once for each backend, and the profile is kept.

    ConfigError for simulated devices on a backend that has none.
    """
    if devices is not None and devices > 1 and backend not in BACKENDS_WITH_DISTRIBUTION:
        raise ConfigError(
            f"--devices {devices}: keras.distribution splits a batch over devices on JAX only, and this training is on "
            f"{backend}; leave --devices out, or give --backend jax"
        )
    if not local_hardware.is_local(name):
        return local_hardware.resolve(name, devices=devices)
    profile = hardware_profile.load(backend, devices)
    if profile is None or hardware_profile.measured_under_load(profile):
        watch(Event("stage", f"measuring this machine's rates on {backend}{', again' if profile else ', once'}"))
        return local_hardware.resolve(name, devices=devices, profile=_probed(workers[backend], backend, devices))
    return local_hardware.resolve(name, devices=devices, profile=profile)


def _limited(request: TuneRequest, cluster: Cluster) -> Cluster:
    """The hardware with no more memory than the user grants."""
    return cluster if request.memory_limit_bytes is None else limited(cluster, request.memory_limit_bytes)


def _probed(client: Client, backend: str, devices: int | None) -> dict[str, Any]:
    job = Job(kind=JobKind.PROBE, backend=backend, devices=devices)
    result = replaced_once(lambda: client.run(job, time_limit_seconds=PROBE_SECONDS))
    if result.value is None:
        reason = result.failure.message if result.failure else "no answer"
        raise WorkerError(f"this machine could not be measured: {reason}")
    hardware_profile.save(result.value, backend, devices)
    return result.value


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


def _survey(
    request: TuneRequest, jobs: JobRunner, observation: Observation, space: Space, watch: Watch, *, decided: bool
) -> Findings:
    """Estimates and shortlist; where nothing can be traced the shortlist alone.

    `decided`: trials or a compiler will tell what fits, where estimates are not sure.
    """
    watch(Event("stage", f"estimating {formatting.counted(len(space.configs), 'configuration')}"))
    versions = versions_of(observation, jobs.cluster)
    try:
        return survey(
            jobs,
            observation,
            space,
            versions,
            headroom=request.headroom,
            remat_asked="remat" in request.only,
            measurable=decided,
        )
    except WorkloadError as error:
        if not _measured_here(request, jobs):
            raise
        findings = without_estimates(jobs, observation, space, versions, str(error))
        watch(Event("note", findings.notes[0]))
        return findings


def _dry_run(request: TuneRequest, findings: Findings, *, here: bool) -> TuneResult:
    """What would be tried, and about how long it would take where that is trials."""
    setup_seconds = findings.observation.setup_seconds
    trial_seconds = setup_seconds + TRIAL_SECONDS
    trials = min(request.trials, len(findings.shortlist) + 1)
    seconds = trials * trial_seconds + verification_seconds(
        trial_seconds, trial_seconds, setup_seconds, exact=_exact(findings)
    )
    return TuneResult(None, findings.candidates(), findings.rejected, seconds if here else None, None, None)


def _exact(findings: Findings) -> bool:
    """Whether the best prediction's losses must be the baseline's."""
    facts, best = findings.observation, findings.shortlist[0]
    return exactness_expected(
        findings.space.baseline, best, random_layers=facts.random_layers, batch_norm=facts.batch_norm
    )


def _planned_from_afar(request: TuneRequest, jobs: JobRunner, findings: Findings, watch: Watch) -> TuneResult:
    """For hardware that is not here: its compiler is asked where it can be; else arithmetic alone."""
    why_not = why_not_here(jobs, findings.space) if request.most_compiled else None
    if request.most_compiled and why_not is None:
        try:
            return _compile(request, jobs, findings, watch)
        except HardwareError as error:  # it is here, and does not take this hardware
            why_not = str(error)
    if why_not is not None and request.witnesses:
        raise HardwareError(why_not)
    if why_not is not None:
        findings = replace(findings, notes=(f"no compiler was asked: {why_not}", *findings.notes))
    return _finish(request, analytic_plan(request, findings), findings, watch)


def _compile(request: TuneRequest, jobs: JobRunner, findings: Findings, watch: Watch) -> TuneResult:
    """Compile the best predictions until the winner is a compiled one."""
    place, said = _said(request, request.study, jobs, findings, watch)
    result = _finish(request, compiled_plan(request, findings, said), findings, watch)
    return replace(result, study_path=str(place), interrupted=said.interrupted)


def _said(
    request: TuneRequest | CompareRequest, study: str | None, jobs: JobRunner, findings: Findings, watch: Watch
) -> tuple[StudyPlace, Witnessed]:
    own, name, most = identity(jobs, findings), stem(request.source), request.most_compiled
    return witnessed(jobs, findings, watch, most, study=study, name=name, identity=own)


def _measure(request: TuneRequest, jobs: JobRunner, findings: Findings, watch: Watch) -> TuneResult:
    """Trials, verification, plan."""
    space, observation = findings.space, findings.observation
    key = identity(jobs, findings)
    place = StudyPlace.choose(request.study, study_name(stem(request.source), key))
    jobs = jobs.with_(logs=place.folder)
    shortlist = findings.shortlist
    choices = knob_choices([space.baseline, *space.configs])
    kinds = len({(config.mesh, config.backend) for config in shortlist})
    with Study(place, shortlist, choices, key, first=max(PREDICTED_FIRST, kinds + 1)) as study:
        runner = Runner(
            jobs,
            study,
            observation,
            findings.estimates,
            legal=frozenset(space.configs),
            watch=watch,
            trials=request.trials,
            exact=_exact(findings),
        )
        if study.records:
            kept = f"{len(study.records)} trials of an earlier run are kept"
            watch(Event("note", f"{kept}; to measure afresh remove {place}, or use --study PATH"))
        tried = _try(runner, findings, watch)
        if tried.interrupted:
            # Whoever interrupts may not let the verification end: what is known so far is written before it begins.
            _finish(request, measured_plan(request, findings, tried, None, runner.ranked()), findings, silent)
        verified, repeats, interrupted = _verify(runner, tried, watch)
        plan = measured_plan(request, findings, tried, verified, runner.ranked(), repeats)
        result = _finish(request, plan, findings, watch)
    return replace(result, study_path=str(place), interrupted=tried.interrupted or interrupted)


def _try(runner: Runner, findings: Findings, watch: Watch) -> Tried:
    """The baseline, a reference where the baseline does not run, and the rest."""
    baseline = findings.space.baseline
    first = runner.run_baseline(baseline)
    reference = Reference(first) if first.measurement is not None else runner.run_reference(first)
    # A trial that ran out of memory was a short one, and no measure of how long others may take.
    wall_seconds = reference.record.measurement.wall_seconds if reference.record.measurement else 0.0
    seconds = max(runner.typical_seconds(), wall_seconds) or TRIAL_SECONDS
    runner.jobs = runner.jobs.patient(seconds)
    runner.reference_seconds = seconds
    ended, interrupted = "interrupted", True
    if not reference.interrupted:
        with suppress(KeyboardInterrupt):
            ended, interrupted = runner.run_rest(), False
    watch(Event("stage", f"trials ended: {ended}"))
    return Tried(
        first,
        reference.record,
        tuple(runner.study.records),
        ended,
        interrupted,
        rescued=reference.rescued,
        left_out=tuple(runner.left_out),
    )


def _verify(runner: Runner, tried: Tried, watch: Watch) -> tuple[list[Verified] | None, list[Timed], bool]:
    """Verify what is better than the reference, or where nothing is, repeat the reference; None: nothing came of it.

    Also returns every run of a configuration that ran more than once, which tells how far processes differ, and whether
    Ctrl-C ended it.
    """
    better = runner.worth_verifying(tried.reference)
    verifier = Verifier(
        runner.jobs,
        runner.observation,
        watch,
        most_pairs=PAIRS if tried.interrupted else MOST_PAIRS,
    )
    attempts = 1 if tried.interrupted else VERIFICATION_ATTEMPTS
    reference, first = tried.reference.config, tried.reference.measurement
    try:
        verified = verifier.verify_best(reference, better[:attempts])
        repeats = [run for one in verified for run in one.runs]
        if first is not None and not repeats and not tried.interrupted:
            repeats = verifier.repeat(reference, first)
    except KeyboardInterrupt:
        return None, [], True
    return verified, repeats, verifier.interrupted


def _finish(request: TuneRequest, plan: Plan, findings: Findings, watch: Watch) -> TuneResult:
    written = None if request.output is None else file.write(plan, request.output)
    watch(Event("finished", "the plan is written" if written else "the plan is ready", config=plan.config))
    return TuneResult(plan, findings.candidates(), findings.rejected, None, None, written)
