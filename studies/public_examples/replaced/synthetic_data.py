"""Replaces the data that a public example loads by synthetic data, and nothing else.

It replaces `keras.datasets.*.load_data`, files that `keras.utils.get_file` and `gdown.download` fetch, URLs that pandas
and NumPy read, one file in the author's home folder, and gym's simulated pole. Arrays and files have the shapes, dtypes
and columns of the real data, with fewer samples (`EXAMPLE_ROWS`). `keras.utils.plot_model` draws nothing, since it
needs Graphviz. Packages that only display something in a notebook are replaced by packages that display nothing.

This module imports no package before the script, or its runner, imports it.
"""

from __future__ import annotations

import builtins
import functools
import importlib.abc
import importlib.machinery
import os
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import synthetic_files

SHOWN_ONLY = ("IPython", "IPython.display", "ipywidgets", "imageio")
"""Packages that display something in a notebook."""
FOLDER = "EXAMPLE_DATA"
"""The environment variable with the folder for synthetic files."""
ROWS = "EXAMPLE_ROWS"
"""The environment variable with the samples per array, as `train,test`."""
_OF_THE_AUTHOR = "/Users/fchollet/Downloads/creditcard.csv"


def install() -> None:
    """Replace data when their packages are imported. Without `EXAMPLE_DATA` nothing is replaced."""
    if FOLDER in os.environ and not any(isinstance(finder, Replacing) for finder in sys.meta_path):
        sys.meta_path.insert(0, Replacing())
        builtins.open = _opening(builtins.open)


class Replacing(importlib.abc.MetaPathFinder):
    """Changes modules after their import, and makes substitutes for modules that are not installed."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name in MADE:
            return importlib.machinery.ModuleSpec(name, Made(), is_package=name in SHOWN_ONLY)
        if name not in AFTER:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            run, after = spec.loader.exec_module, AFTER[name]

            def exec_module(module: types.ModuleType) -> None:
                run(module)
                after(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


class Made(importlib.abc.Loader):
    """A loader for the substitute of a module that is not installed."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return types.ModuleType(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        MADE[module.__name__](module)


def _keras(keras: types.ModuleType) -> None:
    for name, make in DATASETS.items():
        load = functools.partial(make, *rows())
        for module in (sys.modules[f"keras.datasets.{name}"], sys.modules[f"keras.src.datasets.{name}"]):
            module.load_data = load  # type: ignore[attr-defined]
    _everywhere(keras.utils.get_file, get_file)
    _everywhere(keras.utils.plot_model, lambda *_, **__: None)


def _everywhere(original: Any, instead: Callable[..., Any]) -> None:
    for module in list(sys.modules.values()):
        if module.__name__.split(".")[0] == "keras":
            for name in [name for name, value in vars(module).items() if value is original]:
                setattr(module, name, instead)


def _numpy(numpy: types.ModuleType) -> None:
    numpy.loadtxt = _at_an_address(numpy.loadtxt)  # type: ignore[attr-defined]


def _pandas(pandas: types.ModuleType) -> None:
    pandas.read_csv = _at_an_address(pandas.read_csv)  # type: ignore[attr-defined]


def _at_an_address(read: Callable[..., Any]) -> Callable[..., Any]:
    """Return a reader that reads a synthetic file instead of a URL."""

    @functools.wraps(read)
    def reading(place: Any, *arguments: Any, **named: Any) -> Any:
        address = isinstance(place, str) and place.startswith(("http://", "https://"))
        return read(file(place) if address else place, *arguments, **named)

    return reading


def _opening(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def opening(place: Any, *arguments: Any, **named: Any) -> Any:
        return plain(file(place) if place == _OF_THE_AUTHOR else place, *arguments, **named)

    return opening


def get_file(fname: str | None = None, origin: str | None = None, *_: Any, **__: Any) -> str:
    """Return a synthetic file, as `keras.utils.get_file` returns a downloaded one."""
    return str(file(fname or origin or ""))


def file(place: str) -> Path:
    """Return the synthetic file for a URL or a path. It is made at its first use."""
    return synthetic_files.made(Path(os.environ[FOLDER]), place.rsplit("/", 1)[-1])


def rows() -> tuple[int, int]:
    """Return the number of samples to train and to test on."""
    train, test = os.environ.get(ROWS, "6000,1000").split(",")
    return int(train), int(test)


def _images(shape: tuple[int, ...], classes: int, column: bool, train: int, test: int, **_: Any) -> Any:
    """Return ((x, y), (x, y)): uint8 images, and labels with some of every class."""
    import numpy as np

    rng = np.random.default_rng(0)

    def split(count: int) -> Any:
        labels = (np.arange(count) % classes).astype("uint8")
        rng.shuffle(labels)
        return rng.integers(0, 256, (count, *shape), "uint8"), labels[:, None] if column else labels

    return split(train), split(test)


def _reviews(train: int, test: int, num_words: int = 20000, **_: Any) -> Any:
    """Return ((x, y), (x, y)): object arrays of lists of word numbers, as `keras.datasets.imdb` does."""
    import numpy as np

    rng = np.random.default_rng(0)

    def split(count: int) -> Any:
        texts = np.empty(count, dtype=object)
        texts[:] = [rng.integers(1, num_words, rng.integers(20, 500)).tolist() for _ in range(count)]
        return texts, rng.integers(0, 2, count)

    return split(train), split(test)


def _shows_nothing(module: types.ModuleType) -> None:
    def __getattr__(name: str) -> Any:  # noqa: N807 -- PEP 562
        if name.startswith("__"):
            raise AttributeError(name)
        return _nothing

    module.__getattr__ = __getattr__  # type: ignore[method-assign]
    module.__path__ = []
    module.version_info = (9, 0)  # type: ignore[attr-defined]  # Matplotlib asks IPython for it


def _nothing(*_: Any, **__: Any) -> None:
    """An object whose methods do nothing."""


def _gdown(module: types.ModuleType) -> None:
    def download(url: str, output: str, **_: Any) -> str:
        Path(output).write_bytes(file(output).read_bytes())
        return output

    module.download = download  # type: ignore[attr-defined]


def _gym(module: types.ModuleType) -> None:
    from synthetic_pole import Pole

    module.make = lambda name, **_: Pole()  # type: ignore[attr-defined]


DATASETS: dict[str, Callable[..., Any]] = {
    "mnist": functools.partial(_images, (28, 28), 10, False),
    "fashion_mnist": functools.partial(_images, (28, 28), 10, False),
    "cifar10": functools.partial(_images, (32, 32, 3), 10, True),
    "cifar100": functools.partial(_images, (32, 32, 3), 100, True),
    "imdb": _reviews,
}
AFTER: dict[str, Callable[[types.ModuleType], None]] = {"keras": _keras, "numpy": _numpy, "pandas": _pandas}
"""Modules that are changed after their import."""
MADE: dict[str, Callable[[types.ModuleType], None]] = {
    **dict.fromkeys(SHOWN_ONLY, _shows_nothing),
    "gdown": _gdown,
    "gym": _gym,
}
"""Modules that are substituted."""
