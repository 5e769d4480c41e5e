"""Parses `--fix KEY=VALUE` and `--only KEY,KEY` to values and names of knobs.

A key is a key of `TrainConfig.to_dict()`. A part of a mapping follows a dot or is written inside the value:
`--fix mesh.data=8` and `--fix mesh=data=8` mean the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from autoplan.errors import ConfigError
from autoplan.plan import knobs
from autoplan.plan.knobs import Knob
from cost_models.validation import did_you_mean


def parse_fix(fix: Mapping[str, str]) -> dict[str, Any]:
    """Return the values that `--fix` sets: `{"mesh": "data=8", "jit_compile": "off"}` -> `{"data": 8, ...: False}`.

    ConfigError for an unknown key (with similar ones), a value of the wrong type, and two values for one knob.
    """
    fixed: dict[str, Any] = {}
    for key, text in fix.items():
        for knob, part in _parts(key, text):
            value = _parse(key, knob, part)
            if fixed.setdefault(knob.name, value) != value:
                raise ConfigError(
                    f"--fix sets {knob.spelling} to both {fixed[knob.name]} and {value}; keep one of them"
                )
    return fixed


def free_fields(only: Iterable[str]) -> frozenset[str]:
    """Return the fields that tuning can change: those that `--only` names, or all where it names none.

    ConfigError for a name that cannot be tuned, and for words without a name.
    """
    words, tunable = list(only), knobs.tunable_fields()
    names = [name.strip().split(".")[0] for name in words if name.strip()]
    if words and not names:
        raise ConfigError(f"--only names no knob; choose from {', '.join(tunable)}")
    for name in names:
        if name not in tunable:
            meant = did_you_mean(name, tunable)
            raise ConfigError(
                f"--only {name}: no setting of this name can be tuned{meant}; choose from {', '.join(tunable)}"
            )
    return frozenset(names or tunable)


def described_settings() -> list[tuple[str, str]]:
    """Return each setting of `--fix` in its shortest spelling, with its meaning and its values: for help texts."""
    return [((*knob.aliases, knob.spelling)[0], _described(knob)) for knob in knobs.KNOBS]


def _described(knob: Knob) -> str:
    return knob.description if knob.kind.type is int else f"{knob.description} ({knob.kind.expected})"


def _parts(key: str, text: str) -> list[tuple[Knob, str]]:
    """Return the knobs that one `--fix` sets, with the text of each value."""
    rows = knobs.parts_of(key)
    has_parts = bool(rows) and len(rows[0].path) > 1
    if has_parts and "=" in text:
        pairs = [part.partition("=") for part in text.split(",")]
        return [(_knob(f"{key}.{name.strip()}"), value.strip()) for name, _, value in pairs]
    if has_parts and key not in _spellings():
        example = f"{rows[0].path[-1]}={rows[0].kind.example}"
        raise ConfigError(f"--fix {key}={text}: expected parts with values, for example --fix {key}={example}")
    return [(_knob(key), text.strip())]


def _knob(key: str) -> Knob:
    known = _spellings()
    if key not in known:
        raise ConfigError(f"--fix {key}: unknown setting{did_you_mean(key, known)}; choose from {', '.join(known)}")
    return known[key]


def _spellings() -> dict[str, Knob]:
    """Return every spelling of a key with its knob."""
    pairs = [(spelling, knob) for knob in knobs.KNOBS for spelling in (knob.spelling, *knob.aliases)]
    return dict(sorted(pairs, key=lambda pair: pair[0]))


def _parse(key: str, knob: Knob, text: str) -> Any:
    try:
        return knob.kind.parse(text)
    except ValueError:
        raise ConfigError(f"--fix {key}: {knob.spelling} cannot be {text!r}; expected {knob.kind.expected}") from None
