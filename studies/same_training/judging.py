"""Read what a plan claims about training, compare records of trainings, and judge the claim."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from autoplan.plan.records import Plan

LINE = 1e-3
"""Largest relative difference of a variable's change with which two trainings are the same."""
START_LINE = 1e-5
"""Largest relative difference of a variable at the start: an earlier fit may have trained it, in another order of sums.
"""
ROUNDING_FACTOR = 10.0
"""A difference is of rounding if it is at most so many times the effect of moving each weight by one unit in the last
place."""

SAME, SAME_PROGRAM, BASELINE = "same", "same program", "baseline"
CLAIMS = (SAME, SAME_PROGRAM, BASELINE)
"""What a plan says where its training has to be the script's own."""
WITHIN_SEEDS, DIFFERS, NOT_COMPARED = "within seeds", "differs", "not compared"
ROWS_LEFT_OUT = "same but for rows left out"
"""The plan says that training differs by samples of each epoch that it leaves out, and is the same otherwise."""
REFUSED, OUT_OF_TIME, FAILED = "refused", "budget ended", "failed"
_VERDICTS = {"exact": SAME, "within_seed_band": WITHIN_SEEDS, "outside": DIFFERS, "not_compared": NOT_COMPARED}
_CLAIMS_SAME = re.compile(
    r"training gives the same|trains the same|keeps the effective batch, and with it the training", re.IGNORECASE
)


@dataclass(frozen=True)
class Record:
    """The variables of a training at its start, after some numbers of updates, and at its end."""

    arrays: Mapping[str, Any]
    facts: Mapping[str, Any]

    @property
    def updates(self) -> int:
        return int(self.facts["updates"])

    @property
    def counts(self) -> list[int]:
        """The numbers of updates after which the variables were recorded."""
        return sorted({int(name.partition(":")[0]) for name in self.arrays if name[0].isdigit()})

    def loss(self, at: str) -> float:
        """Return the loss that Keras reported there."""
        return float(self.facts["losses"].get(at if at != "end" else str(self.updates), math.nan))

    def change(self, index: int, at: str) -> Any:
        """Return the change of a variable since the start."""
        return self.arrays[f"{at}:{index}"] - self.arrays[f"start:{index}"]


def read(path: Path) -> Record | None:
    """Return the record at a path without its ending; None if the training wrote none."""
    if not path.with_suffix(".json").exists():
        return None
    with np.load(path.with_suffix(".npz")) as saved:
        arrays = {name: saved[name] for name in saved.files}
    return Record(arrays, json.loads(path.with_suffix(".json").read_text(encoding="utf-8")))


def compared_at(one: Record, other: Record, least: int) -> str | None:
    """Return the first number of updates that both recorded, from `least` on, else `end` if both ended together."""
    common = sorted(count for count in set(one.counts) & set(other.counts) if count >= least)
    if common:
        return str(common[0])
    return "end" if one.updates == other.updates else None


def differences(plain: Record, other: Record, at: str) -> dict[str, float]:
    """Return {variable: norm of the difference of both changes / norm of the plain run's change}.

    States of seed generators are left out: they count draws, of which a smaller micro-batch needs more.
    """
    found: dict[str, float] = {}
    for index, path in enumerate(plain.facts["paths"]):
        if "seed_generator" in path:
            continue
        own, theirs = plain.change(index, at), other.change(index, at)
        if own.shape != theirs.shape:
            found[f"{index} {path}"] = math.inf
            continue
        size, apart = float(np.linalg.norm(own)), float(np.linalg.norm(theirs - own))
        found[f"{index} {path}"] = apart / size if size else (math.inf if apart else 0.0)
    return found


@dataclass(frozen=True)
class Found:
    """The comparison of a plain training with one under a plan.

    same        whether every variable changed alike, within LINE or rounding, after 20 updates and at the end of the
                fit, and as many updates were made
    largest     the largest relative difference, of the variable `variable`
    rounding    the difference that rounding alone makes to that variable
    by_rounding the training is the same only because differences of rounding are allowed
    early       whether it is the same after the first few updates; None if they were not recorded
    """

    same: bool
    at: str | None = None
    largest: float = math.inf
    variable: str = ""
    rounding: float = 0.0
    by_rounding: bool = False
    at_end: float | None = None
    early: bool | None = None
    why: str = ""


@dataclass(frozen=True)
class PlainRuns:
    """Runs of a script without autoplan: one, the same again, and some whose weights were moved by rounding."""

    first: Record
    again: Record
    rounded: Sequence[Record] = field(default_factory=tuple)
    seeds: Sequence[Record] = field(default_factory=tuple)

    @property
    def deterministic(self) -> float:
        """Return the largest difference of two equal runs; 0 for a script that is deterministic."""
        at = compared_at(self.first, self.again, 1)
        return math.inf if at is None else max(differences(self.first, self.again, at).values(), default=0.0)


