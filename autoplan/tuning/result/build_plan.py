"""What was found -> the Plan: which configuration is the answer, on which evidence, and why."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from autoplan import formatting
from autoplan.errors import NoFeasibleConfiguration
from autoplan.jobs.messages import Observation
from autoplan.plan.knobs import changes
from autoplan.plan.records import (
    DEFAULT_FUNCTION,
    SCHEMA_VERSION,
    BaselineRecord,
    CompilerEvidence,
    Environment,
    Evidence,
    FitRecord,
    HardwareRecord,
    Measurement,
    Plan,
    Rejection,
    Rescue,
    SourceRecord,
    TrialRecord,
    Verification,
    WholeFit,
)
from autoplan.sources.source import SourceSpec
from autoplan.tuning.compiler_check import CheckedByCompiler
from autoplan.tuning.estimates import calibration
from autoplan.tuning.estimates.estimator import Findings
from autoplan.tuning.objective import PlannedFit, settled_compile_seconds
from autoplan.tuning.request import TuneRequest
from autoplan.tuning.result.attribution import contributions, idle_devices, measured_rates, predicted_rates, scaling
from autoplan.tuning.result.notes import baseline_notes, busy_note, notes_for, setup_note
from autoplan.tuning.space.prune import AS_GOOD, distance, nothing_fits
from autoplan.tuning.trials.runner import Tried
from autoplan.tuning.verification.process_spread import Spread, restated, spread
from autoplan.tuning.verification.statistics import Timed
from autoplan.tuning.verification.verifier import Verified, unverified
from cost_models.config import TrainConfig
from cost_models.hardware.cluster import Cluster


@dataclass(frozen=True)
class Choice:
    """The answer: a configuration, its measurement, what verified it, and the sentence that says why."""

    config: TrainConfig
    measurement: Measurement | None
    verification: Verification
    why: str


def analytic_plan(request: TuneRequest, findings: Findings) -> Plan:
    """The best by arithmetic alone: nothing was measured, and the plan says so.

    NoFeasibleConfiguration where it may not fit: only a compiler or a run could show it.
    """
    best = findings.shortlist[0]
    if not findings.estimates[best].fits:
        raise NoFeasibleConfiguration(nothing_fits(list(findings.estimates.values())))
    best = _least_change(findings, best)
    why = f"best of {len(findings.estimates)} configurations by estimate; nothing was measured"
    untried = [*_untried(findings.space.baseline, best), *_idle(findings, best)]
    return _plan(
        request,
        findings,
        config=best,
        evidence=Evidence.ANALYTIC,
        baseline=_baseline(findings, None),
        notes=[why, *_baseline_too_large(findings), *untried, *_notes(findings, best)],
    )


def _least_change(findings: Findings, best: TrainConfig) -> TrainConfig:
    """Return the configuration with the fewest changes whose estimate is as good as the best one's."""
    known = findings.estimates
    most = AS_GOOD * known[best].seconds_per_sample
    alike = [one for one in findings.shortlist if one in known and known[one].fits]
    alike = [one for one in alike if known[one].seconds_per_sample <= most]
    return min(alike, key=lambda one: distance(findings.space.baseline, one))


