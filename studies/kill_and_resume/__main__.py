"""Does a tuning that is killed at random moments end with the same trials as one that is not?

python -m studies.kill_and_resume [--kills N] [--seed N]
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cost_models.config import TrainConfig
from studies import harness
from studies.running_command import EndedCommand, RunningCommand, records_in

HERE = Path(__file__).resolve().parent
COLUMNS = ("round", "kills", "killed while", "finished after each", "same trials", "repeated", "most left", "passes")
OPTIONS = ("--only", "batch", "--trials", "50")
INTERRUPTED = 130
LONGEST = 1.1
"""The latest kill, as a multiple of the seconds of the undisturbed tuning; above 1, some runs reach their end."""

Records = Mapping[str, str]
"""The finished trials of a study: {configuration: its record}, both as text."""


@dataclass
class Round:
    """A study that is killed and resumed until it ends."""

    number: int
    stages: list[str] = field(default_factory=list)
    finished: list[int] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    left: int = 0
    records: Records = field(default_factory=dict)

    def look(self, database: Path, ended: EndedCommand) -> None:
        """Compare, after a run, the trials that had finished before it."""
        now = finished_in(database)
        self.changed += [config for config, record in self.records.items() if now.get(config) != record]
        self.records = now
        self.finished.append(len(now))
        self.left = max(self.left, ended.left)


def tune(lab: harness.Lab, name: str) -> RunningCommand:
    output = str(lab.folder / f"{name}.yaml")
    return RunningCommand(lab, "tune", str(HERE / "train.py"), *OPTIONS, "--study", name, "--output", output)


def finished_in(database: Path) -> dict[str, str]:
    """Return the finished trials by configuration. Raises StudyFailed if a configuration finished twice."""
    found: dict[str, str] = {}
    for config, record in records_in(database):
        if config in found:
            raise harness.StudyFailed(f"{config} finished twice")
        found[config] = record
    return found


def undisturbed(lab: harness.Lab) -> tuple[Records, float]:
    """Run a tuning without kills. Returns its trials and its seconds."""
    ended = tune(lab, "undisturbed").wait()
    if ended.code != 0:
        raise harness.StudyFailed(f"the undisturbed tuning ended with {ended.code}:\n{ended.output[-2000:]}")
    return finished_in(lab.folder / "undisturbed" / "study.db"), ended.seconds


def killed_and_resumed(lab: harness.Lab, number: int, kills: int, longest: float, dice: random.Random) -> Round:
    """Start a study, kill it at random moments, at most `kills` times, and resume it until it ends."""
    one = Round(number)
    name = f"round-{number}"
    database = lab.folder / name / "study.db"
    while True:
        running = tune(lab, name)
        moment = dice.uniform(0.0, longest)
        if len(one.stages) < kills and running.lives_for(moment):
            running.process.kill()
            one.look(database, ended := running.wait())
            one.stages.append(last_stage(ended.output))
            print(f"round {number}: killed after {moment:.0f} s, {one.stages[-1]}; {len(one.records)} trials finished")
            continue
        one.look(database, ended := running.wait())
        if ended.code == INTERRUPTED:  # interrupted from outside: resumed, and not counted
            continue
        if ended.code != 0:
            raise harness.StudyFailed(f"round {number} ended with {ended.code}:\n{ended.output[-2000:]}")
        return one


def last_stage(output: str) -> str:
    """Return the stage that the last progress line names."""
    lines = [line.partition("]")[2].strip() for line in output.splitlines() if line.startswith("[")]
    return lines[-1].partition(":")[0].partition(",")[0] if lines else "starting"


def row(one: Round, expected: Records) -> dict[str, Any]:
    same = set(one.records) == set(expected)
    return {
        "round": one.number,
        "kills": len(one.stages),
        "killed while": "; ".join(one.stages),
        "finished after each": " ".join(map(str, one.finished)),
        "expected": len(expected),
        "same trials": same,
        "repeated": len(one.changed),
        "most left": one.left,
        "passes": same and not one.changed and one.left == 0,
    }


def main() -> None:
    parser = harness.parser("studies.kill_and_resume", __doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    harness.header("Does a tuning that is killed at random moments end with the same trials as one that is not?")
    origin, dice = harness.provenance(), random.Random(arguments.seed)
    rows: list[dict[str, Any]] = []
    left = arguments.kills
    with harness.lab() as lab:
        expected, seconds = undisturbed(lab)
        print(
            f"undisturbed: {seconds:.0f} s, {len(expected)} trials: {', '.join(map(described, expected))}", flush=True
        )
        while left > 0:
            one = killed_and_resumed(lab, len(rows) + 1, left, LONGEST * seconds, dice)
            left -= len(one.stages)
            rows.append({**row(one, expected), **origin})
            harness.write_rows(HERE / "results.csv", rows, key="round")
    harness.print_table(rows, COLUMNS)
    done = sum(row["kills"] for row in rows)
    same = sum(row["passes"] for row in rows)
    print(f"\n{done} kills in {len(rows)} studies; {same} ended with the same trials as without kills")


def described(config: str) -> str:
    return TrainConfig.from_dict(json.loads(config)).describe()


if __name__ == "__main__":
    main()
