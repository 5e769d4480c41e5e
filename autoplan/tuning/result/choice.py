"""Chooses a measured plan's configuration: the verified winner, else the baseline if legal, else the best trial.

Where options exclude the baseline, at least one other configuration was measured (`unmet_options`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autoplan import formatting
from autoplan.plan.records import Measurement, TrialRecord, Verification
from autoplan.tuning.estimates.findings import Findings
from autoplan.tuning.trials.runner import Tried
from autoplan.tuning.verification.verifier import Verified, unverified
from cost_models.config import TrainConfig


@dataclass(frozen=True)
class Choice:
    """The answer: a configuration, its measurement, what verified it, and the sentence that says why."""

    config: TrainConfig
    measurement: Measurement | None
    verification: Verification
    why: str


def choose(
    findings: Findings, tried: Tried, verified: Sequence[Verified] | None, ranked: Sequence[TrialRecord]
) -> Choice:
    """Return the configuration of the plan, its evidence, and why it was chosen."""
    reference = tried.reference.config
    baseline_runs = tried.baseline.measurement is not None
    named = "the baseline" if baseline_runs else "the smallest change that runs"
    last = next((one for one in reversed(verified or ()) if one.timed), None)
    if last is not None and last.holds:
        verification = last.verification if baseline_runs else _without_speedup(last.verification, reference)
        pairs = f"{last.verification.pairs} pairs of clean processes"
        why = f"the plan ({last.config.describe()}) was shown to be faster than {named} in {pairs}"
        return Choice(last.config, _of_its_trial(last.config, ranked), verification, why)
    others = any(one.config != reference for one in ranked)
    why = _why_not(last, named, interrupted=verified is None, others=others)
    if reference in findings.space.configs:
        return Choice(reference, tried.reference.measurement, unverified(why), f"{why}: the plan is {named}")
    refused = {one.config.describe() for one in verified or () if one.verification.numerics == "outside"}
    sound = [one for one in ranked if one.config.describe() not in refused]
    best = (sound or ranked)[0]
    of_best = [one.verification for one in verified or () if one.config == best.config]
    if not baseline_runs:
        verification = unverified(why)
    else:
        verification = of_best[-1] if of_best else unverified(_why_not_compared(verified))
    why = f"{why}; {findings.space.excluded_by} excludes {named}, so the plan is the best of the rest"
    return Choice(best.config, best.measurement, verification, why)


def _why_not_compared(verified: Sequence[Verified] | None) -> str:
    """Return why the training of a plan was not compared: the verifier compares it where time allows."""
    if verified is None:
        return "tuning was interrupted before that"
    return "what was left of the time budget was too short for that; a larger --budget leaves time for it"


def _of_its_trial(config: TrainConfig, ranked: Sequence[TrialRecord]) -> Measurement | None:
    """Return the trial's measurement, which began without a compilation cache, as the baseline's did."""
    return next((record.measurement for record in ranked if record.config == config), None)


def _why_not(last: Verified | None, named: str, *, interrupted: bool, others: bool) -> str:
    if last is None and interrupted:
        return "interrupted before a winner was verified"
    if last is None:
        return f"no trial was faster than {named}" if others else f"only {named} was measured"
    if last.out_of_time:
        return (
            "what was left of the time budget was too short to verify the best trial; a larger --budget leaves time "
            "for that"
        )
    verified = last.verification
    if verified.numerics == "outside":
        return f"the best trial gives different training results ({verified.numerics_detail})"
    if verified.speedup is None:
        ended = f"failed verification ({verified.failure})" if verified.failure else "was not verified"
        return f"the best trial {ended}" + ("" if verified.failure else f" ({verified.numerics_detail})")
    low, high = verified.speedup_low or 0.0, verified.speedup_high or 0.0
    interval = formatting.spread(low, high, f"95% confidence interval {low:.2f} to {high:.2f}")
    return f"the best trial was not shown to be faster in clean processes (speed-up {verified.speedup:.2f}, {interval})"


def _without_speedup(verification: Verification, reference: TrainConfig) -> Verification:
    """Return a verification without a speed-up over a baseline that does not run; its detail names the comparison."""
    detail = (
        f"{verification.numerics_detail}; {verification.speedup:.2f} times as fast as {reference.describe()}, "
        "the smallest change that runs"
    )
    return verification.model_copy(
        update={"speedup": None, "speedup_low": None, "speedup_high": None, "numerics_detail": detail}
    )
