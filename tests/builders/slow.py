"""Marks some cases of a parametrized test as slow, so that only `-m 'slow or not slow'` runs them."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def slow(*cases: Any) -> list[Any]:
    """Return the cases with the mark; a tuple has a value for each name."""
    return [pytest.param(*(one if isinstance(one, tuple) else (one,)), marks=pytest.mark.slow) for one in cases]


def slow_among(cases: Iterable[str], similar: Collection[str]) -> list[Any]:
    """Return all of these names, with the mark on those that resemble others."""
    return [pytest.param(one, marks=pytest.mark.slow if one in similar else ()) for one in cases]
