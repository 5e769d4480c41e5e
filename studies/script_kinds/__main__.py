"""Can autoplan tune every kind of source, and does the plan make the same number of updates?

python -m studies.script_kinds [--backend NAME] [--trials N] [CASE ...]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoplan.plan import file
from autoplan.plan.records import Evidence, Plan
from studies import harness

HERE = Path(__file__).resolve().parent
ENOUGH_OTHERS = 5
COLUMNS = (
    *("case", "tunes", "baseline", "plan", "speed-up", "low", "high", "numerics", "others measured", "failed trials"),
    *("tune seconds", "own updates", "trained updates", "passes"),
)


@dataclass(frozen=True)
class Outcome:
    """A plan, the updates of the tuned fit without and with the plan, and the seconds of tuning."""

    plan: Plan
    own: int | None
    trained: int | None
    seconds: float


def from_command(
    script: str, *arguments: str, fit: int = 1, folder: Path = harness.SCRIPTS
) -> Callable[[harness.Lab, int], Outcome]:
    """Return a case that runs `autoplan tune`, then `autoplan train`."""

    def study(lab: harness.Lab, trials: int) -> Outcome:
        path = str(folder / f"{script}.py")
        plan, ran = lab.tune(path, "--trials", str(trials), "--fit", str(fit), arguments=arguments)
        trained = harness.updates_in(lab.train(path, arguments=arguments).output)
        return Outcome(plan, lab.own_updates(path, arguments).get(fit), trained.get(fit), ran.seconds)

    return study


def builder_without_data(lab: harness.Lab, trials: int) -> Outcome:
    """Tune a builder on synthetic batches, then train from Python, where the data are."""
    path = HERE / "without_data.py"
    plan, ran = lab.tune(f"{path}:build_model", "--trials", str(trials))
    trained = harness.updates_in(lab.python(str(path), "plan.yaml").output)
    from studies.script_kinds.without_data import BATCHES, EPOCHS

    return Outcome(plan, BATCHES * EPOCHS, trained.get(1), ran.seconds)


def from_main(lab: harness.Lab, trials: int) -> Outcome:
    """Call `autoplan.optimize` on a function of `__main__`, then `autoplan.fit`."""
    ran = lab.python(str(HERE / "from_main.py"), str(trials))
    from studies.script_kinds.from_main import BATCH, EPOCHS, SAMPLES

    own = SAMPLES // BATCH * EPOCHS // 2  # two micro-steps an update
    return Outcome(file.read(lab.folder / "plan.yaml"), own, harness.updates_in(ran.output).get(1), ran.seconds)


CASES = {
    "arguments, callbacks, class weights": from_command(
        "arguments_callbacks", "--learning-rate", "0.001", "--epochs", "4"
    ),
    "subclassed": from_command("subclassed"),
    "tf.data": from_command("tfdata"),
    "builder with data": from_command("builder"),
    "builder without data": builder_without_data,
    "builder of __main__": from_main,
    "second of two fits": from_command("two_fits", fit=2),
    "remainder": from_command("remainder"),
    "schedule": from_command("schedule"),
    "PyDataset of dictionaries, class weights": from_command("pydataset"),
    "generator of dictionaries, sample weights": from_command("generator"),
    "cross-validation in stages": from_command("folds", fit=2),
    "compute_loss of its own, masks": from_command("own_loss"),
    "low-rank adapters, frozen layers": from_command("fine_tuning", fit=2),
    "processes, summaries, callbacks": from_command("messy"),
    "KerasHub without a preset": from_command("hub", folder=HERE),
}
NAMES = dict(
    zip(
        (
            *("arguments", "subclassed", "tfdata", "builder", "no_data", "main", "two_fits", "remainder", "schedule"),
            *("pydataset", "generator", "folds", "own_loss", "fine_tuning", "messy", "hub"),
        ),
        CASES,
        strict=True,
    )
)


def study(name: str, trials: int, backend: str) -> dict[str, Any]:
    """Run one case and return its row.

    A case tunes if its plan is measured, at least ENOUGH_OTHERS other configurations are measured, and the plan is
    verified or is the baseline with a reason.
    """
    origin = harness.provenance(backend)
    with harness.lab(backend) as lab:
        found = CASES[NAMES[name]](lab, trials)
    plan, columns = found.plan, harness.plan_row(found.plan)
    kept = plan.config == plan.baseline.config
    settled = bool(columns["why"]) if kept else plan.verification is not None and plan.verification.faster
    tuned = plan.evidence is Evidence.MEASURED and columns["others measured"] >= ENOUGH_OTHERS and settled
    return {
        "case": harness.on_backend(name, backend),
        "source": NAMES[name],
        "tunes": tuned,
        "tune seconds": found.seconds,
        **columns,
        "own updates": found.own,
        "trained updates": found.trained,
        "passes": tuned and found.own is not None and found.trained == found.own,
        "error": "",
        **origin,
    }


def main() -> None:
    parser = harness.parser("studies.script_kinds", __doc__)
    parser.add_argument("cases", nargs="*", help=", ".join(NAMES))
    parser.add_argument("--backend", choices=["jax", "tensorflow", "torch"], default="jax")
    parser.add_argument("--trials", type=int, default=7)
    arguments = parser.parse_args()
    backend = arguments.backend
    harness.header("Can autoplan tune every kind of source, with the same number of updates?", backend)
    rows = []
    for name in harness.chosen(NAMES, arguments.cases):
        try:
            rows.append(study(name, arguments.trials, backend))
        except harness.StudyFailed as failed:
            row = {"case": harness.on_backend(name, backend), "tunes": False, "passes": False, "error": str(failed)}
            rows.append({**row, **harness.provenance(backend)})
        harness.write_rows(HERE / "results.csv", rows[-1:], key="case")
        print(f"{name}: {'passes' if rows[-1]['passes'] else 'fails'} {rows[-1]['error']}", flush=True)
    harness.print_table(
        rows,
        COLUMNS,
    )
    for row in rows:
        print(f"{row['case']}: {row.get('why', row['error'])}")
    print(f"\n{sum(row['passes'] for row in rows)} of {len(rows)} kinds are tuned and make the same number of updates")


if __name__ == "__main__":
    main()
