"""Compares baseline and plan figure by figure: builds rows of values with evidence tiers, which reports then print."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from autoplan import formatting
from autoplan.machine.local_hardware import LOCAL
from autoplan.plan import knobs
from autoplan.plan.records import (
    FAILURES,
    BaselineRecord,
    CompilerEvidence,
    Evidence,
    Measurement,
    Plan,
    Rescue,
    Verification,
    WholeFit,
)
from autoplan.reports.host_bound import beside_computing
from autoplan.tuning.oom_rescue.outcome import described_changes
from autoplan.tuning.verification import validation_check
from cost_models.config import Batch, TrainConfig
from cost_models.estimate import Estimate
from cost_models.time.cost import TimeCost

_BASELINE = "the baseline, which is your own configuration"
"""The baseline where a report names it first."""
COMPILED_TIME = "compiled program, analytic rates"
"""Evidence of a time that the roofline model gives for a compiled program."""
WHOLE_FIT = "from measured times, compilation included"
"""Evidence of the time that the script's whole fit takes."""
PEAK_SOURCES = {
    "device": "measured on the device",
    "compiled": "compiled program",
    "resident": "measured as resident size",
}


@dataclass(frozen=True)
class Cell:
    """A figure as text, its evidence tier, and its interval if there is one."""

    text: str
    tier: str = ""
    interval: str = ""


@dataclass(frozen=True)
class Row:
    """One quantity of baseline and plan."""

    name: str
    baseline: Cell
    plan: Cell

    @property
    def evidence(self) -> str:
        """Return one tier if both cells share it, else the tier of each side."""
        tiers = {"baseline": self.baseline.tier, "plan": self.plan.tier}
        known = {side: tier for side, tier in tiers.items() if tier}
        if len(set(known.values())) <= 1:
            return next(iter(known.values()), "")
        return "; ".join(f"{side}: {tier}" for side, tier in known.items())


@dataclass(frozen=True)
class KnobDifference:
    """One key of a configuration whose value the plan changes."""

    key: str
    baseline: str
    plan: str


def rows(plan: Plan) -> list[Row]:
    """Return samples/s, time of an update, memory, MFU, compile time and whole fit of baseline and plan.

    The row of the micro-step is left out where the micro-batches differ in size, because the times do not compare, and
    where a micro-step is an update.
    """
    own, simulated, probed = plan.baseline, plan.hardware.simulated, plan.hardware.name == LOCAL
    timed = _timed_by_compiler(plan)
    compiled = _compiled(plan, own.config)
    baseline = _column(_Side(own.config, own.measured, own.predicted, simulated, compiled, timed, probed))
    chosen = _column(_Side(plan.config, plan.measured, plan.predicted, simulated, plan.compiled, timed, probed))
    if plan.baseline.failure is not None and plan.baseline.measured is None:
        baseline = _failed_column(plan.baseline)
    whole = [] if plan.whole_fit is None else [_whole_fit_row(plan.whole_fit)]
    own_batch, batch = own.config.batch, plan.config.batch
    if own_batch.global_size != batch.global_size or own_batch.accumulation == batch.accumulation == 1:
        del chosen["micro-step"]
    names = {"update": _update_of(own_batch, batch)}
    return [*(Row(names.get(name, name), baseline[name], chosen[name]) for name in chosen), *whole]


def differences(before: TrainConfig, after: TrainConfig) -> list[KnobDifference]:
    """Return the keys on which two configurations differ, nested keys as `batch.global`."""
    values = [(knob.spelling, knob.value(before), knob.value(after)) for knob in knobs.KNOBS]
    return [KnobDifference(key, _shown(old), _shown(new)) for key, old, new in values if old != new]


def headline(plan: Plan) -> str:
    """Return the result, and first of all that validation does not fit, where it does not."""
    validation = _validation(plan)
    return _result(plan) if validation is None else f"{validation}.\n{_result(plan)}"


def _validation(plan: Plan) -> str | None:
    """Return that validation has not enough memory, with the rows that would fit; None where it has, or none is run."""
    found, limit = plan.validation, plan.hardware.memory_limit_bytes or plan.hardware.capacity_bytes
    return None if found is None or limit is None else validation_check.verdict(found, limit)


