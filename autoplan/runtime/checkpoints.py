"""Lets a script continue when it loads a checkpoint file that is missing because trials skip ModelCheckpoint.

Scripts load them afterwards: the best weights, or the best model. The values of the weights do not affect the time of
a micro-step, so if the file is missing the model continues with its present weights.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras

from autoplan.runtime import callbacks


class SkippedCheckpoints:
    """Checkpoint files that were not written, with the model of each. Other files are loaded by Keras."""

    def __init__(self) -> None:
        self._models: dict[Path, Any] = {}

    def add(self, model: Any, skipped: Any) -> None:
        """Record that a fit of this model runs without these callbacks."""
        for callback in callbacks.as_list(skipped):
            if isinstance(callback, keras.callbacks.ModelCheckpoint):
                self._models[Path(callback.filepath).absolute()] = model

    def load_weights(self, original: Callable[..., Any], model: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        """Replace `Model.load_weights`: keep the present weights if the file is a skipped checkpoint."""
        return None if self._model_of(filepath) is not None else original(model, filepath, *args, **kwargs)

    def load_model(self, original: Callable[..., Any], filepath: Any, *args: Any, **kwargs: Any) -> Any:
        """Replace `load_model`: return the live model if the file is a skipped checkpoint."""
        found = self._model_of(filepath)
        return original(filepath, *args, **kwargs) if found is None else found

    def _model_of(self, filepath: Any) -> Any:
        if not isinstance(filepath, str | Path):
            return None
        path = Path(filepath).absolute()
        return None if path.exists() else self._models.get(path)
