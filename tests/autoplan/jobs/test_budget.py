from __future__ import annotations

from autoplan.jobs.budget import Clock


def test_a_clock_without_a_budget_never_ends():
    clock = Clock.start(None)
    assert clock.left() is None
    assert clock.allows(1e9)


def test_a_clock_counts_down_and_not_below_zero(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("autoplan.jobs.budget.time.monotonic", lambda: now[0])
    clock = Clock.start(60.0)
    now[0] = 140.0
    assert (clock.left(), clock.allows(20.0), clock.allows(20.1)) == (20.0, True, False)
    now[0] = 1000.0
    assert clock.left() == 0.0
