"""Generates a synthetic batch for a model without data: shapes, dtypes and values that its layers and losses accept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from autoplan.runtime.data.fit_arguments import FitArguments
from cost_models.config import Batch
from cost_models.errors import ConfigError, WorkloadError

SYNTHETIC_BATCH = 32
_SYNTHETIC_BYTES = 64 * 2**20
_SYNTHETIC_MICRO_STEPS = 256
"""Micro-steps of an epoch, unless the arrays get too large: the cost of an epoch's end is then below 0.5%."""
_FALLBACK_DIM = 128  # size of a dimension other than the batch that the model leaves open, such as a sequence length
InputShapes = Mapping[str, Sequence[int]]
"""Shapes of inputs without the batch, by the name of the input; the name "" is that of a model's only input."""
OPTION = "--input-shape"
_NO_SHAPES: InputShapes = {}


def synthetic_specs(model: Any, batch_size: int, shapes: InputShapes = _NO_SHAPES) -> tuple[Any, Any]:
    """Return (x, y) of `keras.KerasTensor`s for a built, compiled model; y is None if the model has no compiled loss.

    Sparse losses take integer targets without the class axis; other losses take targets like the outputs.

    shapes  shapes of inputs whose sizes the model leaves open; 128 is assumed for a size that they do not give

    WorkloadError if the inputs of the model are not known, ConfigError for shapes that do not match them.
    """
    inputs = _inputs(model, shapes)
    given = _matched(inputs, shapes)
    x = keras.tree.map_structure(lambda spec: _tensor(given.get(spec.name, spec.shape), spec.dtype, batch_size), inputs)
    return x, _target_specs(model, x, batch_size)


def assumptions(model: Any, shapes: InputShapes = _NO_SHAPES) -> list[str]:
    """Return a note on each input whose sizes the model leaves open: which sizes the figures are of."""
    inputs = _inputs(model, shapes)
    given, notes, flat = _matched(inputs, shapes), [], keras.tree.flatten(inputs)
    for spec in flat:
        own = tuple(spec.shape)[1:]
        sizes = tuple(given.get(spec.name, spec.shape))[1:]
        if None in sizes:
            known = ",".join(str(dim or "SIZE") for dim in own)
            assumed = _product(dim or _FALLBACK_DIM for dim in sizes)
            notes.append(
                f"the model leaves sizes of its input {spec.name} open ({_product(dim or '?' for dim in own)}): "
                f"{_FALLBACK_DIM} is assumed for each, so the figures are of samples of {assumed}; give the sizes of "
                f"the training with {OPTION} {f'{spec.name}=' if len(flat) > 1 else ''}{known}"
            )
        elif None in own:
            notes.append(f"the figures are of samples of {_product(sizes)} at the input {spec.name} ({OPTION})")
    return notes


def _product(dims: Any) -> str:
    return " x ".join(map(str, dims)) or "one number"


def _matched(inputs: Any, shapes: InputShapes) -> dict[str, tuple[Any, ...]]:
    """Return given shapes by input, with None for the batch. ConfigError where they do not match the inputs."""
    flat = keras.tree.flatten(inputs)
    names = [spec.name for spec in flat]
    found: dict[str, tuple[Any, ...]] = {}
    for name, shape in shapes.items():
        text = f"{OPTION} {name}{'=' if name else ''}{','.join(map(str, shape))}"
        if not name and len(flat) > 1:
            raise ConfigError(f"{text}: the model has {len(flat)} inputs; name one of {', '.join(names)}, as NAME=...")
        if name and name not in names:
            raise ConfigError(f"{text}: the model has no input of this name; its inputs are {', '.join(names)}")
        spec = flat[names.index(name)] if name else flat[0]
        own = tuple(spec.shape)[1:]
        if len(own) != len(shape) or any(dim not in (None, size) for dim, size in zip(own, shape, strict=True)):
            raise ConfigError(
                f"{text}: the input {spec.name} takes samples of {_product(dim or '?' for dim in own)}; expected sizes "
                "that match, without the batch"
            )
        found[spec.name] = (None, *shape)
    return found


def synthetic_batch(model: Any, batch_size: int, seed: int = 0, shapes: InputShapes = _NO_SHAPES) -> tuple[Any, Any]:
    """Return (x, y) of NumPy arrays for `synthetic_specs`, with integers in the range of embeddings and classes."""
    rng = np.random.default_rng(seed)
    x_specs, y_specs = synthetic_specs(model, batch_size, shapes)
    highest = _smallest_vocabulary(model)
    x = keras.tree.map_structure(lambda spec: _values(rng, spec, highest), x_specs)
    if y_specs is None:
        return x, None
    classes = keras.tree.map_structure(lambda output: int(output.shape[-1] or 2), model.compute_output_spec(x_specs))
    y = keras.tree.map_structure(lambda spec, count: _targets(rng, spec, count), y_specs, classes)
    return x, y


def synthetic_arguments(
    model: Any, batch_size: int, wanted: Batch | None = None, shapes: InputShapes = _NO_SHAPES
) -> FitArguments:
    """Return arguments of `fit` with arrays that match the model's own input and target specs.

    wanted  the batch that is measured, if it is not `batch_size`: the arrays hold whole updates of it, because a
            batch that they do not fill would be smaller than its name says
    """
    wanted = wanted or Batch(batch_size)
    row_bytes = sum(
        int(leaf.nbytes) for leaf in keras.tree.flatten(synthetic_batch(model, 1, 0, shapes)) if leaf is not None
    )
    most = min(_SYNTHETIC_MICRO_STEPS // wanted.accumulation, _SYNTHETIC_BYTES // max(1, row_bytes * wanted.effective))
    least = 1 if wanted.accumulation > 1 else 2
    x, y = synthetic_batch(model, wanted.effective * max(least, most), 0, shapes)
    return {"x": x, "y": y, "batch_size": batch_size, "verbose": 0}


def _inputs(model: Any, given: InputShapes) -> Any:
    """Return the structure of input tensors that the model was built with; of one that is not built, the given ones."""
    inputs = getattr(model, "_inputs_struct", None)
    if inputs is not None:
        return inputs
    shapes = getattr(model, "_build_shapes_dict", None)
    if not shapes and set(given) == {""}:
        return keras.KerasTensor((None, *([None] * len(given[""]))), model.input_dtype, name="input")
    if not shapes:
        raise WorkloadError(
            f"the model {model.name!r} has not been built, so its inputs are unknown; "
            f"build it (call it once, or use keras.Input), give the shape of its input with {OPTION}, or provide "
            "training data"
        )
    shape = next(iter(shapes.values())) if len(shapes) == 1 else shapes
    return keras.tree.map_shape_structure(lambda dims: keras.KerasTensor(dims, model.input_dtype), shape)


def _tensor(shape: Any, dtype: Any, batch_size: int) -> Any:
    dims = (batch_size, *(_FALLBACK_DIM if dim is None else int(dim) for dim in tuple(shape)[1:]))
    known = keras.backend.standardize_dtype(dtype)
    return keras.KerasTensor(dims, keras.config.floatx() if "float" in known else known)  # `fit` casts arrays so


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
    """Return one loss per output: `compile` takes one for all outputs, a list, or a dictionary by output name."""
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
    return _tensor(shape, "float32", batch_size)


def _is_sparse(loss: Any) -> bool:
    name = loss if isinstance(loss, str) else getattr(loss, "name", None) or getattr(loss, "__name__", "")
    return "sparse" in str(name).lower()


def _smallest_vocabulary(model: Any) -> int:
    """Return the smallest vocabulary of the model's embeddings; 2 if it has none."""
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
