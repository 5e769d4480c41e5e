"""Does tuning correct a bad setting in a training script?

    python -m studies.planted_faults [--backend NAME] [--trials N] [CASE ...]     # mlp:jit decoder:batch ...

Each case is a script with one bad setting. It is tuned, and then trained with the plan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoplan.plan.records import Plan
from studies import harness

HERE = Path(__file__).resolve().parent
ENOUGH_OTHERS = 5
COLUMNS = (
    *("case", "undone", "baseline", "plan", "speed-up", "low", "high", "numerics", "others measured", "tune seconds"),
    *("own updates", "expected updates", "trained updates", "passes"),
)
_COMPILE = "model.compile("


@dataclass(frozen=True)
class Case:
    """A script with one bad setting.

    plant     whether to set jit_compile=False in a copy of the script; arguments set the other faults
    undone    returns whether a plan corrects the fault
    """

    script: str
    arguments: tuple[str, ...]
    undone: Callable[[Plan], bool]
    options: tuple[str, ...] = ()
    plant: bool = False


def compiled(plan: Plan) -> bool:
    """Return whether the plan compiles."""
    return bool(plan.config.jit_compile)


def larger_micro_batches(plan: Plan) -> bool:
    """Return whether the plan has fewer and larger micro-batches per update, with the same effective batch."""
    before, after = plan.baseline.config.batch, plan.config.batch
    return bool(after.accumulation < before.accumulation and after.effective == before.effective)


def larger_batch(plan: Plan) -> bool:
    """Return whether the plan has a larger global batch."""
    return bool(plan.config.batch.global_size > plan.baseline.config.batch.global_size)


def pages_stay(plan: Plan) -> bool:
    """Return whether the plan keeps freed memory, or has micro-batches too small to free any."""
    before, after = plan.baseline.config.batch, plan.config.batch
    return bool(plan.config.keep_freed_memory or after.global_size < before.global_size)


FREED = ("--effective-batch", "8..256")
CASES = {
    "mlp:jit": Case("mlp", ("--epochs", "20"), compiled, plant=True),
    "mlp:accumulation": Case(
        "mlp", ("--batch-size", "8", "--accumulation", "8", "--epochs", "40"), larger_micro_batches
    ),
    "mlp:batch": Case("mlp", ("--batch-size", "8", "--epochs", "40"), larger_batch, FREED),
    "resnet20:jit": Case("resnet20", ("--batch-size", "32", "--epochs", "10"), compiled, plant=True),
    "resnet20:accumulation": Case(
        "resnet20", ("--batch-size", "4", "--accumulation", "8", "--epochs", "10"), larger_micro_batches
    ),
    "resnet20:batch": Case("resnet20", ("--batch-size", "8", "--epochs", "10"), larger_batch, FREED),
    # Temporaries of 90 MiB, which the C library returns to the system after every micro-step.
    "resnet20:pages": Case("resnet20", ("--batch-size", "128", "--epochs", "10"), pages_stay),
    "decoder:jit": Case("decoder", ("--epochs", "20"), compiled, plant=True),
    "decoder:accumulation": Case(
        "decoder", ("--batch-size", "2", "--accumulation", "8", "--epochs", "20"), larger_micro_batches
    ),
    # A small model: 8 sequences take less time than the launch of a program. In a larger model, 8 is no fault on a CPU.
    "decoder:batch": Case(
        "decoder",
        (*("--batch-size", "8", "--epochs", "20"), *("--length", "8", "--width", "16", "--samples", "2048")),
        larger_batch,
        FREED,
    ),
}


def planted(case: Case, folder: Path) -> str:
    """Return the script to tune: the original, or a copy with `jit_compile=False` in its one call of compile."""
    original = harness.SCRIPTS / f"{case.script}.py"
    if not case.plant:
        return str(original)
    text = original.read_text(encoding="utf-8")
    # mlp.py has an argument for it; in the other scripts the call of compile is changed.
    changed = text.replace('default="auto"', 'default="false"') if "--jit-compile" in text else text
    if changed == text and text.count(_COMPILE) == 1:
        changed = text.replace(_COMPILE, f"{_COMPILE}jit_compile=False, ")
    if changed == text:
        raise harness.StudyFailed(f"{original.name}: expected one call of compile, to set jit_compile=False in it")
    copy = folder / original.name
    copy.write_text(changed, encoding="utf-8")
    return str(copy)


def expected_updates(plan: Plan, own: int) -> int:
    """Return the updates of the script, scaled by the change of the effective batch (which divides the epoch here)."""
    before, after = plan.baseline.config.batch.effective, plan.config.batch.effective
    return own * before // after


def study(name: str, case: Case, trials: int, backend: str) -> dict[str, Any]:
    """Tune a case and train with the plan. Returns its row."""
    origin = harness.provenance(backend)
    with harness.lab(backend) as lab:
        script = planted(case, lab.folder)
        plan, ran = lab.tune(script, "--trials", str(trials), *case.options, arguments=case.arguments)
        # Counts the updates of the original, since jit_compile does not change them and a run without it takes minutes.
        own = lab.own_updates(str(harness.SCRIPTS / f"{case.script}.py"), case.arguments)[1]
        trained = harness.updates_in(lab.train(script, arguments=case.arguments).output).get(1)
    columns = harness.plan_row(plan)
    expected = expected_updates(plan, own)
    return {
        "case": harness.on_backend(name, backend),
        "undone": case.undone(plan),
        "tune seconds": ran.seconds,
        **columns,
        "own updates": own,
        "expected updates": expected,
        "trained updates": trained,
        "passes": case.undone(plan) and columns["others measured"] >= ENOUGH_OTHERS and trained == expected,
        "error": "",
        **origin,
    }


def main() -> None:
    parser = harness.parser("studies.planted_faults", __doc__)
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--backend", choices=["jax", "tensorflow", "torch"], default="jax")
    parser.add_argument("--trials", type=int, default=7)
    arguments = parser.parse_args()
    backend = arguments.backend
    harness.header("Does tuning correct a bad setting in a training script?", backend)
    rows = []
    for name in harness.chosen(CASES, arguments.cases):
        try:
            rows.append(study(name, CASES[name], arguments.trials, backend))
        except harness.StudyFailed as failed:
            row = {"case": harness.on_backend(name, backend), "undone": False, "passes": False, "error": str(failed)}
            rows.append({**row, **harness.provenance(backend)})
        harness.write_rows(HERE / "results.csv", rows[-1:], key="case")
        print(f"{name}: {'passes' if rows[-1]['passes'] else 'fails'} {rows[-1]['error']}", flush=True)
    harness.print_table(
        rows,
        COLUMNS,
    )
    for row in rows:
        print(f"{row['case']}: {row.get('why', row['error'])}")
    print(f"\n{sum(row['passes'] for row in rows)} of {len(rows)} faults corrected")


if __name__ == "__main__":
    main()
