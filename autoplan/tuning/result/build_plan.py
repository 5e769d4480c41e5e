"""Builds the `Plan` record from findings and trials: one function per kind of plan (analytic, compiled, measured)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from statistics import median

from autoplan import formatting
from autoplan.errors import NoFeasibleConfiguration
from autoplan.plan.records import (
    SCHEMA_VERSION,
    BaselineRecord,
    CompilerEvidence,
    Environment,
    Evidence,
    Measurement,
    Plan,
    Rejection,
    Rescue,
    TrialRecord,
    ValidationMemory,
    Verification,
    WholeFit,
)
from autoplan.tuning.compiler_check import CheckedByCompiler
from autoplan.tuning.estimates import calibration
from autoplan.tuning.estimates.findings import Findings
from autoplan.tuning.estimates.largest_part import largest_part_note
from autoplan.tuning.objective import PlannedFit, settled_compile_seconds
from autoplan.tuning.request import TuneRequest
from autoplan.tuning.result.attribution import contributions, idle_devices, measured_rates, predicted_rates, scaling
from autoplan.tuning.result.choice import Choice, choose
from autoplan.tuning.result.clean_runs import of_clean_runs, restated_trials, trial_runs, with_clean_run, with_interval
from autoplan.tuning.result.notes import baseline_notes, busy_note, notes_for, recompilation_note, setup_note
from autoplan.tuning.result.provenance import hardware_record, source_record
from autoplan.tuning.result.trial_notes import growth_note, trial_notes
from autoplan.tuning.space.held_batch import why_batch_held
from autoplan.tuning.space.known_issues import applying
from autoplan.tuning.space.prune import AS_GOOD, distance, not_split, nothing_fits
from autoplan.tuning.trials.runner import Tried
from autoplan.tuning.verification import validation_check
from autoplan.tuning.verification.process_spread import spread
from autoplan.tuning.verification.statistics import Timed
from autoplan.tuning.verification.verifier import Verified
from cost_models.config import TrainConfig


def analytic_plan(request: TuneRequest, findings: Findings) -> Plan:
    """Return the best plan by analytic estimates; a note of the plan says that nothing was measured.

    Raises NoFeasibleConfiguration where the best may not fit: only a compiler or a run could show it.
    """
    best = findings.shortlist[0]
    if not findings.estimates[best].fits:
        held = why_batch_held(findings.observation)
        raise NoFeasibleConfiguration(nothing_fits(list(findings.estimates.values()), held))
    best = _least_change(findings, best)
    why = f"{_best_of(findings)}; nothing was measured"
    untried = [*_untried(findings.space.baseline, best), *_idle(findings, best)]
    return _plan(
        request,
        findings,
        config=best,
        evidence=Evidence.ANALYTIC,
        baseline=_baseline(findings, None),
        notes=[why, *_baseline_too_large(findings), *untried, *_notes(findings, best)],
    )


def _best_of(findings: Findings) -> str:
    """Return how many legal configurations the plan was chosen from, and how many of them have no estimate."""
    legal = findings.space.configs
    best = f"the plan is the best of {formatting.counted(len(legal), 'configuration')} by analytic estimate"
    left_out = sum(config not in findings.estimates for config in legal)
    return f"{best} ({left_out} of them were ruled out without an estimate)" if left_out else best


def _least_change(findings: Findings, best: TrainConfig) -> TrainConfig:
    """Return the configuration with the fewest changes whose estimate is as good as the best one's."""
    known = findings.estimates
    most = AS_GOOD * known[best].seconds_per_sample
    alike = [one for one in findings.shortlist if one in known and known[one].fits]
    alike = [one for one in alike if known[one].seconds_per_sample <= most]
    return min(alike, key=lambda one: distance(findings.space.baseline, one))


def compiled_plan(request: TuneRequest, findings: Findings, checked: CheckedByCompiler) -> Plan:
    """Return the best plan that the target's compiler found to fit; without one, the best that was not refused.

    Raises NoFeasibleConfiguration where the compiler found every configuration too large.
    """
    winner = checked.winner
    best = checked.instead if winner is None else winner.config
    if best is None:
        raise NoFeasibleConfiguration(_all_too_large(checked) + not_split(why_batch_held(findings.observation)))
    compiled = [record for record in checked.records if record.compiled is not None]
    if winner is None:
        found = "no compiled configuration fits" if checked.records else "no configuration was compiled"
        why = f"{_best_of(findings)}; {found} ({checked.ended}), so the plan was not compiled"
        why += "" if findings.estimates[best].fits else "; it may not fit"
    else:
        why = (
            f"{_best_of(findings)}; {formatting.counted(len(compiled), 'configuration')} compiled to correct the "
            "estimates, the plan's among them"
        )
    return _plan(
        request,
        findings,
        config=best,
        evidence=Evidence.ANALYTIC if winner is None else Evidence.COMPILED,
        baseline=_baseline(findings, None),
        compiled=None if winner is None else winner.compiled,
        trials=list(checked.records),
        left_out=checked.rejected,
        notes=[
            why,
            *checked.notes,
            *_baseline_too_large(findings),
            *_untried(findings.space.baseline, best),
            *_idle(findings, best),
            *_notes(findings, best),
        ],
    )


