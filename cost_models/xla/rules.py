"""Registers rules of compilers and kernel times by name and source; each needs a row in a study's `ledger.csv`.

A profile (`profile.py`) lists the rules of one kind of device. A rule that is not listed is off, which is how the
ledger in `studies/memory_vs_compiler` measures what each rule is worth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

READ_FROM = "jax 0.10.2"
"""The release whose compilers the rules were read from: XLA:GPU and XLA:CPU of jaxlib 0.10.2, and libtpu 0.0.42.1.
Thresholds in rules and profiles come from programs that it compiled."""


@dataclass(frozen=True)
class Rule:
    """A function that models one thing a compiler does.

    name             unique, as profiles and the ledger spell it
    source           the part of the compiler that it models, or the observation that it rests on
    structure_batch  (workload, profile, local batch) -> the batch nearest to the trace's at which the rule decides
                     alike, None if it does so at every batch (None: a rule that never depends on the batch)
    settings         keyword arguments that a profile binds
    """

    name: str
    source: str
    function: Callable[..., Any] = field(repr=False)
    structure_batch: Callable[..., int | None] | None = field(default=None, repr=False)
    settings: tuple[tuple[str, Any], ...] = ()

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments, **dict(self.settings))

    def using(self, **settings: Any) -> Rule:
        """Return the rule with these keyword arguments bound; their values must be hashable."""
        return replace(self, settings=tuple(sorted({**dict(self.settings), **settings}.items())))


_registered: dict[str, Rule] = {}


def rule(
    name: str, source: str, structure_batch: Callable[..., int | None] | None = None
) -> Callable[[Callable[..., Any]], Rule]:
    """Return a decorator that registers a function as a rule.

    ValueError for a name that is registered already.
    """

    def register(function: Callable[..., Any]) -> Rule:
        if name in _registered:
            raise ValueError(f"a rule named {name!r} is registered already; rule names are unique")
        _registered[name] = Rule(name, source, function, structure_batch)
        return _registered[name]

    return register


def registered() -> Mapping[str, Rule]:
    """Return every rule by name, as far as the modules of rules are imported; profiles import them all."""
    return MappingProxyType(_registered)