def compiled_plan(request: TuneRequest, findings: Findings, checked: CheckedByCompiler) -> Plan:
    """The best that the target's compiler found to fit; where it found none, the best that it has not refused.

    NoFeasibleConfiguration where it found everything too large.
    """
    winner = checked.winner
    best = checked.instead if winner is None else winner.config
    if best is None:
        raise NoFeasibleConfiguration(_all_too_large(checked))
    compiled = [record for record in checked.records if record.compiled is not None]
    if winner is None:
        found = "none that was compiled was found to fit" if checked.records else "none was compiled"
        why = (
            f"best of {len(findings.estimates)} configurations by estimate; {found} ({checked.ended}), so the "
            "plan was not compiled"
        )
        why += "" if findings.estimates[best].fits else "; whether it fits is not sure"
    else:
        why = (
            f"best of {len(findings.estimates)} configurations by estimate, corrected by compiling "
            f"{len(compiled)} of them; this one was compiled"
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
    """Figures of a baseline stand beside the plan's, though on this hardware it may not run at all."""
    own = findings.estimates.get(findings.space.baseline)
    if own is None or own.fits:
        return []
    hope = "may not fit" if own.may_fit else "does not fit"
    needs, there = formatting.size(own.needed_bytes), formatting.size(own.usable_bytes)
    where = findings.cluster.name
    return [f"your own configuration {hope} on {where}: it needs up to {needs} of {there} a device (analytic)"]


def _all_too_large(checked: CheckedByCompiler) -> str:
    """Return a note on the smallest memory that the compiler reported for rejected configurations."""
    known = [one for one in checked.rejected if one.figures["needed_bytes"] is not None]
    least = min(known, key=lambda one: int(one.figures["needed_bytes"] or 0), default=None)
    what = "" if least is None else f", the least {least.config.describe()}: {least.reason}"
    return (
        f"none of the configurations that the compiler was asked about fits ({len(checked.rejected)} are too large"
        f"{what}), and nothing else may. What would fit: larger devices or more of them, a smaller --effective-batch, "
        "or fewer restrictions (--fix, --only)"
    )


def _untried(baseline: TrainConfig, best: TrainConfig) -> list[str]:
    """What only a run can show of a plan that nobody ran."""
    if best.precision is baseline.precision:
        return []
    training = f"training in {best.precision.value} was not compared with {baseline.precision.value}"
    return [f"{training}: compare a few updates before a long training, or pin the precision with --fix"]


def measured_plan(
    request: TuneRequest,
    findings: Findings,
    tried: Tried,
    verified: Sequence[Verified] | None,
    ranked: Sequence[TrialRecord],
    repeats: Sequence[Timed] = (),
) -> Plan:
    """The verified winner; else the baseline; else, where the baseline is ruled out or fails, the best that is left.

    `repeats` are runs of configurations that ran more than once: every interval is stated so that it holds for other
    processes too, as far as repeats show it. `verified` is None where verification was interrupted, and empty where
    nothing was worth it.
    """
    between = spread([*repeats, *_trial_runs(tried, repeats)])
    tried, ranked = _of_clean_runs(tried, repeats), [_with_clean_run(record, repeats) for record in ranked]
    tried, ranked = _restated(tried, between), [_with_interval(record, between) for record in ranked]
    choice = _choose(findings, tried, verified, ranked)
    setup = None if request.source.kind == "instance" else _setup_note(tried)  # what is before fit is autoplan's own
    runs = [run.measurement.others_busy_processors for one in verified or () for run in one.runs]
    tried_beside = [one.measurement.others_busy_processors for one in tried.records if one.measurement is not None]
    busy = busy_note(runs or tried_beside, os.cpu_count() or 1, compared=bool(runs))
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
        notes=[
            choice.why,
            *([busy] if busy else []),
            *_explained(findings, tried, choice.config),
            *calibration.correction_notes(tried.records),
            f"trials ended: {tried.ended}",
            *([setup] if setup else []),
            *_notes(findings, choice.config),
        ],
    )


def _trial_runs(tried: Tried, repeats: Sequence[Timed]) -> list[Timed]:
    """The trials of the configurations that ran again."""
    repeated = {run.config for run in repeats}
    seen = {id(run.measurement) for run in repeats}
    runs = [Timed(r.config, r.measurement) for r in tried.records if r.measurement is not None]
    return [run for run in runs if run.config in repeated and id(run.measurement) not in seen]


def _of_clean_runs(tried: Tried, runs: Sequence[Timed]) -> Tried:
    """Baseline and reference as verification measured them, in turn with the winner: figures that compare."""
    return replace(
        tried, baseline=_with_clean_run(tried.baseline, runs), reference=_with_clean_run(tried.reference, runs)
    )


