"""Is training the same wherever a plan says so, and do plans say so wherever it is?

python -m studies.same_training [SCRIPT ...]

Rows of results.csv stay: a plan whose row is there is not made again unless --again is given.
"""

from __future__ import annotations

import csv
import math
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoplan.plan import file
from autoplan.plan.records import Plan
from studies import harness
from studies.same_training import judging
from studies.same_training.cases import HERE, SCRIPTS, Script, public_examples

QUESTION = "Is training the same wherever a plan says so, and do plans say so wherever it is?"
RECORDER = HERE / "recorder"
RESULTS = HERE / "results.csv"
PLANS = ("unpinned", "pinned")
UPDATES = 20
LATER = (32, 48, 64)
"""Numbers of updates that are compared where a plan runs so many micro-steps at once that it has no record at 20."""
SPLIT_UPDATES = 7
"""Updates after which Keras's own accumulation is compared, all of them in the first epoch."""
OTHER_SEEDS = (101, 202)
ROUNDING_SEEDS = (0, 1, 2)
"""Seeds of the runs whose initial weights are moved: a ReLU may change its side in one run and not in another."""
COLUMNS = (
    *("script", "plan", "changes", "says", "same", "largest", "rounding", "variable", "updates", "planned updates"),
    *("verdict",),
)


@dataclass(frozen=True)
class Tuned:
    """A run of `autoplan tune`: its options, its output, and its plan if it wrote one."""

    name: str
    options: tuple[str, ...]
    ran: harness.Ran
    plan: Plan | None


