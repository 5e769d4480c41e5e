"""Writes the plan file at the end of tuning, and returns the plan with the shortlist as a `TuneResult`."""

from __future__ import annotations

from autoplan.plan import file
from autoplan.plan.records import Plan
from autoplan.tuning.estimates.findings import Findings
from autoplan.tuning.request import Event, TuneRequest, TuneResult, Watch


def finish(request: TuneRequest, plan: Plan, findings: Findings, watch: Watch) -> TuneResult:
    """Write the plan where the request wants it, and return it with the shortlist."""
    written = None if request.output is None else file.write(plan, request.output)
    watch(Event("finished", "the plan is written" if written else "the plan is ready", config=plan.config))
    return TuneResult(plan, findings.candidates(), findings.rejected, None, None, written)
