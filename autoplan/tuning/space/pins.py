"""`--fix KEY=VALUE` and `--only KEY,KEY`: the user's words -> values of knobs, under the flat names of known issues.

A key is a key of `TrainConfig.to_dict()`. A mapping takes its part behind a dot or inside the value:
`--fix mesh.data=8` and `--fix mesh=data=8` say the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from autoplan.errors import ConfigError
from cost_models.config import Precision, RematMode

TUNABLE = ("precision", "batch", "mesh", "remat", "steps_per_execution", "jit_compile", "keep_freed_memory")
"""Knobs that tuning may turn, as `--only` names them."""

KNOB_PARTS: Mapping[str, tuple[str, ...]] = {
    "precision": ("precision",),
    "batch": ("global", "accumulation", "local", "effective"),
    "mesh": ("data", "model"),
    "layout": ("shard_state",),
    "remat": ("remat",),
    "steps_per_execution": ("steps_per_execution",),
    "jit_compile": ("jit_compile",),
    "keep_freed_memory": ("keep_freed_memory",),
    "backend": ("backend",),
}
"""Knob -> the flat names that it decides."""


def parse_pins(fix: Mapping[str, str]) -> dict[str, Any]:
    """`{"mesh": "data=8", "precision": "float32"}` -> `{"data": 8, "precision": Precision.FLOAT32}`.

    ConfigError for an unknown key (with near ones), a value of the wrong type, and two values for one knob.
    """
    pins: dict[str, Any] = {}
    for key, text in fix.items():
        for name, part in _parts(key, text):
            value = _convert(key, name, part)
            if pins.setdefault(name, value) != value:
                raise ConfigError(f"--fix says both {pins[name]} and {value} for {spelling(name)}; keep one of them")
    return pins


def free_knobs(only: Iterable[str]) -> frozenset[str]:
    """The knobs that may be turned: those named, or all where `only` is empty.

    ConfigError for a name that cannot be tuned, and where words were given that name nothing.
    """
    words = list(only)
    names = [name.strip().split(".")[0] for name in words if name.strip()]
    if words and not names:
        raise ConfigError(f"--only names no knob; choose from {', '.join(TUNABLE)}")
    for name in names:
        if name not in TUNABLE:
            raise ConfigError(
                f"--only {name}: not a knob that can be tuned{_near(name, TUNABLE)}; choose from {', '.join(TUNABLE)}"
            )
    return frozenset(names or TUNABLE)


def spelling(name: str) -> str:
    """A flat name as the user writes it: `data` -> `mesh.data`, `remat` -> `remat.mode`."""
    for knob, parts in KNOB_PARTS.items():
        if name in parts:
            return "remat.mode" if name == "remat" else name if name == knob else f"{knob}.{name}"
    raise ConfigError(f"{name!r} is no knob; choose from {', '.join(_all_keys())}")


def _parts(key: str, text: str) -> list[tuple[str, str]]:
    """One `--fix` -> (flat name, value text) pairs."""
    if key in ("batch", "mesh", "layout", "remat") and "=" in text:
        pairs = [part.partition("=") for part in text.split(",")]
        return [(_flat(f"{key}.{name.strip()}"), value.strip()) for name, _, value in pairs]
    if key == "batch":
        return [("global", text.strip())]
    if key == "mesh":
        raise ConfigError(f"--fix mesh={text}: expected axes with sizes, for example --fix mesh=data=8")
    return [(_flat(key), text.strip())]


def _flat(key: str) -> str:
    names = _all_keys()
    if key not in names:
        raise ConfigError(f"--fix {key}: no such key{_near(key, names)}; choose from {', '.join(names)}")
    return names[key]


def _all_keys() -> dict[str, str]:
    """Every spelling of a key -> its flat name."""
    keys = {"accumulation": "accumulation", "remat": "remat", "remat.mode": "remat"}
    for knob, parts in KNOB_PARTS.items():
        keys |= {part if part == knob else f"{knob}.{part}": part for part in parts if part != "remat"}
    return dict(sorted(keys.items()))


def _near(word: str, known: Iterable[str]) -> str:
    near = get_close_matches(word, list(known), n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def _convert(key: str, name: str, text: str) -> Any:
    converter, expected = _CONVERTERS.get(name, (_positive, "a whole number of at least 1"))
    try:
        return converter(text)
    except ValueError:
        raise ConfigError(f"--fix {key}: {spelling(name)} cannot be {text!r}; expected {expected}") from None


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def _policy(text: str) -> Precision:
    policy = Precision(text)
    if policy is Precision.OTHER:
        raise ValueError(text)
    return policy


def _flag(text: str) -> bool:
    known = {"true": True, "on": True, "yes": True, "false": False, "off": False, "no": False}
    if text.lower() not in known:
        raise ValueError(text)
    return known[text.lower()]


_CONVERTERS: Mapping[str, tuple[Callable[[str], Any], str]] = {
    "precision": (_policy, "one of " + ", ".join(p.value for p in Precision if p is not Precision.OTHER)),
    "remat": (RematMode, "one of " + ", ".join(mode.value for mode in RematMode)),
    "jit_compile": (_flag, "true or false"),
    "shard_state": (_flag, "true or false"),
    "keep_freed_memory": (_flag, "true or false"),
    "backend": (str, "a Keras backend"),
}
