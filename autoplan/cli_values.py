"""Words of the command line -> values: durations, shares, ranges, meshes and settings."""

from __future__ import annotations

import re
from collections.abc import Iterable

from cost_models.errors import ConfigError

_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?")
_SHARE = re.compile(r"(\d+(?:\.\d+)?)%")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_AXES = ("data", "model")


def duration_seconds(text: str) -> float:
    """`90s`, `10m`, `1h30m` -> seconds, above zero. ConfigError for anything else, a number without a unit included."""
    match = _DURATION.fullmatch(text.strip().lower())
    hours, minutes, seconds = (float(part or 0) for part in match.groups()) if match else (0.0, 0.0, 0.0)
    total = hours * 3600 + minutes * 60 + seconds
    if total <= 0:
        raise ConfigError(f"--budget {text}: expected a time with units, such as 90s, 10m or 1h30m")
    return total


def share(text: str) -> float:
    """`8%` -> 0.08. ConfigError unless it is a percentage of at least 0% and below 100%."""
    match = _SHARE.fullmatch(text.strip())
    value = float(match.group(1)) / 100 if match else 1.0
    if value >= 1:
        raise ConfigError(f"--headroom {text}: expected a percentage of the device's memory below 100%, such as 8%")
    return value


def batch_range(text: str) -> tuple[int, int] | None:
    """`keep` -> None; `64..4096` -> (64, 4096), in samples an update. ConfigError for anything else."""
    if text.strip() == "keep":
        return None
    match = _RANGE.fullmatch(text.strip())
    low, high = (int(part) for part in match.groups()) if match else (0, 0)
    if not 1 <= low <= high:
        raise ConfigError(f"--effective-batch {text}: expected `keep`, or samples an update from..to, such as 64..4096")
    return low, high


def mesh_axes(text: str) -> dict[str, int]:
    """`data=4,model=2` -> devices by axis. ConfigError for an unknown or repeated axis, or a size that is no number."""
    axes: dict[str, int] = {}
    for part in text.split(","):
        name, _, size = (piece.strip() for piece in part.partition("="))
        if name not in _AXES or name in axes or not size.isdecimal() or int(size) < 1:
            raise ConfigError(f"--mesh {text}: expected each of the axes data and model once, such as data=4,model=2")
        axes[name] = int(size)
    return axes


def settings(pairs: Iterable[str]) -> dict[str, str]:
    """`precision=float32`, `mesh=data=8` -> {"precision": "float32", "mesh": "data=8"}.

    ConfigError where there is no `=`, no value, or the same key twice. What keys and values may be is not decided here.
    """
    found: dict[str, str] = {}
    for pair in pairs:
        key, _, value = (piece.strip() for piece in pair.partition("="))
        if not key or not value:
            raise ConfigError(f"--fix {pair}: expected KEY=VALUE, such as precision=float32 or mesh=data=8")
        if key in found:
            raise ConfigError(f"--fix {key} is given twice, as {found[key]} and as {value}; keep one of them")
        found[key] = value
    return found


def names(texts: Iterable[str]) -> tuple[str, ...]:
    """`a,b` and repetitions -> ("a", "b"), in order, each once. What names may be is not decided here."""
    parts = [part.strip() for text in texts for part in text.split(",")]
    return tuple(dict.fromkeys(part for part in parts if part))
