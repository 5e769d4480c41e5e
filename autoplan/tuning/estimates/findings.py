"""`Findings`: the record of a training before trials: its source, cluster, legal space, estimates and shortlist."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autoplan.jobs.messages import Observation
from autoplan.plan.knobs import changes
from autoplan.plan.records import Rejection
from autoplan.tuning.candidate_estimate import CandidateEstimate
from autoplan.tuning.request import Candidate
from autoplan.tuning.space.known_issues import Versions
from autoplan.tuning.space.legal_configs import Space
from cost_models.config import TrainConfig
from cost_models.hardware.cluster import Cluster


@dataclass(frozen=True)
class Findings:
    """Everything that is known of a training on one kind of hardware before a trial. Each step of tuning adds to it.

    observation   facts of the fit, from the worker that observed it (`survey.found`)
    cluster       the hardware, with the memory limit of the request (`survey.named_cluster`)
    versions      versions that decide which known issues apply (`versions_of`)
    space         the baseline and the legal configurations (`space.legal_configs`)
    estimates     of every configuration that could be traced (`estimator.estimate_space`); empty where none could, and
                  then `notes` say why
    shortlist     what is worth a trial, in order (`space.prune`, `estimator.estimate_space`)
    rejected      what is not, with the reasons of each step
    notes         what the plan should mention (`survey.with_notes`, `backend_choice`)
    elsewhere     findings on other backends by backend, where the backend itself is tuned
                  (`backend_choice.with_other_backends`); the shortlist has their configurations too
    """

    observation: Observation
    cluster: Cluster
    versions: Versions
    space: Space
    estimates: Mapping[TrainConfig, CandidateEstimate]
    shortlist: tuple[TrainConfig, ...]
    rejected: tuple[Rejection, ...]
    notes: tuple[str, ...] = ()
    elsewhere: Mapping[str, Findings] = field(default_factory=dict)

    def of(self, config: TrainConfig) -> Findings:
        """Return the findings on a configuration's backend."""
        return self.elsewhere.get(config.backend, self)

    def candidates(self) -> tuple[Candidate, ...]:
        """Return the shortlist with its estimates and reasons."""
        return tuple(map(self._candidate, self.shortlist))

    def _candidate(self, config: TrainConfig) -> Candidate:
        estimate, own = self.estimates.get(config), config == self.space.baseline
        if estimate is None:
            words = ", ".join(changes(self.space.baseline, config)) or "the baseline"
            return Candidate(config, None, f"no estimate; {words}", own)
        best = min(one.seconds_per_sample for one in self.estimates.values() if one.config in self.shortlist)
        ratio = estimate.seconds_per_sample / best
        reason = f"{'the baseline; ' if own else ''}estimated to take {ratio:.2f} times as long as the best"
        return Candidate(config, estimate.analytic, reason, own)


def versions_of(observation: Observation, cluster: Cluster) -> Versions:
    """Return the versions that decide which known issues apply."""
    environment = observation.environment
    return Versions(environment.get("keras", ""), environment.get("backend_version", ""), cluster.chip.kind)