def _result(plan: Plan) -> str:
    """Return the result in one sentence that claims no more than the evidence shows."""
    if plan.compiled is not None and plan.evidence is Evidence.COMPILED:
        memory = plan.compiled.memory
        size, capacity = formatting.size(memory.program_bytes), formatting.size(plan.hardware.capacity_bytes)
        ahead = formatting.size(memory.other_batches_bytes)
        beside = f", and fit holds the next batch of {ahead} beside it" if memory.other_batches_bytes else ""
        return (
            f"Nothing was run. {plan.compiled.target} compiled the plan for {plan.hardware.name}: it needs {size} of "
            f"{capacity} per device{beside}. Times are estimated with a roofline model.{_predicted(plan)}"
        )
    if plan.evidence is not Evidence.MEASURED:
        return f"Nothing was measured: every figure is {plan.evidence}.{_predicted(plan)}"
    if plan.config == plan.baseline.config:
        others = [trial for trial in plan.trials if trial.config != plan.config and trial.measurement is not None]
        shown = "shown to be faster" if others else "measured"
        return f"No other configuration was {shown}, so the plan is {_BASELINE}."
    failure = plan.baseline.failure
    if plan.rescue is not None:
        return f"{_rescued(plan, plan.rescue)} There is no speed-up, because the baseline does not run."
    if failure is not None:
        return (
            f"{_capitalized(_BASELINE)}, failed ({FAILURES[failure.kind]}). The plan is a configuration that runs. "
            "There is no speed-up, because the baseline does not run."
        )
    verification = plan.verification
    if verification is None or verification.speedup is None:
        alone = f"The plan was measured, but not in turn with {_BASELINE}."
        return f"{alone}{_in_its_trial(plan)} It therefore claims no speed-up."
    ratio = formatting.significant(verification.speedup)
    if not verification.faster:
        slower = verification.speedup_high is not None and verification.speedup_high < 1
        shown = "is slower" if slower else "was not shown to be faster"
        return (
            f"The plan {shown} than {_BASELINE}. {_excluding(plan)}.\n"
            f"Training with the plan is {ratio} times as fast. {_measured_in(plan)}"
        )
    whole = _whole_fit_line(plan, verification.speedup)
    after_compilation = plan.whole_fit is None or bool(whole)
    first = f"Training with the plan is {ratio} times as fast as with {_BASELINE}."
    return f"{first}\n{_measured_in(plan, after_compilation=after_compilation)}{whole}"


def _in_its_trial(plan: Plan) -> str:
    """Return how fast the plan's trial was compared with the baseline's; "" where one has no measurement."""
    own, chosen = plan.baseline.measured, plan.measured
    if own is None or chosen is None:
        return ""
    ratio = formatting.significant(chosen.samples_per_second / own.samples_per_second)
    return f" In one process each, training with the plan was {ratio} times as fast."


def _excluding(plan: Plan) -> str:
    by = plan.baseline.excluded_by
    return "Your options exclude the baseline" if by is None else f"{by} excludes the baseline"


def _predicted(plan: Plan) -> str:
    """Return a line on the predicted speed-up over the baseline, both from the same evidence tier."""
    if plan.config == plan.baseline.config:
        return f"\nNo other configuration is estimated to be notably faster, so the plan is {_BASELINE}."
    own_estimate = plan.baseline.predicted
    if own_estimate is not None and not own_estimate.fits:
        does = "may not fit" if own_estimate.may_fit else "does not fit"
        return f"\n{_capitalized(_BASELINE)}, {does} on this hardware (analytic). No speed-up can be predicted."
    if _timed_by_compiler(plan):
        programs = [_compiled(plan, config) for config in (plan.baseline.config, plan.config)]
        own, chosen = (_rate(None if one is None else one.time) for one in programs)
        tier = COMPILED_TIME
    else:
        own, chosen = (_rate(None if one is None else one.time) for one in (own_estimate, plan.predicted))
        tier = Evidence.ANALYTIC.value
    if not own or not chosen:
        return ""
    used, uses = plan.baseline.config.mesh.devices, plan.config.mesh.devices
    on = "" if used == uses else f" The baseline uses {formatting.counted(used, 'device')}, the plan {uses}."
    ratio = formatting.significant(chosen / own)
    return f"\nTraining with the plan is estimated to be {ratio} times as fast as with {_BASELINE} ({tier}).{on}"


def _timed_by_compiler(plan: Plan) -> bool:
    """Return whether the times of baseline and plan are both those of compiled programs: only like times compare."""
    programs = [_compiled(plan, config) for config in (plan.baseline.config, plan.config)]
    return all(one is not None and one.time is not None for one in programs)


