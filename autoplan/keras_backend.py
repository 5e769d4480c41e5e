"""Which Keras backend a training runs on: what the user named, held against what can be run. Imports no framework."""

from __future__ import annotations

import json
import os
from pathlib import Path

from autoplan.errors import ConfigError

RUNNABLE = ("jax",)
"""Backends that trials and trainings run on, the default first."""
_PLANNED = ("tensorflow", "torch")


def chosen(asked: str | None = None) -> str:
    """The backend to run on: the one asked for, or KERAS_BACKEND's, or the default where neither says.

    ConfigError, before anything is started, for a backend that cannot be run.
    """
    name = asked or os.environ.get("KERAS_BACKEND") or RUNNABLE[0]
    if name in RUNNABLE:
        return name
    expected = " or ".join(RUNNABLE)
    remedy = f"give backend={RUNNABLE[0]!r}" if asked else f"set KERAS_BACKEND={RUNNABLE[0]}"
    if name in _PLANNED:
        raise ConfigError(f"the {name} backend cannot be run yet; expected {expected}: {remedy}")
    raise ConfigError(f"unknown backend {name!r}; expected {expected}: {remedy}")


def notes() -> list[str]:
    """What to know where the user's keras.json names another backend, which Keras takes when KERAS_BACKEND is unset."""
    configured = _configured()
    if os.environ.get("KERAS_BACKEND") or configured is None or configured in RUNNABLE:
        return []
    ours = RUNNABLE[0]
    told = f"keras.json names {configured}; trials and plan are on {ours}"
    return [f"{told}: set KERAS_BACKEND={ours} when you run the script by itself"]


def _configured() -> str | None:
    """The backend in keras.json, looked for where Keras looks; None where there is none that can be read."""
    home = os.environ.get("KERAS_HOME")
    folder = Path(home) if home else Path("~/.keras").expanduser()
    try:
        settings = json.loads((folder / "keras.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    name = settings.get("backend") if isinstance(settings, dict) else None
    return name if isinstance(name, str) else None
