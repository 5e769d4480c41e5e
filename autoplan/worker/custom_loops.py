"""Training loops that a script brings itself: found in its text, and told before a job has waited for their end."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from autoplan.sources.source import SourceSpec

PATIENCE_SECONDS = 60.0
"""How long a script may run before its text is asked whether it will ever call `fit`."""
_WORDS = ("train_on_batch", "GradientTape", "value_and_grad", "stateless_apply", "stateless_call", ".backward(")
_FIT = ".fit("
_OURS = tuple(Path(__file__).parents[2] / package for package in ("autoplan", "cost_models"))


def own_loops(source: SourceSpec) -> list[str]:
    """What of a training loop stands in the script or in the modules beside it that it has imported."""
    texts = list(_texts(source))
    return [word.strip(".(") for word in _WORDS if any(word in text for text in texts)]


def may_fit(source: SourceSpec) -> bool:
    """Whether any of these texts calls a `fit`."""
    return any(_FIT in text for text in _texts(source))


class LoopWatch:
    """Calls `on_loop` where a script still runs after a while, has a loop of its own, and calls no `fit` anywhere.

    A context manager; `cancel` where its `fit` is reached.
    """

    def __init__(self, source: SourceSpec, on_loop: Callable[[], None], patience_seconds: float) -> None:
        self._source, self._on_loop = source, on_loop
        self._timer = threading.Timer(patience_seconds, self._look)
        self._timer.daemon = True

    def __enter__(self) -> LoopWatch:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    def cancel(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        if own_loops(self._source) and not may_fit(self._source):
            self._on_loop()


def _texts(source: SourceSpec) -> Iterator[str]:
    """The script's text, and those of the modules in its folder (or, of a module that is run, in the working one)."""
    root = Path.cwd() if source.module else Path(source.path).parent
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    paths = {Path(file) for file in files if isinstance(file, str) and file.endswith(".py")}
    beside = {path for path in paths if path.is_relative_to(root) and not _is_installed(path)}
    for path in {Path(source.path), *beside}:
        if path.is_file():
            yield path.read_text(encoding="utf-8", errors="replace")


def _is_installed(path: Path) -> bool:
    """Not the script's own: a package that was installed, or this one."""
    return "site-packages" in path.parts or any(path.is_relative_to(place) for place in _OURS)