def _compiled(plan: Plan, config: TrainConfig) -> CompilerEvidence | None:
    """Return the compiler's figures of a configuration; None where it was not compiled."""
    if config == plan.config and plan.compiled is not None:
        return plan.compiled
    found = [trial.compiled for trial in plan.trials if trial.config == config and trial.compiled is not None]
    return found[-1] if found else None


def _rate(time: TimeCost | None) -> float | None:
    """Return samples a second; None where the time is not known."""
    return None if time is None else time.samples_per_second


def _whole_fit_line(plan: Plan, speedup: float) -> str:
    """Return a line on the script's whole fit, where compilation makes its speed-up notably smaller or larger."""
    whole = plan.whole_fit
    if whole is None or whole.speedup is None or not whole.differs_from(speedup):
        return ""
    took = f"about {formatting.span(whole.seconds)} instead of {formatting.span(whole.baseline_seconds)}"
    ratio = formatting.significant(whole.speedup)
    return f"\nThe script's whole fit, including compilation, takes {took}: {ratio} times as fast."


def reasons(plan: Plan) -> list[str]:
    """Return what the plan changes and where the time goes; after a rescue also why it is the smallest change."""
    changed = differences(plan.baseline.config, plan.config)
    if not changed:
        return ["The plan changes nothing.", _where_time_goes(plan)]
    listed = "; ".join(f"{change.key} {change.baseline} → {change.plan}" for change in _essential(changed))
    least = [] if plan.rescue is None else [f"Why this is the smallest change: {plan.rescue.because}."]
    return [*least, f"The plan changes {listed}.", _where_time_goes(plan)]


def numerics(plan: Plan) -> str | None:
    """Return whether the plan trains as the baseline does, as verification found; None for the baseline itself."""
    if plan.verification is None or plan.config == plan.baseline.config:
        return None
    if plan.rescue is not None and plan.verification.numerics == "not_compared":
        return "Training results cannot be compared, because the baseline does not run."
    detail = plan.verification.numerics_detail
    if plan.verification.same_program:
        return f"No training results were compared, because the program is the same: {detail}."
    if plan.verification.numerics == "not_compared":
        return "Training results were not compared" + (f", because {detail}." if detail else ".")
    if plan.verification.failure and plan.verification.numerics != "outside":
        return (
            f"Whether training gives the same results is open, because {plan.verification.failure} (compared before "
            f"that: {detail})."
        )
    return _compared_results(plan, plan.verification) + (f" ({detail})." if detail else ".")


def _compared_results(plan: Plan, found: Verification) -> str:
    """Return the verdict with what was compared. Plans of earlier versions compared losses only."""
    compared = "baseline and plan" if plan.rescue is None else "the smallest change that runs and of the plan"
    updates = found.updates_compared
    if found.numerics == "outside":
        seeds = found.seeds_compared > 1 or updates is None
        where = ": the plan's results lie outside the variation between seeds" if seeds else ""
        return f"Training gives different results{where}"
    over = "" if updates is None else _over(plan, found, updates)
    if found.numerics == "within_seed_band":
        what = "the plan's losses lie" if updates is None else "losses and changes of the plan's weights lie"
        return f"Training gives similar results{over}: {what} within the variation between seeds"
    if updates is None:
        moved = plan.config.backend != plan.baseline.config.backend
        within = f"the losses of {compared} are equal within {'1e-3' if moved else '1e-5'}"
    else:
        what = "losses and weights" if found.state == "none" else "losses, weights and other variables"
        within = f"{what} of {compared} are equal within rounding"
    if found.samples_left_out:
        samples = formatting.counted(found.samples_left_out, "sample")
        left_out = f"Training differs by {samples} of each epoch that the plan leaves out"
        return f"{left_out}; results are the same{over}: {within}"
    return f"Training gives the same results{over}: {within}"


def _over(plan: Plan, found: Verification, updates: int) -> str:
    """Return which updates were compared: nothing is claimed of the others."""
    whole = plan.source.fit.updates
    of = f", of {whole:,} in the fit" if whole is not None and whole > updates else ""
    last = ", the partial last update of an epoch among them" if found.remainder_compared else ""
    return f" over the {updates} updates that were compared{of}{last}"


