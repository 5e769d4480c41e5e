"""Chooses the Keras backend of a training, and for `--backend auto` surveys the training on all installed backends.

Whether a training is backend-neutral is not guessed: each other backend runs it up to its fit, and one on which that
fails is left out with its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TypeVar

from autoplan.errors import AutoplanError, ConfigError, SourceError
from autoplan.jobs.runner import TRACED_ON, JobRunner
from autoplan.plan.records import Rejection
from autoplan.sources import keras_backend
from autoplan.tuning.estimates.findings import Findings
from autoplan.tuning.request import CompareRequest, Event, TuneRequest, Watch
from autoplan.tuning.space.legal_configs import Space
from autoplan.tuning.space.prune import KEEP_AT_MOST
from cost_models.config import TrainConfig

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class OtherBackend:
    """Another backend: its runner of jobs, and how its findings are made."""

    jobs: JobRunner
    find: Callable[[JobRunner], Findings]


def with_other_backends(
    jobs: JobRunner, own: Findings, others: Mapping[str, OtherBackend]
) -> tuple[JobRunner, Findings]:
    """Add every other backend that runs this training to the runner of jobs and to the findings.

    Nothing is added for a training that splits its batch over devices: only JAX does that.
    """
    found: dict[str, Findings] = {}
    refused: list[Rejection] = []
    runners: dict[str, JobRunner] = {}
    for name, other in others.items():
        if own.space.baseline.mesh.devices > 1:
            why = "the script splits its batch over devices, which only JAX does"
            refused.append(_left_out(own, name, _does_not_run(name, why)))
            continue
        try:
            found[name] = other.find(other.jobs)
        except AutoplanError as error:
            why = " ".join(str(error).split())
            reason = why if isinstance(error, ConfigError) else _does_not_run(name, why)
            refused.append(_left_out(own, name, reason))
            continue
        runners[name] = other.jobs.with_(baseline=found[name].space.baseline, padding=found[name].observation.padding)
    return jobs.with_(others=runners), _merged(own, found, refused)


def _does_not_run(backend: str, why: str) -> str:
    return f"the training does not run on {backend}: {why}"


def _left_out(own: Findings, backend: str, reason: str) -> Rejection:
    return Rejection(
        config=own.space.baseline.with_(backend=backend),
        stage="known_issue",
        reason=reason,
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
            own.space.excluded_by,
        ),
        estimates=estimates,
        shortlist=tuple(_in_turn(own, found)),
        rejected=(*refused, *(one for findings in every for one in findings.rejected)),
        notes=tuple(notes),
        elsewhere=found,
    )


def _in_turn(own: Findings, found: Mapping[str, Findings]) -> Iterable[TrainConfig]:
    """Alternate the backends, the best of each first: estimates of two backends do not compare well."""
    baselines = [findings.space.baseline for findings in (own, *found.values())]
    rounds = zip_longest(*(findings.shortlist for findings in (own, *found.values())))
    merged = [config for one_each in rounds for config in one_each if config is not None]
    return list(dict.fromkeys((*merged[:KEEP_AT_MOST], *(one for one in baselines if one in merged))))


def on_a_backend(
    request: TuneRequest | CompareRequest,
    watch: Watch,
    run: Callable[[keras_backend.BackendChoice], Answer],
    *,
    afar: bool,
) -> Answer:
    """Run on the chosen backend, or on the default where JAX was preferred and the source does not run on it.

    afar  JAX is preferred for hardware that is not here, because its compilers can be asked
    """
    chosen = _backend(request, prefer=TRACED_ON if afar else None)
    try:
        return run(chosen)
    except SourceError:
        if chosen.instead_of is None:
            raise
        watch(
            Event("note", f"the training does not reach its fit on {chosen.name}; continuing with {chosen.instead_of}")
        )
        return run(keras_backend.BackendChoice(chosen.instead_of))


def _backend(request: TuneRequest | CompareRequest, prefer: str | None) -> keras_backend.BackendChoice:
    """Return the backend of the baseline: that of `--backend` or `--fix backend=`, else the script's own.

    ConfigError when the two differ, and for a backend that is not there.
    """
    asked = None if request.backend is None else keras_backend.check_option(request.backend)
    fixed = request.fix.get("backend")
    if asked is not None and fixed not in (None, asked):
        raise ConfigError(f"--backend {asked} and --fix backend={fixed}: keep one of them")
    source = request.source
    script = source.path if source.kind in ("script", "builder") else None
    return keras_backend.choose(None if asked == keras_backend.AUTO else asked or fixed, script, prefer=prefer)
