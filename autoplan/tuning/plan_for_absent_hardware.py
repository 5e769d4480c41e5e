"""Plans for hardware that is not present: by its compiler where that is installed, else by estimates alone."""

from __future__ import annotations

from dataclasses import replace

from autoplan.errors import HardwareError
from autoplan.jobs.runner import JobRunner
from autoplan.tuning import compiler_check
from autoplan.tuning.estimates.findings import Findings
from autoplan.tuning.request import TuneRequest, TuneResult, Watch
from autoplan.tuning.result.build_plan import analytic_plan, compiled_plan
from autoplan.tuning.result.finish import finish


def plan_for_absent_hardware(request: TuneRequest, jobs: JobRunner, findings: Findings, watch: Watch) -> TuneResult:
    """Return the plan by the compiler of the hardware where it can be asked, else by arithmetic alone.

    HardwareError where the user asked for compilations and there is no compiler.
    """
    why_not = compiler_check.why_not_here(jobs, findings.space) if request.most_compiled else None
    if request.most_compiled and why_not is None:
        try:
            return _compile(request, jobs, findings, watch)
        except HardwareError as error:  # the compiler is here, and does not take this hardware
            why_not = str(error)
    if why_not is not None and request.compile_count:
        raise HardwareError(why_not)
    if why_not is not None:
        findings = replace(findings, notes=(f"nothing was compiled: {why_not}", *findings.notes))
    return finish(request, analytic_plan(request, findings), findings, watch)


def _compile(request: TuneRequest, jobs: JobRunner, findings: Findings, watch: Watch) -> TuneResult:
    """Compile the best estimates until the winner is a compiled one."""
    place, checked = compiler_check.check(jobs, findings, watch, request.most_compiled, study=request.study)
    result = finish(request, compiled_plan(request, findings, checked), findings, watch)
    return replace(result, study_path=str(place), interrupted=checked.interrupted)