@dataclass(frozen=True)
class _Side:
    """The figures of one configuration.

    timed    whether baseline and plan both have compiled programs, whose times are then shown
    probed   whether the hardware's peak was measured, not taken from a data sheet
    """

    config: TrainConfig
    measured: Measurement | None
    predicted: Estimate | None
    simulated: bool
    compiled: CompilerEvidence | None = None
    timed: bool = False
    probed: bool = False

    @property
    def program_time(self) -> TimeCost | None:
        """Return the time of the compiled program, where it is shown: the other side has one too, or no estimate."""
        shown = self.timed or self.predicted is None
        return self.compiled.time if shown and self.compiled is not None else None

    @property
    def time(self) -> TimeCost | None:
        """Return the time of the compiled program where it is shown, else of the estimate; None without both."""
        if self.program_time is not None:
            return self.program_time
        return None if self.predicted is None else self.predicted.time

    @property
    def micro_step_seconds(self) -> float | None:
        """Return the estimated seconds of a micro-step; None if they are not known."""
        return None if self.time is None else self.time.micro_step_seconds

    @property
    def tier(self) -> str:
        """Return the evidence tier of times, marked where devices are simulated."""
        if self.measured is None and self.program_time is not None:
            return COMPILED_TIME
        if self.measured is None:
            return Evidence.ANALYTIC.value if self.predicted is not None else ""
        return self.named("measured")

    def named(self, tier: str) -> str:
        """Return a tier of this side's own run, marked where devices are simulated."""
        simulated = self.simulated or (self.measured is not None and self.measured.simulated_devices)
        return f"{tier}, simulated devices" if simulated else tier


def _column(side: _Side) -> dict[str, Cell]:
    return {
        "samples/s": _samples_per_second(side),
        "update": _seconds(side, side.config.batch.accumulation),
        "micro-step": _seconds(side, 1),
        "peak memory per device": _memory(side),
        "MFU": _mfu(side),
        "compile time": _compile_time(side),
    }


def _failed_column(baseline: BaselineRecord) -> dict[str, Cell]:
    kind = baseline.failure.kind if baseline.failure else "crash"
    names = ("update", "micro-step", "peak memory per device", "MFU", "compile time")
    return {"samples/s": Cell(FAILURES[kind], "measured")} | {name: Cell("—") for name in names}


def _update_of(own: Batch, chosen: Batch) -> str:
    """Return the name of the row of an update; it shows both sizes where the effective batches differ."""
    if own.effective == chosen.effective:
        return "update"
    return f"update of {own.effective:,} / {chosen.effective:,} samples"


def _seconds(side: _Side, micro_steps: int) -> Cell:
    """Return the time of a number of micro-steps."""
    measured = side.measured
    if measured is None:
        seconds = side.micro_step_seconds
        return Cell(formatting.seconds(seconds * micro_steps if seconds else None), side.tier)
    low, high = measured.micro_step_seconds_low * micro_steps, measured.micro_step_seconds_high * micro_steps
    interval = formatting.spread(low, high, formatting.seconds_range(low, high))
    return Cell(formatting.seconds(measured.micro_step_seconds * micro_steps), side.tier, interval)


def _samples_per_second(side: _Side) -> Cell:
    """Return the throughput with the interval of the micro-step."""
    measured = side.measured
    if measured is None:
        seconds, samples = side.micro_step_seconds, side.config.batch
        return Cell(formatting.rate(samples.global_size / seconds if seconds else None), side.tier)
    amount = measured.samples_per_micro_step
    low, high = amount / measured.micro_step_seconds_high, amount / measured.micro_step_seconds_low
    interval = formatting.spread(low, high, f"{formatting.rate(low)} to {formatting.rate(high)}")
    return Cell(formatting.rate(measured.samples_per_second), side.tier, interval)


def _memory(side: _Side) -> Cell:
    measured = side.measured
    if measured is not None and measured.peak_bytes is not None:
        tier = PEAK_SOURCES[measured.peak_bytes_source] if measured.peak_bytes_source else "measured"
        return Cell(formatting.size(measured.peak_bytes), side.named(tier))
    if side.compiled is not None:
        return Cell(formatting.size(side.compiled.memory.program_bytes), "compiled")
    if side.predicted is None:
        return Cell(formatting.NOT_KNOWN)
    memory = side.predicted.memory
    interval = f"{formatting.size(memory.total_low)} to {formatting.size(memory.total_high)}"
    return Cell(formatting.size(memory.total), Evidence.ANALYTIC.value, interval)


