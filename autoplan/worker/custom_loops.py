"""Reads from a script's text how it trains: in a custom loop, for which no job waits, or in several calls of `fit`."""

from __future__ import annotations

import ast
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from autoplan.sources.source import SourceSpec

PATIENCE_SECONDS = 60.0
"""Time that a script may run before its text is searched for a custom loop and a call of `fit`."""
_WORDS = ("train_on_batch", "GradientTape", "value_and_grad", "stateless_apply", "stateless_call", ".backward(")
_FIT = ".fit("
_KERAS_ARGUMENTS = frozenset(
    ("batch_size", "epochs", "verbose", "callbacks", "validation_split", "validation_data", "steps_per_epoch")
)
"""Arguments by which a call of `fit` of Keras differs from that of other libraries."""
_OURS = tuple(Path(__file__).parents[2] / package for package in ("autoplan", "cost_models"))


def custom_loop_functions(source: SourceSpec) -> list[str]:
    """Return the functions of a custom training loop that the script or its own imported modules contain."""
    texts = list(_texts(source))
    return [word.strip(".(") for word in _WORDS if any(word in text for text in texts)]


def contains_fit(source: SourceSpec) -> bool:
    """Return whether the script or its own imported modules contain a call of `fit`."""
    return any(_FIT in text for text in _texts(source))


def may_fit_again(source: SourceSpec) -> bool:
    """Return whether the script contains several calls of Keras's `fit`, or calls it in a loop."""
    found = 0
    for text in _texts(source):
        try:
            tree = ast.parse(text)
        except SyntaxError:
            continue
        loops = [one for one in ast.walk(tree) if isinstance(one, ast.For | ast.While)]
        found += sum(map(_fits, ast.walk(tree))) + sum(_fits(one) for loop in loops for one in ast.walk(loop))
    return found > 1


def _fits(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "fit"
        and any(keyword.arg in _KERAS_ARGUMENTS for keyword in node.keywords)
    )


class LoopWatch:
    """Calls `on_loop` if a script still runs after `patience_seconds`, has a custom loop, and never calls `fit`.

    Use it as a context manager, and call `cancel` when `fit` is reached.
    """

    def __init__(self, source: SourceSpec, on_loop: Callable[[], None], patience_seconds: float) -> None:
        self._source, self._on_loop = source, on_loop
        self.timer = threading.Timer(patience_seconds, self._look)
        self.timer.daemon = True

    def __enter__(self) -> LoopWatch:
        self.timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    def cancel(self) -> None:
        self.timer.cancel()

    def _look(self) -> None:
        if custom_loop_functions(self._source) and not contains_fit(self._source):
            self._on_loop()


def _texts(source: SourceSpec) -> Iterator[str]:
    """Yield the text of the script and of imported modules in its folder (for -m, in the working directory)."""
    root = Path.cwd() if source.module else Path(source.path).parent
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    paths = {Path(file) for file in files if isinstance(file, str) and file.endswith(".py")}
    beside = {path for path in paths if path.is_relative_to(root) and not _is_installed(path)}
    for path in {Path(source.path), *beside}:
        if path.is_file():
            yield path.read_text(encoding="utf-8", errors="replace")


def _is_installed(path: Path) -> bool:
    """Return whether a file belongs to an installed package or to this project."""
    return "site-packages" in path.parts or any(path.is_relative_to(folder) for folder in _OURS)
