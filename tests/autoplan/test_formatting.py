from __future__ import annotations

import pytest

from autoplan import formatting


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.0, "0"),
        (1, "1.00"),
        (9.996, "10.0"),
        (36.571, "36.6"),
        (99.96, "100"),
        (512.4, "512"),
        (36571.4, "36,600"),
        (134000.4, "134,000"),
        (0.00412, "0.00412"),
        (0.99996, "1.00"),
        (-2.5, "-2.50"),
    ],
)
def test_three_significant_digits_without_an_exponent(value, text):
    assert formatting.significant(value) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "not known"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (512 * 2**20, "512 MiB"),
        (int(19.4 * 2**30), "19.4 GiB"),
        (3 * 2**40, "3.00 TiB"),
    ],
)
def test_sizes_are_in_powers_of_two(count, text):
    assert formatting.size(count) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "not known"), (0.0, "0 s"), (875e-6, "875 µs"), (0.004, "4.00 ms"), (1.25, "1.25 s"), (75.0, "75.0 s")],
)
def test_seconds_take_the_unit_of_their_size(value, text):
    assert formatting.seconds(value) == text


def test_an_interval_has_one_unit():
    assert formatting.seconds_range(0.00397, 0.00436) == "3.97 to 4.36 ms"
    assert formatting.seconds_range(0.0009, 0.0011) == "0.900 to 1.10 ms"


@pytest.mark.parametrize(
    ("low", "high", "told"),
    [(0.004, 0.0044, "told"), (1.0, 20.0, "told"), (3.05e-7, 131.0, None), (0.03, 292.31, None), (0.0, 1.0, None)],
)
def test_an_interval_that_says_nothing_is_not_told(low, high, told):
    assert formatting.spread(low, high, "told") == (told or "spread not known: too few runs")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.4, "0 s"),
        (45, "45 s"),
        (59.7, "1 min"),
        (200, "3 min 20 s"),
        (3600, "1 h"),
        (3900, "1 h 5 min"),
        (7170, "2 h"),
    ],
)
def test_durations_are_for_people_who_wait(value, text):
    assert formatting.duration(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "not known"), (0.735, "735 ms"), (99.9, "99.9 s"), (100, "1 min 40 s"), (5400, "1 h 30 min")],
)
def test_a_span_may_be_short_or_long(value, text):
    assert formatting.span(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "not known"),
        (0.21, "21%"),
        (0.08, "8%"),
        (0.0134, "1.3%"),
        (0.000141, "0.014%"),
        (0.0, "0%"),
        (1.0, "100%"),
    ],
)
def test_percentages(value, text):
    assert formatting.percent(value) == text


def test_rates_lists_and_counts():
    assert formatting.rate(None) == "not known"
    assert formatting.rate(32000.0) == "32,000"
    assert formatting.listed([]) == ""
    assert formatting.listed(["a"]) == "a"
    assert formatting.listed(["a", "b", "c"]) == "a, b and c"
    assert formatting.listed(["a", "b"], "nor") == "a nor b"
    assert formatting.counted(1, "device") == "1 device"
    assert formatting.counted(8192, "sample") == "8,192 samples"
    assert formatting.counted(2, "kind is", "kinds are") == "2 kinds are"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("one\ntwo", "one"),
        ("  \n one \n", "one"),
        ("", ""),
        (ValueError("wrong\nmore"), "wrong"),
        (KeyError(), "KeyError"),
    ],
)
def test_the_first_line_of_a_message_or_an_error(text, line):
    assert formatting.first_line(text).strip() == line