def _baseline_too_large(findings: Findings) -> list[str]:
    """Return a note that the baseline may not run on this hardware, because its figures are shown beside the plan's."""
    own = findings.estimates.get(findings.space.baseline)
    if own is None or own.fits:
        return []
    hope = "may not fit" if own.may_fit else "does not fit"
    needs, usable = formatting.size(own.needed_bytes), formatting.size(own.usable_bytes)
    where = findings.cluster.name
    return [f"the baseline {hope} on {where}: it needs up to {needs} of {usable} per device (analytic)"]


def _all_too_large(checked: CheckedByCompiler) -> str:
    """Return the message where the compiler found every configuration too large, with the smallest need."""
    known = [one for one in checked.rejected if one.figures["needed_bytes"] is not None]
    least = min(known, key=lambda one: int(one.figures["needed_bytes"] or 0), default=None)
    smallest = "" if least is None else f"; the smallest is {least.config.describe()}: {least.reason}"
    return (
        f"none of the compiled configurations fits ({len(checked.rejected)} are too large{smallest}), and by their "
        "estimates no other configuration can fit. These may help: larger or more devices, a smaller "
        "--effective-batch, or fewer restrictions (--fix, --only)"
    )


def _untried(baseline: TrainConfig, best: TrainConfig) -> list[str]:
    """Return a note on the precision of a plan that was not run: only a run can compare training results."""
    if best.precision is baseline.precision:
        return []
    pair = f"{best.precision.value} and {baseline.precision.value}"
    advice = "compare a few updates before a long training, or pin the precision with --fix"
    return [f"training results of {pair} were not compared: {advice}"]


def measured_plan(
    request: TuneRequest,
    findings: Findings,
    tried: Tried,
    verified: Sequence[Verified] | None,
    ranked: Sequence[TrialRecord],
    repeats: Sequence[Timed] = (),
    validation: ValidationMemory | None = None,
) -> Plan:
    """Return the plan for the verified winner; else for the baseline; else, if that is excluded, for the best trial.

    verified  None where verification was interrupted; empty where no trial was worth it
    validation  whether the script's validation fits
    repeats   runs of configurations that ran more than once; from them every interval is widened to hold for other
              processes too
    """
    between = spread([*repeats, *trial_runs(tried, repeats)])
    tried, ranked = of_clean_runs(tried, repeats), [with_clean_run(record, repeats) for record in ranked]
    tried, ranked = restated_trials(tried, between), [with_interval(record, between) for record in ranked]
    choice = choose(findings, tried, verified, ranked)
    setup = None if request.source.kind == "instance" else _setup_note(tried)  # the code before fit is autoplan's own
    runs = [run.measurement.others_busy_processors for one in verified or () for run in one.runs]
    tried_beside = [one.measurement.others_busy_processors for one in tried.records if one.measurement is not None]
    busy = busy_note(runs or tried_beside, os.cpu_count() or 1, compared=bool(runs))
    chip = findings.cluster.chip
    usable = chip.usable_memory_bytes * findings.cluster.devices if chip.kind == "cpu" else None
    growth = growth_note(choice.measurement or tried.baseline.measurement, usable)
    recompiled = choice.measurement and recompilation_note(choice.measurement.recompilations, findings.observation)
    return _plan(
        request,
        findings,
        config=choice.config,
        evidence=Evidence.MEASURED,
        baseline=_baseline(findings, tried.baseline),
        measured=choice.measurement,
        verification=choice.verification,
        whole_fit=_whole_fit(findings, tried, choice),
        trials=[_with_whole_fit(record, findings, tried.records) for record in tried.records],
        rescue=tried.rescued,
        left_out=tried.left_out,
        validation=validation,
        notes=[
            choice.why,
            *([busy] if busy else []),
            *_explained(findings, tried, choice.config),
            *calibration.correction_notes(tried.records),
            f"trials ended: {tried.ended}",
            *([setup] if setup else []),
            *([growth] if growth else []),
            *trial_notes(findings.observation, [one.measurement for one in tried.records if one.measurement]),
            *([recompiled] if recompiled else []),
            *_notes(findings, choice.config),
        ],
    )


def _whole_fit(findings: Findings, tried: Tried, choice: Choice) -> WholeFit | None:
    """Return the time of the script's whole fit with and without the plan; None where its length is not known."""
    planned, own, chosen = PlannedFit.of(findings.observation), tried.baseline.measurement, choice.measurement
    if chosen is None:
        return None
    compiling = settled_compile_seconds(chosen, tried.records)
    seconds = planned.seconds(choice.config, chosen, compiling)
    if seconds is None or own is None:
        return None if seconds is None else WholeFit(seconds=seconds)
    compiling_own = settled_compile_seconds(own, tried.records)
    baseline_seconds = planned.seconds(findings.space.baseline, own, compiling_own)
    speedup = choice.verification.speedup
    if baseline_seconds is not None and speedup is not None:
        seconds = compiling + (baseline_seconds - compiling_own) / speedup
    return WholeFit(seconds=seconds, baseline_seconds=baseline_seconds)


