from __future__ import annotations

import pytest

from autoplan.comparison.result import FitVerdict
from autoplan.plan.records import Evidence
from autoplan.reports import compare
from tests.builders.comparison_rows import GIB, comparison, row
from tests.builders.observations import config
from tests.builders.printed import printed


def text(found, width=100):
    return printed(compare.compared(found), width=width)


def one_line(found, width=200):
    return " ".join(text(found, width).split())


SHARDED = config(64, 2, mesh={"data": 8}, layout={"shard_state": True}, precision="mixed_bfloat16")


def test_the_first_lines_say_what_was_asked_where_it_fits_and_on_which_evidence():
    told = one_line(comparison(row("a"), row("b", verdict=FitVerdict.TOO_LARGE)))
    assert told.startswith(
        "train.py: 1,000 parameters; the baseline, which is the script's own configuration, is float32, batch 64. The "
        "training fits on 1 of 2 kinds of hardware. "
        "Every figure is analytic: nothing was run, measured or compiled."
    )


def test_a_row_says_devices_configuration_memory_margin_rate_efficiency_and_evidence():
    told = one_line(comparison(row("gpu-made-x16", devices=16, config=SHARDED)))
    assert (
        "gpu-made-x16 8 of 16 devices: mixed_bfloat16, batch 64, accumulation 2, sharded state 4.00 "
        "of 16.0 75% 1,000 25% analytic" in told
    )
    assert "Rows are sorted by speed, all devices together." in told
    assert "margin is the share of its memory that stays free, at least 8%." in told


def test_costs_are_a_column_with_their_prices_and_the_dates_of_their_sources():
    told = one_line(comparison(row("a", chips=2), row("b", offers=()), by_cost=True))
    assert "Rows are sorted by cost, at the first price listed below, and hardware without a price is last." in told
    assert "a 1 device: float32, batch 64 4.00 of 16.0 75% 1,000 25% 2.00 analytic" in told
    assert "b 1 device: float32, batch 64 4.00 of 16.0 75% 1,000 25% no price analytic" in told
    assert "a 3.6 2 on demand, somewhere Sources: a list (read 2026-11-29)." in told
    assert "The catalogue has no prices for this hardware." in one_line(comparison(row(offers=()), by_cost=True))
    assert "price" not in one_line(comparison(row()))


def test_what_does_not_fit_says_what_it_needs_and_what_would_do():
    large = row("b", verdict=FitVerdict.TOO_LARGE, needed_bytes=20 * GIB, would_help="b-x2 (sharded)")
    perhaps = row("c", verdict=FitVerdict.UNCERTAIN, needed_bytes=17 * GIB, least_bytes=15 * GIB)
    unknown = row("d", verdict=FitVerdict.NOT_KNOWN, reason="no figure is known for the link")
    told = one_line(comparison(row("a"), large, perhaps, unknown))
    assert "Hardware on which it does not fit, or may not fit" in told
    assert "b 20.0 of 16.0 1 device: float32, batch 64 b-x2 (sharded) analytic" in told
    assert "c 15.0 to 17.0 of 16.0" in told
    assert "Hardware without an estimate hardware reason ─" in told
    assert "d no figure is known for the link" in told


def test_evidence_stands_in_every_row_where_it_differs():
    compiled = row("a", evidence=Evidence.COMPILED)
    told = one_line(comparison(compiled, row("b", samples_per_second=1.0, notes=("nothing was compiled: none here",))))
    assert "Every figure is analytic" not in told
    assert (
        "Nothing was run or measured. Rows marked compiled show the compiled program, with times by a roofline model"
        in told
    )
    assert "1,000 25% compiled b" in told
    assert "- b: nothing was compiled: none here" in told


def test_sizes_that_were_passed_over_are_told():
    smallest = row("tpu-made-8", looked_at=("tpu-made-1", "tpu-made-4", "tpu-made-8"))
    large = row("gpu-made-x8", verdict=FitVerdict.TOO_LARGE, looked_at=("gpu-made", "gpu-made-x8"))
    told = one_line(comparison(smallest, large))
    assert "smaller sizes on which it does not or may not fit: tpu-made-1, tpu-made-4" in told
    assert "it does not or may not fit on any size of: gpu-made to gpu-made-x8" in told


@pytest.mark.parametrize("by_cost", [False, True])
def test_a_hundred_columns_hold_the_longest_names_without_breaking_a_figure(by_cost):
    long = row(
        "gpu-a100-40gb-pcie-x8",
        devices=8,
        config=SHARDED.with_(remat=config(1, remat={"mode": "activations"}).remat),
        needed_bytes=round(123.4 * GIB),
        capacity_bytes=round(143.2 * GIB),
        samples_per_second=1234567.0,
    )
    shown = text(comparison(long, by_cost=by_cost)).splitlines()
    assert max(map(len, shown)) <= 100
    first = next(line for line in shown if line.startswith("gpu-a100-40gb-pcie-x8 "))
    assert all(figure in first for figure in ("123 of 143", "14%", "1,230,000", "25%", "analytic"))
    assert "mixed_bfloat16," in " ".join(shown).split()


def test_less_than_a_hundredth_of_a_gibibyte_is_no_long_number():
    assert "<0.01 of 16.0" in text(comparison(row(needed_bytes=1000)))