@contextmanager
def lab(keep: Path | None, name: str) -> Iterator[harness.Lab]:
    """Make a lab in a temporary folder, or in a folder that stays."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="autoplan-study-") as folder:
            yield harness.Lab(Path(folder), {"KERAS_BACKEND": "jax"})
        return
    folder_of_script = keep / name.replace(":", "-")
    shutil.rmtree(folder_of_script, ignore_errors=True)
    folder_of_script.mkdir(parents=True)
    yield harness.Lab(folder_of_script.resolve(), {"KERAS_BACKEND": "jax"})


def _after(arguments: Sequence[str]) -> list[str]:
    return ["--", *arguments] if arguments else []


def tune(lab: harness.Lab, script: Script, name: str, limits: Sequence[str]) -> Tuned:
    """Run `autoplan tune` for one of the two plans."""
    options = (*limits, *(script.pin if name == "pinned" else ()))
    path = lab.folder / f"{name}.yaml"
    ran = lab.run(
        *(sys.executable, "-m", "autoplan", "tune", str(script.path), "--fit", str(script.fit), *options),
        *("--output", str(path), "--study", str(lab.folder / name), *_after(script.arguments)),
        environment={**script.environment, "PYTHONPATH": harness.python_path(*script.modules)},
    )
    (lab.folder / f"{name}.txt").write_text(ran.output, encoding="utf-8")
    return Tuned(name, options, ran, file.read(path) if path.exists() else None)


def record(
    lab: harness.Lab, script: Script, name: str, counts: Sequence[int], plan: str | None = None, **variables: str
) -> judging.Record | None:
    """Train, with a plan or without autoplan, and return the record; None if the training failed."""
    environment = {
        **script.environment,
        "PYTHONPATH": harness.python_path(RECORDER, *script.modules),
        "SAME_TRAINING_RECORD": str(lab.folder / name),
        "SAME_TRAINING_FIT": str(script.fit),
        "SAME_TRAINING_AT": ",".join(map(str, counts)),
        **variables,
    }
    command = ["-m", "studies.count_updates", str(script.path), *script.arguments]
    if plan is not None:
        command = ["-m", "autoplan", "train", str(script.path), "--plan", plan, *_after(script.arguments)]
    ran = lab.run(sys.executable, *command, environment=environment)
    (lab.folder / f"{name}.txt").write_text(ran.output, encoding="utf-8")
    return judging.read(lab.folder / name)


def plain_runs(
    lab: harness.Lab, script: Script, planned: Sequence[judging.Record], *, seeds: bool
) -> judging.PlainRuns | None:
    """Run the script without autoplan as often as the comparison needs it; None if it fails."""
    counts = sorted({SPLIT_UPDATES, UPDATES, *(count for one in planned for count in one.counts)})
    first = record(lab, script, "plain", counts)
    again = record(lab, script, "plain-again", counts)
    if first is None or again is None:
        return None
    rounded: list[judging.Record] = []
    for seed in ROUNDING_SEEDS:  # more than one only where a training differs
        moved = record(lab, script, f"plain-rounded-{seed}", counts, SAME_TRAINING_ROUNDING=str(seed))
        rounded += [] if moved is None else [moved]
        known = judging.PlainRuns(first, again, tuple(rounded))
        if all(judging.compare(known, one, UPDATES, SPLIT_UPDATES).same for one in planned):
            break
    others = [
        record(lab, script, f"plain-seed-{seed}", counts, SAME_TRAINING_SEED=str(seed))
        for seed in (OTHER_SEEDS if seeds else ())
    ]
    return judging.PlainRuns(first, again, tuple(rounded), tuple(one for one in others if one is not None))


def study(
    name: str, script: Script, plans: Sequence[str], limits: Sequence[str], keep: Path | None
) -> list[dict[str, Any]]:
    """Make plans of a script, train with and without them, and return a row for each plan."""
    origin = harness.provenance()
    with lab(keep, name) as here:
        script.prepare(here.folder)
        tuned = [tune(here, script, which, limits) for which in plans]
        said = {one.name: judging.claim(one.plan, one.ran.code, one.ran.output) for one in tuned}
        counts = (SPLIT_UPDATES, UPDATES, *LATER)
        planned = {
            one.name: record(here, script, f"trained-{one.name}", counts, plan=f"{one.name}.yaml")
            for one in tuned
            if one.plan is not None
        }
        records = [one for one in planned.values() if one is not None]
        refused = said.get("pinned") == judging.REFUSED
        seeds = judging.WITHIN_SEEDS in said.values()
        plain = plain_runs(here, script, records, seeds=seeds) if records or refused else None
        found = {
            one: judging.compare(plain, training, UPDATES, SPLIT_UPDATES)
            for one, training in planned.items()
            if plain is not None and training is not None
        }
        if plain is not None and refused:
            split = record(here, script, "split", (SPLIT_UPDATES,), SAME_TRAINING_SPLIT="2")
            by_keras = judging.compare_split(plain, split, SPLIT_UPDATES) if split is not None else None
            if by_keras is not None:
                found["pinned"] = by_keras
        return [
            {
                "key": f"{name}: {one.name}",
                "script": name,
                "plan": one.name,
                "options": " ".join(one.options),
                **_claim_columns(one, said[one.name], here),
                **_found_columns(found.get(one.name), plain, planned.get(one.name)),
                "verdict": judging.judge(said[one.name], found.get(one.name), plain, planned.get(one.name))
                if plain
                else "not judged",
                **origin,
            }
            for one in tuned
        ]


def _claim_columns(tuned: Tuned, said: str, lab: harness.Lab) -> dict[str, Any]:
    plan = tuned.plan
    return {
        "baseline": plan.baseline.config.describe() if plan else "",
        "changes": ("nothing" if said == judging.BASELINE else plan.config.describe()) if plan else "",
        "says": said,
        "detail": _detail(tuned, lab),
    }


def _found_columns(
    found: judging.Found | None, plain: judging.PlainRuns | None, planned: judging.Record | None
) -> dict[str, Any]:
    return {
        "same": found.same if found else "not known",
        "largest": found.largest if found else None,
        "variable": found.variable if found else "",
        "rounding": found.rounding if found else None,
        "by rounding": found.by_rounding if found else "",
        "compared at": found.at if found else "",
        "largest at the end": found.at_end if found else None,
        "updates": plain.first.updates if plain else None,
        "planned updates": planned.updates if planned else None,
        "own repetition": plain.deterministic if plain else None,
        "found": found.why if found else "",
    }


def _detail(tuned: Tuned, lab: harness.Lab) -> str:
    """Return why a pin was refused, or what the plan says about the comparison."""
    if tuned.plan is None:
        errors = re.findall(r"^error: (.*(?:\n(?!\n).*){0,4})", tuned.ran.output, re.MULTILINE)
        text = errors[-1] if errors else tuned.ran.tail()
    else:
        checked = tuned.plan.verification
        text = checked.numerics_detail if checked else ""
    return " ".join(text.replace(str(lab.folder), "").split())[:400]


def totals(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the number of false claims, and the share of plans that are the same and said to be."""
    judged = [row for row in rows if row["verdict"] in ("right", "false", "missing")]
    claims = [row for row in judged if row["says"] in judging.CLAIMS]
    false = [row["key"] for row in claims if row["verdict"] == "false"]
    same = [row for row in judged if row["says"] != judging.BASELINE and str(row["same"]) == "True"]
    said = [row for row in same if row["says"] in judging.CLAIMS]
    share = f"{len(said) / len(same):.0%}" if same else "none"
    return [
        f'false claims of "the same": {len(false)} of {len(claims)}' + (f" ({', '.join(false)})" if false else ""),
        f"plans that change the configuration and train the same: {len(same)}; said to be: {len(said)} ({share})",
    ]


