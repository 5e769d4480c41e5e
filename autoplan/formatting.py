"""Formats numbers as text for people: three significant digits with a unit, for bytes, times, rates and percentages."""

from __future__ import annotations

from collections.abc import Sequence

NOT_KNOWN = "not known"
TIME_PARTS = {
    "compute": "arithmetic",
    "memory": "memory traffic",
    "communication": "communication",
    "overhead": "launch overhead",
}
"""Names in text of the parts of a micro-step's estimated time, by their names in `cost_models.time.cost.TimeCost`."""
_WIDEST = 20
"""Times that an interval's upper end may be its lower one before it says nothing."""
_BYTE_UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def significant(value: float) -> str:
    """Return three significant digits without an exponent: 134,000; 36.6; 0.00412."""
    if value == 0:
        return "0"
    rounded = float(f"{value:.3g}")
    if abs(rounded) >= 100:
        return f"{rounded:,.0f}"
    decimals = max(0, 2 - _exponent(rounded))
    return f"{rounded:.{decimals}f}"


def size(count: int | None) -> str:
    """Return bytes as GiB, MiB or KiB, powers of two."""
    if count is None:
        return NOT_KNOWN
    for unit_bytes, unit in _BYTE_UNITS:
        if abs(count) >= unit_bytes:
            return f"{significant(count / unit_bytes)} {unit}"
    return f"{count} B"


def first_line(text: object) -> str:
    """Return the first line of a message or an error; of an error without a message, its type."""
    lines = str(text).strip().splitlines()
    if lines:
        return lines[0]
    return type(text).__name__ if isinstance(text, BaseException) else ""


def seconds(value: float | None) -> str:
    """Return a time of the size of a micro-step in µs, ms or s."""
    if value is None:
        return NOT_KNOWN
    scale, unit = _second_unit(value)
    return f"{significant(value * scale)} {unit}"


def seconds_range(low: float, high: float) -> str:
    """Return an interval in the unit of its upper end: `3.97 to 4.36 ms`."""
    scale, unit = _second_unit(high)
    return f"{significant(low * scale)} to {significant(high * scale)} {unit}"


def spread(low: float, high: float, interval: str) -> str:
    """Return an interval as text, or that it is not known where its ends are too far apart to say anything.

    Student's t of two runs has one degree of freedom, and gives ends that are millions of times apart.
    """
    return interval if low > 0 and high <= _WIDEST * low else "spread not known: too few runs"


def duration(value: float) -> str:
    """Return a waiting time: `45 s`, `3 min 20 s`, `1 h 5 min`."""
    whole = round(value)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min" + (f" {whole % 60} s" if whole % 60 else "")
    minutes = round(whole / 60)
    return f"{minutes // 60} h" + (f" {minutes % 60} min" if minutes % 60 else "")


def span(value: float | None) -> str:
    """Return a time of any size, from seconds to hours."""
    return seconds(value) if value is None or value < 100 else duration(value)


def rate(value: float | None) -> str:
    """Return a rate without its unit: `134,000`."""
    return NOT_KNOWN if value is None else significant(value)


def percent(value: float | None) -> str:
    """Return a fraction as a percentage, with one decimal below ten and two digits below a tenth."""
    if value is None:
        return NOT_KNOWN
    if 0 < abs(value) < 0.001:
        return f"{value * 100:.2g}%"
    return f"{value:.0%}" if abs(value) >= 0.1 else f"{value:.1%}".replace(".0%", "%")


def listed(words: Sequence[str], conjunction: str = "and") -> str:
    """`a, b and c`."""
    return f" {conjunction} ".join(part for part in (", ".join(words[:-1]), *words[-1:]) if part)


def counted(number: int, singular: str, plural: str | None = None) -> str:
    """`1 device`, `4 devices`."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def _exponent(value: float) -> int:
    """Return the power of ten of the first digit."""
    return int(f"{abs(value):e}".partition("e")[2])


def _second_unit(value: float) -> tuple[float, str]:
    if 0 < abs(value) < 1e-3:
        return 1e6, "µs"
    return (1e3, "ms") if 0 < abs(value) < 1 else (1.0, "s")
