"""Run a source without autoplan and print the number of updates that each of its fits makes.

    python -m studies.count_updates SOURCE [ARGUMENTS]

SOURCE is a script that calls `fit`, or a file with `build_model()` and `train_data()`. `autoplan train` has to make as
many updates.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def count_updates(source: str, arguments: Sequence[str]) -> None:
    """Run a script, or fit a builder's model on its data, and print the updates of each fit."""
    os.environ.setdefault("KERAS_BACKEND", "jax")
    import keras

    plain, fits = keras.Model.fit, []

    def fit(model: Any, *given: Any, **named: Any) -> Any:
        before = int(model.optimizer.iterations)
        history = plain(model, *given, **named)
        fits.append(int(model.optimizer.iterations) - before)
        print(f"fit {len(fits)}: without autoplan; {fits[-1]} updates", flush=True)
        return history

    keras.Model.fit = fit
    sys.argv = [source, *arguments]
    sys.path.insert(0, str(Path(source).parent))  # as `python SOURCE` does
    names = runpy.run_path(source, run_name="__main__")
    if not fits and "build_model" in names and "train_data" in names:
        names["build_model"]().fit(*names["train_data"]())


if __name__ == "__main__":
    count_updates(sys.argv[1], sys.argv[2:])