def stored() -> list[dict[str, Any]]:
    """Return the rows of results.csv."""
    if not RESULTS.exists():
        return []
    with RESULTS.open(newline="", encoding="utf-8") as stream:
        return [dict(row) for row in csv.DictReader(stream)]


def finished(rows: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the keys of plans that were made; where the budget ended before, the plan is tried again."""
    return {row["key"] for row in rows if row["says"] != judging.OUT_OF_TIME}


def main() -> None:
    parser = harness.parser("studies.same_training", __doc__)
    parser.add_argument("scripts", nargs="*", help=", ".join(SCRIPTS))
    parser.add_argument("--plan", action="append", choices=PLANS, help="make this plan only")
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--budget", default="60s")
    parser.add_argument("--again", action="store_true", help="run scripts again whose rows are there")
    parser.add_argument("--keep", type=Path, help="a folder for plans, outputs and records of variables")
    parser.add_argument("--examples", type=Path, help="a checkout of keras-team/keras-io, whose examples run too")
    parser.add_argument("--data", type=Path, help="a folder for the synthetic files of the examples")
    parser.add_argument("--table", action="store_true", help="print the rows that are there, and run nothing")
    arguments = parser.parse_args()
    scripts = dict(SCRIPTS)
    if arguments.examples and arguments.data:
        scripts |= public_examples(arguments.examples.resolve(), arguments.data.resolve())
    if arguments.table:
        names = arguments.scripts or list(dict.fromkeys(row["script"] for row in stored()))
    else:
        names = harness.chosen(scripts, arguments.scripts)
        harness.header(QUESTION)
        there = set() if arguments.again else finished(stored())
        for name in names:
            plans = [plan for plan in arguments.plan or PLANS if f"{name}: {plan}" not in there]
            if not plans:
                continue
            limits = ("--trials", str(arguments.trials), "--budget", arguments.budget)
            rows = study(name, scripts[name], plans, limits, arguments.keep)
            harness.write_rows(RESULTS, rows, key="key")
            for row in rows:
                print(f"{row['key']}: says {row['says']}; {row['verdict']} {row['found']} {row['detail']}", flush=True)
    rows = [_numbers(row) for row in stored() if row["script"] in names]
    harness.print_table(rows, COLUMNS)
    print("\n" + "\n".join(totals(rows)))


def _numbers(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row as it is printed: differences as numbers, and the name of a variable without its first parts."""
    shown = dict(row)
    for name in ("largest", "rounding"):
        shown[name] = float(row[name]) if row[name] else "—"
        if isinstance(shown[name], float) and not math.isinf(shown[name]):
            shown[name] = f"{shown[name]:.1e}"
    shown["variable"] = "/".join(row["variable"].split("/")[-2:])
    return shown


if __name__ == "__main__":
    main()
