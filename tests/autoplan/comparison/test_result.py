from __future__ import annotations

import json

import pytest

from autoplan.comparison.result import FitVerdict, HardwareRow, ordered
from cost_models.config import TrainConfig
from cost_models.hardware.lookup import cluster
from tests.builders.comparison_rows import GIB, comparison, row


def names(rows):
    return [one.hardware for one in rows]


def test_the_fastest_first_then_what_is_nearest_to_fitting():
    mixed = [
        row("none", verdict=FitVerdict.NOT_KNOWN, samples_per_second=None),
        row("far", verdict=FitVerdict.TOO_LARGE, needed_bytes=90 * GIB, samples_per_second=None),
        row("slow", samples_per_second=10.0),
        row("near", verdict=FitVerdict.TOO_LARGE, needed_bytes=17 * GIB, samples_per_second=None),
        row("fast", samples_per_second=99.0),
        row("perhaps", verdict=FitVerdict.UNCERTAIN, needed_bytes=16 * GIB, samples_per_second=500.0),
    ]
    assert names(ordered(mixed, by_cost=False)) == ["fast", "slow", "perhaps", "near", "far", "none"]


def test_rows_whose_speed_differs_by_rounding_only_are_sorted_by_name():
    speeds = {"c": 917562.7240143369, "a": 917562.7240143367, "b": 917562.7240143368, "d": 917563.9}
    mixed = [row(name, samples_per_second=speed) for name, speed in speeds.items()]
    assert names(ordered(mixed, by_cost=False)) == ["d", "a", "b", "c"]
    assert names(ordered(mixed, by_cost=True)) == ["d", "a", "b", "c"]


def test_the_cheapest_first_and_the_unpriced_last_by_speed():
    mixed = [
        row("unpriced and slow", offers=(), samples_per_second=1.0),
        row("dear", chips=8),
        row("cheap"),
        row("unpriced and fast", offers=(), samples_per_second=9e9),
        row("too large", verdict=FitVerdict.TOO_LARGE),
    ]
    wanted = ["cheap", "dear", "unpriced and fast", "unpriced and slow", "too large"]
    assert names(ordered(mixed, by_cost=True)) == wanted


def test_a_million_samples_are_paid_for_all_chips_and_only_where_it_trains():
    # 3.6 USD an hour are a thousandth of a dollar a second; a million samples take 1,000 s.
    assert row().usd_per_million_samples == pytest.approx(1.0)
    assert row(chips=4).usd_per_million_samples == pytest.approx(4.0)
    unpaid = [row(offers=()), row(chips=None), row(samples_per_second=None), row(verdict=FitVerdict.UNCERTAIN)]
    assert [one.usd_per_million_samples for one in unpaid] == [None] * 4


def test_the_margin_is_what_stays_free_of_the_usable_memory():
    assert row().margin == 0.75
    assert row(needed_bytes=32 * GIB).margin == -1
    assert row(needed_bytes=None).margin is None


def test_a_row_of_hardware_alone_knows_nothing_else():
    bare = HardwareRow.of(cluster("tpu-v4-8"), 4, ())
    assert (bare.hardware, bare.chip, bare.devices, bare.verdict) == ("tpu-v4-8", "tpu-v4", 4, FitVerdict.NOT_KNOWN)
    plain = bare.to_dict()
    assert (plain["trains"], plain["samples_per_second"], plain["memory"]["needed_bytes"]) == (None, None, None)


def test_the_document_holds_all_rows_with_their_evidence_and_no_number_that_is_none():
    found = comparison(
        row("a"), row("b", verdict=FitVerdict.NOT_KNOWN, needed_bytes=None), notes=("note",), by_cost=True
    )
    plain = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert (plain["schema"], plain["sorted_by"], plain["headroom"]) == (1, "usd_per_million_samples", 0.08)
    assert [(one["hardware"], one["evidence"], one["trains"]) for one in plain["rows"]] == [
        ("a", "analytic", True),
        ("b", "analytic", None),
    ]
    assert TrainConfig.from_dict(plain["rows"][0]["config"]) == found.rows[0].config
    assert plain["rows"][0]["prices"] == [
        {"usd_per_chip_hour": 3.6, "basis": "on demand, somewhere", "sources": ["a list (read 2026-11-29)"]}
    ]
    assert plain["versions"]["keras"] == found.observation.environment["keras"]
    assert plain["notes"] == ["note"]
