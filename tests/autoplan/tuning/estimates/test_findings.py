from __future__ import annotations

from dataclasses import replace

from autoplan.tuning.estimates.findings import versions_of
from tests.builders.observations import cluster, config, observation
from tests.builders.plan_decisions import OTHER, WINNER, findings


def test_the_shortlist_has_estimates_and_reasons():
    first, second = findings().candidates()
    assert (first.config, first.reason, first.baseline) == (
        WINNER,
        "estimated to take 1.00 times as long as the best",
        False,
    )
    assert (second.config, second.estimate) == (OTHER, None)
    assert second.reason.startswith("no estimate; ")


def test_findings_of_another_backend_are_its_own():
    other = findings()
    both = replace(findings(), elsewhere={"torch": other})
    assert both.of(config(backend="torch")) is other
    assert both.of(config()) is both


def test_known_issues_go_by_keras_the_backend_and_the_kind_of_device():
    facts = observation()
    found = versions_of(facts, cluster(kind="gpu"))
    assert (found.keras, found.backend) == (facts.environment["keras"], facts.environment["backend_version"])
