"""How much time does a trial take in addition to compilation and micro-steps?

    python -m studies.overhead [--trials N] [SCRIPT ...]

Runs trials as `autoplan tune` does and adds up their phases. Every trial of a script has another configuration, so that
no trial finds its training step in the compilation cache.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from autoplan.jobs.budget import Clock
from autoplan.jobs.client import Client
from autoplan.jobs.messages import Job, JobResult
from autoplan.jobs.runner import JobRunner
from autoplan.machine import local_hardware
from autoplan.plan.records import Failure, Measurement
from autoplan.sources import source
from cost_models.config import Batch, Precision, TrainConfig
from studies import harness

HERE = Path(__file__).resolve().parent
TARGET_SECONDS = 3.0
TARGET_GROUP_SECONDS = 0.5
SCRIPTS = {
    "mlp": (),
    "decoder": (),
    "resnet20": (),
    "subclassed": (),
    "arguments_callbacks": ("--learning-rate", "0.001"),
}
PARTS = ("start", "setup", "fit set-up", "end of fit", "memory question", "fixed batch and exit", "other")


def variants(baseline: TrainConfig) -> list[TrainConfig]:
    """Return the baseline and configurations that each compile to another program."""
    effective = baseline.batch.effective
    halves = [Batch(effective // parts, 1, parts) for parts in (2, 4) if effective % parts == 0]
    return [
        baseline,
        baseline.with_(steps_per_execution=8),
        *(baseline.with_(batch=half) for half in halves),
        *(baseline.with_(batch=half, steps_per_execution=8) for half in halves),
        baseline.with_(precision=Precision.MIXED_BFLOAT16),
        baseline.with_(precision=Precision.MIXED_BFLOAT16, steps_per_execution=8),
    ]


def parts_of(result: JobResult, measured: Measurement, steps_per_execution: int) -> dict[str, float]:
    """Return the seconds of a trial: compilation, micro-steps, and each part of the rest.

    The worker reports the phases. "compile" lasts from the start of the fit to the end of its first micro-step.
    "measure" lasts from the end of warm-up (whose last group is measured already) to the end of the fit. The last phase
    lasts to the end of the process.
    """
    phases = dict(result.phases)
    compiling = phases.pop("compile", 0.0)
    compile_seconds = min(measured.compile_seconds or 0.0, compiling)
    step = measured.micro_step_seconds
    first = min(step, compiling - compile_seconds)
    warm_up = phases.pop("warm-up", 0.0)
    measuring = phases.pop("measure", 0.0)
    a_group = measured.micro_steps / measured.groups
    counted = min(sum(measured.group_seconds[1:]) * a_group, measuring)
    alone = phases.pop("measure without input", 0.0)
    alone_steps = min(without_input_seconds(measured, steps_per_execution), alone)
    parts = {
        "compilation": compile_seconds,
        "micro-steps": first + warm_up + counted + alone_steps,
        "start": phases.pop("start", 0.0),
        "setup": phases.pop("setup", 0.0),
        "fit set-up": compiling - compile_seconds - first,
        "end of fit": measuring - counted,
        "memory question": phases.pop("memory", 0.0),
        "fixed batch and exit": alone - alone_steps,
    }
    rest = max(0.0, result.wall_seconds - sum(result.phases.values()))
    return {**parts, "other": sum(phases.values()) + rest}


def without_input_seconds(measured: Measurement, steps_per_execution: int) -> float:
    """Return the seconds of micro-steps on a fixed batch: one call of the program, and four groups of whole calls."""
    calls = max(1, round(TARGET_GROUP_SECONDS / (2 * measured.group_seconds[-1] * steps_per_execution)))
    return (measured.compute_micro_step_seconds or 0.0) * steps_per_execution * (1 + 4 * calls)


class Recorder:
    """A client that also stores the result of each job."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.results: list[JobResult] = []

    def run(self, job: Job, **limits: Any) -> JobResult:
        self.results.append(self._client.run(job, **limits))
        return self.results[-1]


def measure(jobs: JobRunner, recorder: Recorder, trials: int) -> list[dict[str, Any]]:
    """Run the trials of one script as tuning does. Returns one row per trial."""
    baseline = jobs.observe().config
    jobs = jobs.with_(baseline=baseline)
    rows = []
    for number, config in enumerate(variants(baseline)[:trials]):
        outcome = jobs.measure(config, f"trial-{number}")
        if isinstance(outcome, Failure):
            raise harness.StudyFailed(f"{config.describe()}: {outcome.kind.value}: {outcome.message}")
        result = recorder.results[-1]
        parts = parts_of(result, outcome, config.steps_per_execution)
        rest = sum(parts[name] for name in PARTS)
        rows.append(
            {"trial": number, "configuration": config.describe(), "wall": result.wall_seconds, **parts}
            | {"overhead": rest, "share": rest / result.wall_seconds}
        )
    return rows


def study(name: str, trials: int) -> list[dict[str, Any]]:
    """Run the trials of one script on a new worker server."""
    spec = source.resolve(str(harness.SCRIPTS / f"{name}.py"), SCRIPTS[name])
    origin = harness.provenance()
    with harness.lab() as lab, Client() as client:
        recorder = Recorder(client)
        spec = spec.model_copy(update={"directory": str(lab.folder)})
        jobs = JobRunner(recorder, spec, "jax", local_hardware.resolve("cpu"), Clock.start(None), logs=lab.folder)
        rows = measure(jobs, recorder, trials)
        first = recorder.results[0]
    print(
        f"{name}: the job before the trials took {first.wall_seconds:.2f} s with the start of the server, "
        f"{first.phases.get('start', 0.0):.2f} s of it before the job ran",
        flush=True,
    )
    return [{"script": name, **row, **origin} for row in rows]


def summary(name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the medians over the trials of one script, without the first trial."""
    later = rows[1:] or rows
    medians = {part: statistics.median(row[part] for row in later) for part in (*PARTS, "overhead", "share", "wall")}
    return {"script": name, "first trial": rows[0]["overhead"], **medians, "most": max(r["overhead"] for r in later)}


def main() -> None:
    parser = harness.parser("studies.overhead", __doc__)
    parser.add_argument("scripts", nargs="*")
    parser.add_argument("--trials", type=int, default=6, help="trials per script, the first with a cold cache")
    arguments = parser.parse_args()
    harness.header(
        "How many seconds of a trial are neither compilation nor micro-steps? Medians without the first trial"
    )
    summaries = []
    for name in harness.chosen(SCRIPTS, arguments.scripts):
        rows = study(name, arguments.trials)
        harness.write_rows(HERE / "results.csv", rows, key="script")
        summaries.append(summary(name, rows))
    harness.print_table(summaries, ["script", "first trial", "overhead", "most", "share", "wall", *PARTS])
    worst = max(row["most"] for row in summaries)
    print(f"\ntarget: under {TARGET_SECONDS} s per trial; largest after the first trial {worst:.2f} s: ", end="")
    print("met" if worst < TARGET_SECONDS else "missed")


if __name__ == "__main__":
    main()
