"""Checkpoints that an earlier fit of a script would have left behind, in a trial that leaves their callbacks out.

Scripts load them afterwards: the best weights, or the best model. What they hold has no share in how long a micro-step
takes, so where such a file is missing the model goes on with the weights that it has.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras

from autoplan.runtime import callbacks


class LeftOut:
    """Files that were not written, and the model that each would hold. Without any, loading is Keras's own."""

    def __init__(self) -> None:
        self._models: dict[Path, Any] = {}

    def note(self, model: Any, given: Any) -> None:
        """A fit of this model runs without these callbacks."""
        for one in callbacks.as_list(given):
            if isinstance(one, keras.callbacks.ModelCheckpoint):
                self._models[Path(one.filepath).absolute()] = model

    def load_weights(self, original: Callable[..., Any], model: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        """`Model.load_weights`, which leaves the weights as they are where the file is one of these."""
        return None if self._model_of(filepath) is not None else original(model, filepath, *args, **kwargs)

    def load_model(self, original: Callable[..., Any], filepath: Any, *args: Any, **kwargs: Any) -> Any:
        """`load_model`, which answers with the live model where the file is one of these."""
        found = self._model_of(filepath)
        return original(filepath, *args, **kwargs) if found is None else found

    def _model_of(self, filepath: Any) -> Any:
        if not isinstance(filepath, str | Path):
            return None
        path = Path(filepath).absolute()
        return None if path.exists() else self._models.get(path)