def _mfu(side: _Side) -> Cell:
    """Return model FLOPs utilization: the estimate's FLOPs over the peak, in the measured time if there is one."""
    mfu, predicted_seconds = None if side.time is None else side.time.mfu, side.micro_step_seconds
    if mfu is None or not predicted_seconds:
        return Cell(formatting.NOT_KNOWN)
    if side.measured is None:
        return Cell(formatting.percent(mfu), f"{side.tier}, probed peak" if side.probed else side.tier)
    whole = side.config.batch.global_size
    achieved = mfu * predicted_seconds / whole * side.measured.samples_per_second
    if achieved > 1:  # this machine's peak is itself a measurement, and was taken at a worse time than this one
        return Cell(formatting.NOT_KNOWN, "above the probed peak")
    peak = ", probed peak" if side.probed else ""
    return Cell(formatting.percent(achieved), f"{side.tier.replace('measured', 'measured time')}, analytic FLOPs{peak}")


def _compile_time(side: _Side) -> Cell:
    if side.compiled is not None:
        return Cell(formatting.seconds(side.compiled.compile_seconds), "compiled, on this machine")
    if side.measured is None or side.measured.compile_seconds is None:
        return Cell(formatting.NOT_KNOWN)
    return Cell(formatting.seconds(side.measured.compile_seconds), side.tier)


def _whole_fit_row(whole: WholeFit) -> Row:
    own, chosen = (
        Cell(formatting.span(seconds), "" if seconds is None else WHOLE_FIT)
        for seconds in (whole.baseline_seconds, whole.seconds)
    )
    return Row("whole fit", own, chosen)


def _rescued(plan: Plan, rescue: Rescue) -> str:
    """Return what the baseline needs, the memory that is available, and the smallest change that runs."""
    needs = ""
    if rescue.baseline_bytes is not None:
        there = "" if rescue.usable_bytes is None else f", and {formatting.size(rescue.usable_bytes)} are available"
        needs = f" (it needs at least {formatting.size(rescue.baseline_bytes)}{there})"
    baseline, least = plan.baseline.config, rescue.config
    words = f"{_capitalized(_BASELINE)}, runs out of memory{needs}. The smallest change that runs"
    changed = f"{words} is {described_changes(baseline, least)}."
    return changed if plan.config == rescue.config else f"{changed} The plan is faster than this change."


def _where_time_goes(plan: Plan) -> str:
    """Return where the time goes, by the estimates' largest parts, and whether the input pipeline was too slow."""
    before, after = _largest_part(plan.baseline.predicted), _largest_part(plan.predicted)
    if after is None:
        line = "Where the time goes is not known."
    elif before is None or plan.config == plan.baseline.config:
        line = f"The largest part of a micro-step is {after}; this figure is analytic."
    elif before == after:
        line = f"The largest part of a micro-step is still {after}; this figure is analytic."
    elif before.partition(" (")[0] == after.partition(" (")[0]:
        line = f"The largest part of a micro-step was {before} and is still {after}; both figures are analytic."
    else:
        line = f"The largest part of a micro-step was {before} and is now {after}; both figures are analytic."
    beside = beside_computing(plan)
    return line if beside is None else f"{line} {beside}"


def _largest_part(predicted: Estimate | None) -> str | None:
    """Return the part that bounds the estimated micro-step and its share: `launch overhead (82%)`."""
    if predicted is None:
        return None
    time = predicted.time
    share = formatting.percent(getattr(time.parts, time.bound) / time.micro_step_seconds)
    return f"{formatting.TIME_PARTS[time.bound]} ({share})"


def _essential(changed: list[KnobDifference]) -> list[KnobDifference]:
    """Return the differences without the keys that follow from others."""
    return [change for change in changed if change.key not in {"batch.local"}]


def _measured_in(plan: Plan, *, after_compilation: bool = False) -> str:
    """Return the confidence interval of the speed-up, and how it was measured."""
    verification = plan.verification
    if verification is None:
        return ""
    after = " after compilation, in" if after_compilation else " in"
    pairs = formatting.counted(verification.pairs, "alternating pair")
    measured = f"{_tier(plan).capitalize()}{after} {pairs} of clean processes"
    low, high = verification.speedup_low, verification.speedup_high
    if low is None or high is None:
        return f"{measured}."
    ends = f"{formatting.significant(low)} to {formatting.significant(high)}"
    return f"{measured}; {formatting.spread(low, high, f'the 95% confidence interval is {ends}')}."


def _tier(plan: Plan) -> str:
    simulated = plan.hardware.simulated or (plan.measured is not None and plan.measured.simulated_devices)
    return "measured on simulated devices" if simulated else "measured"


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]


def _shown(value: Any) -> str:
    return ("on" if value else "off") if isinstance(value, bool) else str(value)
