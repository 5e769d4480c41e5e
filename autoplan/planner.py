"""The whole story, a line a step: source -> observe -> trace -> space -> prune -> search -> verify -> Plan."""

from __future__ import annotations

from autoplan.requests import Candidate, EstimateRequest, Event, TuneRequest, TuneResult, Watch

__all__ = ["Candidate", "EstimateRequest", "Event", "TuneRequest", "TuneResult", "Watch"]


def silent(event: Event) -> None:
    """A watcher that shows nothing."""
