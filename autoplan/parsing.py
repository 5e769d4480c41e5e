"""Parses texts of the command line to values: times, sizes, percentages, ranges, meshes and `KEY=VALUE` settings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

_NUMBER = r"([0-9]{1,12}(?:\.[0-9]{1,12})?)"  # longer ones are no times, sizes or batches, and overflow
_DURATION = re.compile(rf"(?:{_NUMBER}h)?(?:{_NUMBER}m)?(?:{_NUMBER}s)?")
_SHARE = re.compile(rf"{_NUMBER}%")
_SIZE = re.compile(rf"{_NUMBER} ?([kmgt]i?b|[kmgt])")
_LONGEST_COUNT = 12
_WHOLE = re.compile(rf"[0-9]{{1,{_LONGEST_COUNT}}}")
_RANGE = re.compile(rf"([0-9]{{1,{_LONGEST_COUNT}}})\.\.([0-9]{{1,{_LONGEST_COUNT}}})")
_AXES = ("data", "model")
_NAMED = {
    "--only": "names of settings with commas between, such as batch,precision",
    "--hardware": "names of hardware with commas between, such as tpu-v5e-4,gpu-h100-80gb",
    "--family": "families with commas between, such as tpu,nvidia",
}
"""The expected text of an option that takes several names."""


def refused(message: str) -> Exception:
    """A ConfigError; imported late, for its package brings NumPy along and `--help` shall not wait for that."""
    from cost_models.errors import ConfigError

    return ConfigError(message)


def duration_seconds(text: str) -> float:
    """`90s`, `10m`, `1h30m` -> seconds, above zero. ConfigError for anything else, a number without a unit included."""
    match = _DURATION.fullmatch(text.strip().lower())
    hours, minutes, seconds = (float(part or 0) for part in match.groups()) if match else (0.0, 0.0, 0.0)
    total = hours * 3600 + minutes * 60 + seconds
    if total <= 0:
        raise refused(f"--budget {text}: expected a time with units, such as 90s, 10m or 1h30m")
    return total


def share(text: str) -> float:
    """`8%` -> 0.08. ConfigError unless it is a percentage of at least 0% and below 100%."""
    match = _SHARE.fullmatch(text.strip())
    value = float(match.group(1)) / 100 if match else 1.0
    if value >= 1:
        raise refused(f"--headroom {text}: expected a percentage of the device's memory below 100%, such as 8%")
    return value


def size_bytes(text: str) -> int:
    """`2GiB`, `1500 MB`, `2g` -> bytes, above zero. ConfigError for anything else, a number without a unit included.

    KiB and a letter alone are powers of 1024, as control groups and containers take them; KB is a power of 1000.
    """
    match = _SIZE.fullmatch(text.strip().lower())
    count, unit = (float(match.group(1)), match.group(2)) if match else (0.0, "k")
    base = 1000 if unit.endswith("b") and "i" not in unit else 1024
    size = int(count * base ** (1 + "kmgt".index(unit[0])))
    if size <= 0:
        raise refused(f"--memory-limit {text}: expected a size with a unit, such as 2GiB or 1500MB")
    return size


def batch_range(text: str) -> tuple[int, int] | None:
    """`keep` -> None; `64..4096` -> (64, 4096) and `64` -> (64, 64), in samples an update; ConfigError for the rest."""
    if text.strip() == "keep":
        return None
    if _WHOLE.fullmatch(text.strip()) and int(text) > 0:
        return int(text), int(text)
    match = _RANGE.fullmatch(text.strip())
    low, high = (int(part) for part in match.groups()) if match else (0, 0)
    if not 1 <= low <= high:
        raise refused(
            f"--effective-batch {text}: expected keep, samples per update such as 256, or a range such as 64..4096"
        )
    return low, high


def mesh_axes(text: str) -> dict[str, int]:
    """`data=4,model=2` -> devices by axis. ConfigError for an unknown or repeated axis, or a size that is no number."""
    axes: dict[str, int] = {}
    for part in text.split(","):
        name, _, size = (piece.strip() for piece in part.partition("="))
        counts = size.isascii() and size.isdecimal() and len(size) <= _LONGEST_COUNT and int(size) >= 1
        if name not in _AXES or name in axes or not counts:
            raise refused(f"--mesh {text}: expected each of the axes data and model once, such as data=4,model=2")
        axes[name] = int(size)
    return axes


def settings(pairs: Iterable[str]) -> dict[str, str]:
    """`precision=float32`, `mesh=data=8` -> {"precision": "float32", "mesh": "data=8"}.

    ConfigError where there is no `=`, no value, or the same key twice. Keys and values are checked elsewhere.
    """
    found: dict[str, str] = {}
    for pair in pairs:
        key, _, value = (piece.strip() for piece in pair.partition("="))
        if not key or not value:
            raise refused(f"--fix {pair}: expected KEY=VALUE, such as precision=float32 or mesh=data=8")
        if key in found:
            raise refused(f"--fix {key} is given twice, as {found[key]} and as {value}; keep one of them")
        found[key] = value
    return found


def input_shapes(texts: Iterable[str]) -> dict[str, list[int]]:
    """`224,224,3` -> {"": [224, 224, 3]}; `ids=512` -> {"ids": [512]}. Shapes have no batch dimension.

    ConfigError for a size that is no whole number of at least 1, and for an input that is named twice or not among
    others that are. Names are checked elsewhere.
    """
    found: dict[str, list[int]] = {}
    for text in texts:
        before, named, after = (piece.strip() for piece in text.rpartition("="))
        sizes = [size.strip() for size in after.split(",")]
        known = all(size.isascii() and size.isdecimal() and len(size) <= _LONGEST_COUNT for size in sizes)
        if not known or min(map(int, sizes)) < 1 or (named and not before):
            raise refused(
                f"--input-shape {text}: expected the sizes of one sample, without the batch, such as 224,224,3, or "
                "NAME=224,224,3 for one of several inputs"
            )
        if before in found or (found and "" in (before, *found)):
            several = (
                f"the input {before} twice" if before in found and before else "several inputs, one without a name"
            )
            raise refused(f"--input-shape is given for {several}; give each input once, as NAME=SIZE,...")
        found[before] = [int(size) for size in sizes]
    return found


def shape_texts(shape: object) -> list[str]:
    """Return shapes as the option takes them: (224, 224, 3) -> ["224,224,3"], {"ids": (512,)} -> ["ids=512"]."""
    if shape is None:
        return []
    if isinstance(shape, Mapping):
        return [f"{name}={','.join(shape_texts(sizes))}" for name, sizes in shape.items()]
    sizes = [shape] if isinstance(shape, int | str) else shape
    return [",".join(map(str, sizes))] if isinstance(sizes, Iterable) else [str(shape)]


def names(texts: Iterable[str], option: str = "--only") -> tuple[str, ...]:
    """`a,b` and repetitions -> ("a", "b"), in order, each once; ConfigError for a text without any, such as `,`.

    The names are checked elsewhere.
    """
    found: list[str] = []
    for text in texts:
        parts = [part.strip() for part in text.split(",") if part.strip()]
        if not parts:
            raise refused(f"{option} {text!r}: expected {_NAMED[option]}")
        found += parts
    return tuple(dict.fromkeys(found))


def choice(option: str, text: str, known: Sequence[str]) -> str:
    """`text`, when it is one of `known`. ConfigError names them, and the one that is near."""
    if text in known:
        return text
    from cost_models.validation import did_you_mean  # imported late, as `refused` does

    raise refused(f"{option} {text}: expected one of {', '.join(known)}{did_you_mean(text, known)}")
