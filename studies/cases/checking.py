"""What a case runs, and how its outcome is judged: exit codes, texts, plan files, and figures that scripts print."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from studies import harness

Judge = Callable[["Outcome"], str]
"""Returns an empty text for a case that passes, otherwise what is wrong."""


@dataclass(frozen=True)
class Case:
    """A training, the commands that are run on it in one folder, and what has to come of them.

    kind         the kind of fault that the case guards against
    script       a file of `inputs/`
    commands     words of each command: `python` runs the script, others are commands of autoplan; SCRIPT stands for it
    judge        judges the outcome
    environment  variables of all commands
    """

    kind: str
    script: str
    commands: tuple[str, ...]
    judge: Judge
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """The commands of a case as they ended, in order, and the folder that they ran in."""

    folder: Path
    runs: tuple[harness.Ran, ...]

    @property
    def last(self) -> harness.Ran:
        return self.runs[-1]

    @property
    def text(self) -> str:
        """The output of all commands in single spaces, because tables and messages wrap their lines."""
        return " ".join(" ".join(run.output for run in self.runs).split())

    def plan(self, name: str = "plan.yaml") -> dict[str, Any] | None:
        """Return a plan file as plain values; None if there is none."""
        path = self.folder / name
        return yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else None

    def of(self, run: int) -> str:
        """Return the output of one command in single spaces."""
        return " ".join(self.runs[run].output.split())

    def printed(self, label: str, run: int) -> float | None:
        """Return the last number that a command printed after a label."""
        found = re.findall(rf"{re.escape(label)}\s*:?\s*(-?[\d.]+(?:e[-+]?\d+)?)", self.runs[run].output)
        return float(found[-1]) if found else None


def every(*judges: Judge) -> Judge:
    """All judges have to pass. No command may end in a traceback of autoplan."""

    def judge(outcome: Outcome) -> str:
        for run in outcome.runs:
            if "Traceback (most recent call last)" in run.output and "/autoplan/" in run.output:
                return f"a traceback: {run.tail()}"
        return next(filter(None, (one(outcome) for one in judges)), "")

    return judge


def either(*judges: Judge) -> Judge:
    """One of the judges has to pass."""

    def judge(outcome: Outcome) -> str:
        found = [one(outcome) for one in judges]
        return "" if "" in found else " and ".join(found)

    return judge


def code(*expected: int, run: int = -1) -> Judge:
    def judge(outcome: Outcome) -> str:
        found = outcome.runs[run].code
        return "" if found in expected else f"exit code {found} instead of {expected}: {outcome.runs[run].tail()}"

    return judge


def says(pattern: str, run: int | None = None) -> Judge:
    """The output of a command (of all commands together by default) or its plan has a match."""

    def judge(outcome: Outcome) -> str:
        text = outcome.text if run is None else outcome.of(run)
        return "" if re.search(pattern, text, re.IGNORECASE) else f"nothing says /{pattern}/"

    return judge


def refused(pattern: str, run: int = 0) -> Judge:
    """A command ends without a plan and says why; a budget that ended before is no reason."""
    return every(code(2, 3, run=run), says(pattern, run=run), silent_about("--budget", run=run))


def trains_differently(run: int = 0) -> Judge:
    """Verification found other training results than the baseline's, and the command says so."""
    return every(
        code(0, run=run), planned("verification.numerics", "outside"), says("Training gives different results", run=run)
    )


def silent_about(pattern: str, run: int | None = None) -> Judge:
    def judge(outcome: Outcome) -> str:
        found = re.search(pattern, outcome.text if run is None else outcome.of(run), re.IGNORECASE)
        return f"it says {found[0]!r}" if found else ""

    return judge


def same_number(label: str, first: int, second: int, tolerance: float = 1e-5) -> Judge:
    """Two commands print the same number after a label, within a relative tolerance."""

    def judge(outcome: Outcome) -> str:
        one, other = outcome.printed(label, first), outcome.printed(label, second)
        if one is None or other is None:
            return f"no number after {label!r} was printed ({one}, {other})"
        same = abs(one - other) <= tolerance * max(abs(one), abs(other))
        return "" if same else f"{label}: {one} and {other}"

    return judge


def batch_kept(name: str = "plan.yaml") -> Judge:
    """The plan has the batch of its baseline."""

    def judge(outcome: Outcome) -> str:
        plan = outcome.plan(name)
        if plan is None:
            return "there is no plan"
        own, planned = plan["baseline"]["config"]["batch"], plan["config"]["batch"]
        return "" if own == planned else f"the batch is {planned} instead of {own}"

    return judge


def planned(path: str, expected: object, name: str = "plan.yaml") -> Judge:
    """The plan has a value under a path with dots."""

    def judge(outcome: Outcome) -> str:
        value: Any = outcome.plan(name)
        for key in path.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        return "" if value == expected else f"{path} is {value!r} instead of {expected!r}"

    return judge


def no_plan(name: str = "plan.yaml") -> Judge:
    def judge(outcome: Outcome) -> str:
        return "there is a plan" if outcome.plan(name) is not None else ""

    return judge