def compare(plain: PlainRuns, planned: Record, least: int, early: int) -> Found:
    """Return what a training under a plan does compared with the plain one, after `least` updates or more.

    early  a smaller number of updates, all of them in the first epoch
    """
    found = _compared(plain, planned, least)
    recorded = early in plain.first.counts and early in planned.counts
    return replace(found, early=_found(plain, planned, str(early)).same) if recorded else found


def _compared(plain: PlainRuns, planned: Record, least: int) -> Found:
    first = plain.first
    if first.facts["trainable"] != planned.facts["trainable"]:
        return Found(same=False, why="the models have other variables")
    starts = [name for name in first.arrays if name.startswith("start:")]
    if any(not _starts_alike(first.arrays[name], planned.arrays[name]) for name in starts):
        return Found(same=False, why="the variables differ before the first update")
    at = compared_at(first, planned, least)
    if at is None:
        return Found(same=False, why=f"{planned.updates} updates instead of {first.updates}")
    found = _found(plain, planned, at)
    if first.updates != planned.updates:
        return replace(found, same=False, why=f"{planned.updates} updates instead of {first.updates}")
    end = _found(plain, planned, "end")
    if found.same and not end.same:
        return replace(end, at_end=end.largest, why="differs at the end of the fit")
    return replace(found, at_end=end.largest)


def _starts_alike(own: Any, theirs: Any) -> bool:
    return own.shape == theirs.shape and bool(np.linalg.norm(own - theirs) <= START_LINE * np.linalg.norm(own))


def compare_split(plain: PlainRuns, split: Record, at: int) -> Found | None:
    """Return what Keras's own accumulation does compared with the plain training; None if the epoch is too short."""
    counts = set(plain.first.counts) & set(split.counts)
    return _found(plain, split, str(at)) if at in counts and at <= split.facts["full_updates"] else None


def _found(plain: PlainRuns, other: Record, at: str) -> Found:
    found = differences(plain.first, other, at)
    rounding = dict.fromkeys(found, 0.0)
    for one in plain.rounded:
        if f"{at}:0" in one.arrays:
            moved = differences(plain.first, one, at)
            rounding = {name: max(value, moved[name]) for name, value in rounding.items()}
    beyond = {name: value for name, value in found.items() if value > max(LINE, ROUNDING_FACTOR * rounding[name])}
    shown = beyond or found
    variable = max(shown, key=lambda name: shown[name], default="")
    return Found(
        same=not beyond,
        at=at,
        largest=shown.get(variable, 0.0),
        variable=variable,
        rounding=rounding.get(variable, 0.0),
        by_rounding=not beyond and shown.get(variable, 0.0) > LINE,
    )


def claim(plan: Plan | None, code: int, output: str) -> str:
    """Return what `autoplan tune` says about the training under its plan."""
    if plan is None:
        if "--budget" in output:
            return OUT_OF_TIME
        return REFUSED if code in (2, 3) else FAILED
    if plan.config == plan.baseline.config:
        return BASELINE
    checked = plan.verification
    if checked is not None and checked.same_program:
        return SAME_PROGRAM
    said = _VERDICTS[checked.numerics if checked is not None else "not_compared"]
    if checked is not None and checked.failure and said != DIFFERS:
        return NOT_COMPARED
    if said == SAME and checked is not None and checked.samples_left_out:
        return ROWS_LEFT_OUT
    if said == NOT_COMPARED and _CLAIMS_SAME.search(" ".join([output, *plan.notes])):
        return SAME
    return said


def judge(said: str, found: Found | None, plain: PlainRuns, planned: Record | None) -> str:
    """Return `right`, `false`, `missing` (the training is the same, and the plan does not say so), or `not judged`."""
    if found is None or plain.deterministic > LINE:
        return "not judged"
    if said in CLAIMS:
        return "right" if found.same else "false"
    if found.same:
        return "missing"
    if said == ROWS_LEFT_OUT:
        return "not judged" if found.early is None else "right" if found.early else "false"
    if said == WITHIN_SEEDS and planned is not None:
        return _judge_seeds(found, plain, planned)
    return "right"


def _judge_seeds(found: Found, plain: PlainRuns, planned: Record) -> str:
    """Judge by the loss, which has to be as near to those of other seeds as they are to each other, twice over."""
    at = found.at
    if at is None or plain.first.updates != planned.updates:
        return "false"
    losses = [loss for one in (plain.first, *plain.seeds) if math.isfinite(loss := one.loss(at))]
    if len(losses) < 2:
        return "not judged"
    width = max(losses) - min(losses)
    return "right" if min(losses) - width <= planned.loss(at) <= max(losses) + width else "false"
