"""Batches for a model that comes without data: shapes, dtypes, and values that its layers and losses accept."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from cost_models.errors import WorkloadError

_FALLBACK_DIM = 128  # a free dimension besides the batch (sequence length, image side) that the model leaves open


def synthetic_specs(model: Any, batch_size: int) -> tuple[Any, Any]:
    """(x, y) of `keras.KerasTensor`s for a built, compiled model; y is None when the model has no loss of its own.

    Sparse losses take integer targets without the class axis; all others take targets like the output. WorkloadError
    when the model does not say what its inputs are.
    """
    x = keras.tree.map_structure(lambda spec: _tensor(spec.shape, spec.dtype, batch_size), _inputs(model))
    return x, _target_specs(model, x, batch_size)


def synthetic_batch(model: Any, batch_size: int, seed: int = 0) -> tuple[Any, Any]:
    """(x, y) of NumPy arrays after `synthetic_specs`: integers within the range of embeddings and classes."""
    rng = np.random.default_rng(seed)
    x_specs, y_specs = synthetic_specs(model, batch_size)
    highest = _smallest_vocabulary(model)
    x = keras.tree.map_structure(lambda spec: _values(rng, spec, highest), x_specs)
    if y_specs is None:
        return x, None
    classes = keras.tree.map_structure(lambda output: int(output.shape[-1] or 2), model.compute_output_spec(x_specs))
    y = keras.tree.map_structure(lambda spec, count: _targets(rng, spec, count), y_specs, classes)
    return x, y


def _inputs(model: Any) -> Any:
    """The structure of input tensors, as the model was built with it."""
    inputs = getattr(model, "_inputs_struct", None)
    if inputs is not None:
        return inputs
    shapes = getattr(model, "_build_shapes_dict", None)
    if not shapes:
        raise WorkloadError(
            f"the model {model.name!r} has not been built, so its inputs are unknown; "
            "build it (call it once, or use keras.Input), or give training data"
        )
    shape = next(iter(shapes.values())) if len(shapes) == 1 else shapes
    return keras.tree.map_shape_structure(lambda dims: keras.KerasTensor(dims, model.input_dtype), shape)


def _tensor(shape: Any, dtype: Any, batch_size: int) -> Any:
    dims = (batch_size, *(_FALLBACK_DIM if dim is None else int(dim) for dim in tuple(shape)[1:]))
    return keras.KerasTensor(dims, keras.backend.standardize_dtype(dtype))


def _target_specs(model: Any, x: Any, batch_size: int) -> Any:
    compiled = getattr(model, "_compile_loss", None)
    if compiled is None:
        return None
    outputs = model.compute_output_spec(x)
    losses = compiled._user_loss
    flat_outputs = keras.tree.flatten(outputs)
    flat_losses = _per_output(losses, outputs, len(flat_outputs))
    specs = [_target(output, loss, batch_size) for output, loss in zip(flat_outputs, flat_losses, strict=True)]
    return keras.tree.pack_sequence_as(outputs, specs)


def _per_output(losses: Any, outputs: Any, count: int) -> list[Any]:
    """One loss an output: `compile` takes one for all, a list, or a dictionary by output name."""
    if isinstance(losses, dict):
        if isinstance(outputs, dict):
            return [losses.get(key) for key in sorted(outputs)]
        return list(losses.values())
    if isinstance(losses, list | tuple):
        return list(losses)
    return [losses] * count


def _target(output: Any, loss: Any, batch_size: int) -> Any:
    shape = output.shape
    if _is_sparse(loss):
        return _tensor(shape[:-1], "int32", batch_size)
    return _tensor(shape, output.dtype if "float" in str(output.dtype) else "float32", batch_size)


def _is_sparse(loss: Any) -> bool:
    name = loss if isinstance(loss, str) else getattr(loss, "name", None) or getattr(loss, "__name__", "")
    return "sparse" in str(name).lower()


def _smallest_vocabulary(model: Any) -> int:
    """Integers below this suit every embedding of the model; 2 where there is none."""
    sizes = [layer.input_dim for layer in model._flatten_layers() if isinstance(layer, keras.layers.Embedding)]
    return min(sizes, default=2)


def _values(rng: np.random.Generator, spec: Any, highest: int) -> Any:
    if str(spec.dtype).startswith(("int", "uint")):
        return rng.integers(0, highest, spec.shape).astype(spec.dtype)
    if str(spec.dtype) == "bool":
        return rng.random(spec.shape) < 0.5
    return rng.standard_normal(spec.shape, dtype=np.float32).astype(spec.dtype)


def _targets(rng: np.random.Generator, spec: Any, classes: int) -> Any:
    if str(spec.dtype).startswith("int"):
        return rng.integers(0, classes, spec.shape).astype(spec.dtype)
    return rng.random(spec.shape, dtype=np.float32).astype(spec.dtype)
