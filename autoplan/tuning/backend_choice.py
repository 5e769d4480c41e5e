"""`--backend auto`: the backend as a knob. What the other backends offer, beside what was found on the script's own.

Whether a training is backend-neutral is not guessed: each other backend runs it up to its fit, and one on which that
fails is left out with its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from autoplan.errors import AutoplanError
from autoplan.jobs.runner import JobRunner
from autoplan.plan.records import Rejection
from autoplan.tuning.estimates.estimator import Findings
from autoplan.tuning.space.legal_configs import Space
from autoplan.tuning.space.prune import KEEP_AT_MOST
from cost_models.config import TrainConfig


@dataclass(frozen=True)
class Place:
    """Another backend: its runner of jobs, and how its findings are made."""

    jobs: JobRunner
    find: Callable[[JobRunner], Findings]


def widened(jobs: JobRunner, own: Findings, places: Mapping[str, Place]) -> tuple[JobRunner, Findings]:
    """The runner of jobs and the findings with every other backend that runs this training in them.

    Nothing is added for a training that splits its batch over devices: only JAX does that.
    """
    found: dict[str, Findings] = {}
    refused: list[Rejection] = []
    runners: dict[str, JobRunner] = {}
    for name, place in places.items():
        if own.space.baseline.mesh.devices > 1:
            refused.append(_left_out(own, name, "the script splits its batch over devices, which only JAX does"))
            continue
        try:
            found[name] = place.find(place.jobs)
        except AutoplanError as error:
            refused.append(_left_out(own, name, " ".join(str(error).split())))
            continue
        runners[name] = place.jobs.with_(baseline=found[name].space.baseline)
    return jobs.with_(others=runners), _merged(own, found, refused)


def _left_out(own: Findings, backend: str, why: str) -> Rejection:
    return Rejection(
        config=own.space.baseline.with_(backend=backend),
        stage="known_issue",
        reason=f"the training does not run on {backend}: {why}",
        figures={"evidence": "measured"},
    )


def _merged(own: Findings, found: Mapping[str, Findings], refused: Sequence[Rejection]) -> Findings:
    every = (own, *found.values())
    estimates = {config: one for findings in every for config, one in findings.estimates.items()}
    left_out = [f"not tried on {rejection.config.backend}: {rejection.reason}" for rejection in refused]
    notes = dict.fromkeys((*(note for findings in every for note in findings.notes), *left_out))
    return replace(
        own,
        space=Space(
            own.space.baseline,
            tuple(config for findings in every for config in findings.space.configs),
            tuple(one for findings in every for one in findings.space.rejected),
        ),
        estimates=estimates,
        shortlist=tuple(_in_turn(own, found)),
        rejected=(*refused, *(one for findings in every for one in findings.rejected)),
        notes=tuple(notes),
        elsewhere=found,
    )


def _in_turn(own: Findings, found: Mapping[str, Findings]) -> Iterable[TrainConfig]:
    """The best of every backend, then the second of every backend ...: predictions of two backends compare badly."""
    baselines = [findings.space.baseline for findings in found.values()]
    rounds = zip_longest(*(findings.shortlist for findings in (own, *found.values())))
    merged = [config for one_each in rounds for config in one_each if config is not None]
    return list(dict.fromkeys((*merged[:KEEP_AT_MOST], own.space.baseline, *(b for b in baselines if b in merged))))