def _with_clean_run(record: TrialRecord, runs: Sequence[Timed]) -> TrialRecord:
    """The middle one of a configuration's verification runs in place of its trial; compile time stays the trial's."""
    if record.measurement is None:
        return record
    config = record.config
    own = sorted((run.measurement for run in runs if run.config == config), key=lambda one: one.micro_step_seconds)
    if not own:
        return record
    middle = own[(len(own) - 1) // 2]
    kept = {name: getattr(record.measurement, name) for name in ("compile_seconds", "first_step_seconds")}
    return record.model_copy(update={"measurement": middle.model_copy(update=kept)})


def _restated(tried: Tried, between: Spread | None) -> Tried:
    records = tuple(_with_interval(record, between) for record in tried.records)
    baseline, reference = _with_interval(tried.baseline, between), _with_interval(tried.reference, between)
    return replace(tried, baseline=baseline, reference=reference, records=records)


def _with_interval(record: TrialRecord, between: Spread | None) -> TrialRecord:
    if record.measurement is None:
        return record
    return record.model_copy(update={"measurement": restated(record.measurement, between)})


def _choose(
    findings: Findings, tried: Tried, verified: Sequence[Verified] | None, ranked: Sequence[TrialRecord]
) -> Choice:
    reference = tried.reference.config
    baseline_runs = tried.baseline.measurement is not None
    named = "the baseline" if baseline_runs else "the least change that runs"
    last = verified[-1] if verified else None
    if last is not None and last.holds:
        verification = last.verification if baseline_runs else _without_speedup(last.verification, reference)
        words = ", ".join(changes(findings.space.baseline, last.config)) or "no change"
        why = f"{words}: shown faster than {named} in {last.verification.pairs} pairs of clean processes"
        return Choice(last.config, _of_its_trial(last.config, ranked), verification, why)
    others = any(one.config != reference for one in ranked)
    why = _why_not(last, named, interrupted=verified is None, others=others)
    if reference in findings.space.configs or not ranked:
        return Choice(reference, tried.reference.measurement, unverified(why), f"{why}: the plan is {named}")
    refused = {one.config.describe() for one in verified or () if one.verification.numerics == "outside"}
    sound = [one for one in ranked if one.config.describe() not in refused]
    best = (sound or ranked)[0]
    of_best = [one.verification for one in verified or () if one.config == best.config]
    verification = of_best[-1] if of_best and baseline_runs else unverified(why)
    why = f"{why}; your options exclude {named}, so the plan is the best of the rest"
    return Choice(best.config, best.measurement, verification, why)


def _of_its_trial(config: TrainConfig, ranked: Sequence[TrialRecord]) -> Measurement | None:
    """The trial's figures, taken like the baseline's: nothing compiled before. Verification runs found a warm cache."""
    return next((record.measurement for record in ranked if record.config == config), None)


def _why_not(last: Verified | None, named: str, *, interrupted: bool, others: bool) -> str:
    if last is None and interrupted:
        return "interrupted before a winner was verified"
    if last is None:
        return f"no trial was faster than {named}" if others else f"nothing was measured besides {named}"
    if last.out_of_time:
        return "the budget ended before the best trial was verified; a larger --budget leaves time for that"
    verified = last.verification
    if verified.numerics == "outside":
        return f"the best trial does not train the same ({verified.numerics_detail})"
    if verified.speedup is None:
        return f"the best trial failed verification ({verified.numerics_detail})"
    low, high = verified.speedup_low or 0.0, verified.speedup_high or 0.0
    interval = formatting.spread(low, high, f"95% interval {low:.2f} to {high:.2f}")
    return f"the best trial was not shown to be faster in clean processes (speed-up {verified.speedup:.2f}, {interval})"


def _without_speedup(verification: Verification, reference: TrainConfig) -> Verification:
    """Where the baseline does not run there is no speed-up over it; what was compared is kept in words."""
    detail = (
        f"{verification.numerics_detail}; {verification.speedup:.2f} times as fast as {reference.describe()}, "
        "the least change that runs"
    )
    return verification.model_copy(
        update={"speedup": None, "speedup_low": None, "speedup_high": None, "numerics_detail": detail}
    )


def _whole_fit(findings: Findings, tried: Tried, choice: Choice) -> WholeFit | None:
    """What the script's own fit takes under the plan and as it is; None where its length is not known."""
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
    """Of the trials' medians: what the script takes to get to its fit, against the whole."""
    measured = [record.measurement for record in tried.records if record.measurement]
    if not measured:
        return None
    return setup_note(median(one.setup_seconds for one in measured), median(one.wall_seconds for one in measured))


def _explained(findings: Findings, tried: Tried, config: TrainConfig) -> list[str]:
    """What each change brings alone, and how the training scales: measured where trials say it, else analytic."""
    tiers = (measured_rates(tried.records), predicted_rates(findings))
    lines = scaling(findings, tiers), idle_devices(findings, config, tiers)
    return [*contributions(findings.space.baseline, config, tiers), *(one for one in lines if one)]


def _idle(findings: Findings, config: TrainConfig) -> list[str]:
    """What the baseline uses of hardware that is not here, and why the plan leaves devices idle."""
    own, there = findings.space.baseline.mesh.devices, findings.cluster.devices
    used = (
        f"your own configuration uses {own} of the {there} devices, as the script is; `estimate` takes all of them "
        "unless --mesh says otherwise"
    )
    idle = idle_devices(findings, config, (predicted_rates(findings),))
    return [*([used] if own < there else []), *([idle] if idle else [])]


def _notes(findings: Findings, config: TrainConfig) -> list[str]:
    own = findings.of(config)
    return list(
        dict.fromkeys(
            (
                *notes_for(config, findings.space.baseline, own.observation, own.cluster, own.versions),
                *findings.notes,
                *baseline_notes(findings.space.baseline, findings.observation, findings.versions),
            )
        )
    )


def _baseline(findings: Findings, record: TrialRecord | None) -> BaselineRecord:
    estimate = findings.estimates.get(findings.space.baseline)
    return BaselineRecord(
        config=findings.space.baseline,
        measured=record.measurement if record else None,
        failure=record.failure if record else None,
        predicted=estimate.analytic if estimate else None,
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
) -> Plan:
    estimate = findings.estimates.get(config)
    return Plan(
        schema_version=SCHEMA_VERSION,
        evidence=evidence,
        source=_source(request, findings.observation),
        hardware=_hardware(findings.cluster, request.memory_limit_bytes),
        environment=Environment(**findings.of(config).observation.environment),
        config=config,
        baseline=baseline,
        predicted=estimate.analytic if estimate else None,
        compiled=compiled,
        measured=measured,
        verification=verification,
        whole_fit=whole_fit,
        rescue=rescue,
        trials=trials or [],
        rejected=[*findings.rejected, *left_out],
        notes=notes,
    )


def _source(request: TuneRequest, observation: Observation) -> SourceRecord:
    spec = request.source
    batch = observation.config.batch
    updates = None
    if observation.steps_per_epoch is not None:
        updates = observation.steps_per_epoch * observation.epochs // batch.accumulation
    fit = FitRecord(
        index=spec.fit_index,
        structure=observation.structure,
        samples=observation.samples,
        epochs=observation.epochs,
        data=observation.data,
        updates=updates,
    )
    return SourceRecord(kind=spec.kind, path=_named(spec), sha256=spec.sha256, fit=fit, args=list(spec.args))


def _named(spec: SourceSpec) -> str:
    """The source as `autoplan train` reads it back: a file, a file with its function, or a module."""
    if spec.kind == "script" and spec.module:
        return f"-m {spec.module}"
    if spec.kind == "builder" and spec.module:
        return f"{spec.module}:{spec.function}"
    if spec.kind == "builder" and spec.function != DEFAULT_FUNCTION:
        return f"{spec.path}:{spec.function}"
    return spec.path or spec.function


def _hardware(cluster: Cluster, memory_limit_bytes: int | None) -> HardwareRecord:
    return HardwareRecord(
        name=cluster.name,
        devices=cluster.devices,
        kind=cluster.chip.kind,
        capacity_bytes=cluster.chip.usable_memory_bytes,
        memory_limit_bytes=memory_limit_bytes,
        simulated=cluster.simulated,
        description=cluster.chip.name,
    )
