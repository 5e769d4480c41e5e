"""Trials and verifications of three configurations, and the plan that is made of them."""

from __future__ import annotations

from autoplan.plan.records import Failure, FailureKind, Measurement, TrialRecord, Verification
from autoplan.sources.source import SourceSpec
from autoplan.tuning.estimates.findings import Findings
from autoplan.tuning.request import TuneRequest
from autoplan.tuning.result.build_plan import measured_plan
from autoplan.tuning.space.legal_configs import Space
from autoplan.tuning.trials.runner import Tried
from autoplan.tuning.verification.verifier import Verified
from tests.builders import plans
from tests.builders.estimates import candidate
from tests.builders.observations import VERSIONS, cluster, config, observation

OWN, WINNER, OTHER = config(32, 8), config(256), config(128, 2)
REQUEST = TuneRequest(SourceSpec(kind="script", path="train.py", args=["--fast"], fit_index=2, sha256="0" * 64))


def record(number, own, seconds=None):
    if seconds is None:
        failure = Failure(kind=FailureKind.OOM, message="too large")
        return TrialRecord(number=number, config=own, outcome="failed", failure=failure)
    figures = plans.measurement(seconds, size=own.batch.global_size, accumulation=own.batch.accumulation)
    measured = Measurement.model_validate(figures)
    return TrialRecord(number=number, config=own, outcome="measured", measurement=measured)


def findings(legal=(OWN, WINNER, OTHER), **facts):
    """Findings in which an option excludes the baseline where it is not in `legal`."""
    excluded_by = None if OWN in legal else "--fix batch.accumulation=1"
    estimates = {WINNER: candidate(WINNER, update_seconds=0.1, headroom=0.08, samples=1024)}
    facts = observation(OWN, **facts)
    return Findings(
        facts, cluster(), VERSIONS, Space(OWN, tuple(legal), (), excluded_by), estimates, (WINNER, OTHER), ()
    )


def verified(own, *, faster=True, numerics="exact", speedup=1.5):
    told = Verification(
        pairs=3,
        speedup=speedup,
        speedup_low=speedup - 0.1,
        speedup_high=speedup + 0.1,
        faster=faster,
        numerics=numerics,
    )
    return Verified(own, told)


def decide(checked, *, baseline=0.01, legal=(OWN, WINNER, OTHER), reference=None, **facts):
    first, *rest = [record(0, OWN, baseline), record(1, WINNER, 0.02), record(2, OTHER, 0.02)]
    tried = Tried(first, reference or first, (first, *rest), "all 3 trials are done")
    ranked = [one for one in (*rest, first) if one.measurement and one.config in legal]
    return measured_plan(REQUEST, findings(legal, **facts), tried, checked, ranked)