def _with_whole_fit(record: TrialRecord, findings: Findings, records: Sequence[TrialRecord]) -> TrialRecord:
    if record.measurement is None:
        return record
    planned, config = PlannedFit.of(findings.observation), record.config
    compiling = settled_compile_seconds(record.measurement, records)
    return record.model_copy(update={"whole_fit_seconds": planned.seconds(config, record.measurement, compiling)})


def _setup_note(tried: Tried) -> str | None:
    """Return a note on the time before fit, by the medians of the trials."""
    measured = [record.measurement for record in tried.records if record.measurement]
    if not measured:
        return None
    return setup_note(median(one.setup_seconds for one in measured), median(one.wall_seconds for one in measured))


def _explained(findings: Findings, tried: Tried, config: TrainConfig) -> list[str]:
    """Return what each change brings alone, and how training scales: measured where there are trials, else analytic."""
    tiers = (measured_rates(tried.records), predicted_rates(findings))
    lines = scaling(findings, tiers), idle_devices(findings, config, tiers)
    return [*contributions(findings.space.baseline, config, tiers), *(one for one in lines if one)]


def _idle(findings: Findings, config: TrainConfig) -> list[str]:
    """Return notes on devices that baseline and plan leave idle on hardware that is not here."""
    own, devices = findings.space.baseline.mesh.devices, findings.cluster.devices
    used = (
        f"the baseline uses {own} of the {devices} devices, as the script does; `autoplan estimate` uses all devices "
        "unless --mesh is given, so its figures differ"
    )
    idle = idle_devices(findings, config, (predicted_rates(findings),))
    return [*([used] if own < devices else []), *([idle] if idle else [])]


def _notes(findings: Findings, config: TrainConfig) -> list[str]:
    own = findings.of(config)
    return list(
        dict.fromkeys(
            (
                *notes_for(config, findings.space.baseline, own.observation, own.cluster, own.versions),
                *findings.notes,
                *_baseline_notes(findings),
                *_excluded(findings),
            )
        )
    )


def _baseline_notes(findings: Findings) -> list[str]:
    baseline = findings.space.baseline
    estimate = findings.estimates.get(baseline)
    analytic = None if estimate is None else estimate.analytic
    return baseline_notes(baseline, findings.observation, findings.versions, analytic)


def _excluded(findings: Findings) -> list[str]:
    """Return a note that options exclude the baseline, which is then measured only to compare with."""
    by = findings.space.excluded_by
    return [] if by is None else [f"{by} excludes the baseline, which is only compared with"]


def _baseline(findings: Findings, record: TrialRecord | None) -> BaselineRecord:
    estimate = findings.estimates.get(findings.space.baseline)
    return BaselineRecord(
        config=findings.space.baseline,
        measured=record.measurement if record else None,
        failure=record.failure if record else None,
        predicted=estimate.analytic if estimate else None,
        excluded_by=findings.space.excluded_by,
        issues=[
            issue.id
            for issue in applying(findings.space.baseline, findings.observation, findings.versions)
            if issue.excludes_own
        ],
    )


def _plan(
    request: TuneRequest,
    findings: Findings,
    *,
    config: TrainConfig,
    evidence: Evidence,
    baseline: BaselineRecord,
    notes: list[str],
    compiled: CompilerEvidence | None = None,
    measured: Measurement | None = None,
    verification: Verification | None = None,
    whole_fit: WholeFit | None = None,
    trials: list[TrialRecord] | None = None,
    rescue: Rescue | None = None,
    left_out: Sequence[Rejection] = (),
    validation: ValidationMemory | None = None,
) -> Plan:
    estimate = findings.estimates.get(config)
    if evidence is not Evidence.MEASURED:
        validation = validation_check.by_estimate(findings.observation, estimate)
    largest = estimate and largest_part_note(estimate.analytic, findings.observation, findings.cluster)
    return Plan(
        schema_version=SCHEMA_VERSION,
        evidence=evidence,
        source=source_record(request, findings.observation),
        hardware=hardware_record(findings.cluster, request.memory_limit_bytes),
        environment=Environment(**findings.of(config).observation.environment),
        config=config,
        baseline=baseline,
        predicted=estimate.analytic if estimate else None,
        compiled=compiled,
        measured=measured,
        verification=verification,
        validation=validation,
        whole_fit=whole_fit,
        rescue=rescue,
        trials=trials or [],
        rejected=[*findings.rejected, *left_out],
        notes=[*notes, *filter(None, [largest])],
    )
