"""Tunes on this machine: runs trials, verifies the winner, and returns a measured plan."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from autoplan.errors import ConfigError
from autoplan.jobs.runner import JobRunner
from autoplan.plan.records import ValidationMemory
from autoplan.tuning.estimates.findings import Findings
from autoplan.tuning.request import Event, TuneRequest, TuneResult, Watch, silent
from autoplan.tuning.result.build_plan import measured_plan
from autoplan.tuning.result.finish import finish
from autoplan.tuning.result.unmet_options import check_options_kept
from autoplan.tuning.trials.runner import Reference, Runner, Tried
from autoplan.tuning.trials.storage import StudyPlace, study_name
from autoplan.tuning.trials.study import PREDICTED_FIRST, Study, knob_choices, refuse_unusable
from autoplan.tuning.trials.study_identity import identity, known_at_once, stem
from autoplan.tuning.verification import validation_check
from autoplan.tuning.verification.numerics import exactness_expected
from autoplan.tuning.verification.statistics import Timed
from autoplan.tuning.verification.verifier import MOST_PAIRS, PAIRS, Verified, Verifier, verification_seconds

VERIFICATION_ATTEMPTS = 2
TRIAL_SECONDS = 12.0
"""Assumed seconds of a trial besides its setup: compiling, warming up, eight groups with the input path, a few
without."""


def refuse_unusable_study(request: TuneRequest, jobs: JobRunner) -> None:
    """StudyError before the source is run, where the study that the user named cannot be used."""
    if request.study is not None:
        refuse_unusable(StudyPlace.choose(request.study, ""), known_at_once(jobs))


def measure(request: TuneRequest, jobs: JobRunner, findings: Findings, watch: Watch) -> TuneResult:
    """Trials, verification, plan. ConfigError where so few trials cannot reach what the options ask for."""
    space, observation = findings.space, findings.observation
    if request.trials == 1 and space.baseline not in space.configs:
        raise ConfigError(
            f"--trials 1 measures the baseline only, which {space.excluded_by} excludes; give --trials 2 or more"
        )
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
            watch(Event("note", f"{kept}; to measure again, remove {place}, or use --study PATH"))
        tried = _try(runner, findings, watch)
        known = () if findings.estimates else findings.notes
        check_options_kept(space, tried, runner.ranked(), trial_seconds=runner.reference_seconds, notes=known)
        if tried.interrupted:
            # The verification may be interrupted, too: the plan known so far is written before it begins.
            finish(request, measured_plan(request, findings, tried, None, runner.ranked()), findings, silent)
        validation = _validation(runner, findings, tried, watch, limited=request.memory_limit_bytes is not None)
        verified, repeats, interrupted = _verify(runner, tried, validation, watch)
        plan = measured_plan(request, findings, tried, verified, runner.ranked(), repeats, validation)
        result = finish(request, plan, findings, watch)
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


def _validation(
    runner: Runner, findings: Findings, tried: Tried, watch: Watch, *, limited: bool
) -> ValidationMemory | None:
    """Return whether the script's validation fits beside the reference; the same holds for every candidate."""
    config = tried.reference.config
    estimate = findings.estimates.get(config)
    if tried.interrupted or tried.reference.measurement is None:
        return validation_check.by_estimate(findings.observation, estimate)
    with suppress(KeyboardInterrupt):
        return validation_check.check(runner.jobs, findings.observation, estimate, config, watch, limited=limited)
    return None


def _verify(
    runner: Runner, tried: Tried, validation: ValidationMemory | None, watch: Watch
) -> tuple[list[Verified] | None, list[Timed], bool]:
    """Verify what is better than the reference, or where nothing is, repeat the reference; None: nothing came of it.

    Where options exclude the reference, training results of what will be the plan are compared in any case.

    Also returns every run of a configuration that ran more than once, which shows how far processes differ, and whether
    Ctrl-C ended it.
    """
    better = runner.worth_verifying(tried.reference)
    verifier = Verifier(
        runner.jobs,
        runner.observation,
        watch,
        most_pairs=PAIRS if tried.interrupted else MOST_PAIRS,
        validation=validation,
    )
    attempts = 1 if tried.interrupted else VERIFICATION_ATTEMPTS
    reference, first = tried.reference.config, tried.reference.measurement
    try:
        verified = verifier.verify_best(reference, better[:attempts])
        if reference not in runner.legal and not any(one.holds for one in verified):
            verified += verifier.compare_best(reference, runner.ranked(), verified)
        repeats = [run for one in verified for run in one.runs]
        if first is not None and not repeats and not tried.interrupted:
            repeats = verifier.repeat(reference, first)
    except KeyboardInterrupt:
        return None, [], True
    return verified, repeats, verifier.interrupted


def dry_run(request: TuneRequest, findings: Findings, *, here: bool) -> TuneResult:
    """Return the configurations that would be tried, and about how long the trials would take."""
    setup_seconds = findings.observation.setup_seconds
    trial_seconds = setup_seconds + TRIAL_SECONDS
    trials = min(request.trials, len(findings.shortlist) + 1)
    seconds = trials * trial_seconds + verification_seconds(
        trial_seconds, trial_seconds, setup_seconds, exact=_exact(findings)
    )
    notes = (*findings.observation.assumed, *findings.notes)
    shown = seconds if here else None
    return TuneResult(None, findings.candidates(), findings.rejected, shown, None, None, notes=notes)


def _exact(findings: Findings) -> bool:
    """Whether the best prediction's losses must be the baseline's."""
    facts, best = findings.observation, findings.shortlist[0]
    return exactness_expected(
        findings.space.baseline,
        best,
        random_numbers=facts.draws_random_numbers,
        batch_statistics=facts.takes_batch_statistics,
    )
