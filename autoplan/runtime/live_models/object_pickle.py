"""Pickles live Keras objects by value: models, layers, variables and optimizers.

Keras pickles its objects through configs, which lose classes of `__main__` and everything that a config omits. Here an
object is pickled as its attributes, together with all objects that it refers to. Tables that Keras keys by the identity
of objects are rebuilt when the graph is unpickled.
"""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO
from typing import Any

import cloudpickle
import keras
import numpy as np
from keras.src.ops import function as graph_functions
from keras.src.random import seed_generator
from keras.src.saving.keras_saveable import KerasSaveable
from keras.src.utils import tracking

from autoplan.sources import pickling

SPILL_BYTES = 2**16
"""Variables of at least this size are stored as files, because the text of every job would contain hundreds of them."""
_COMPILED = ("train_function", "test_function", "predict_function")
_PAST = ("history",)
"""Attributes that belong to an earlier training."""
_CONTAINERS = tuple(kind for name, kind in vars(tracking).items() if name.startswith("Tracked"))
"""Lists, dictionaries and sets that notify their layer of new items; later versions of Keras have more of them."""
_WRAPPED = ("build", "quantize")
"""Attributes that `Layer.__new__` creates, wrappers of methods of the class."""


def dumps(value: Any) -> tuple[bytes, dict[str, str]]:
    """Pickle a value that may contain Keras objects.

    Returns the pickle, and the sha256 of each array that was stored in a file, by file. Exceptions of an object that
    cannot be pickled pass through.
    """
    return pickling.pickled(_Root(value), GraphPickler)


def loads(payload: bytes) -> Any:
    """Unpickle a value of `dumps`, in a process in which Keras runs on the same backend."""
    return cloudpickle.loads(payload)


def first_unpicklable(model: Any) -> str | None:
    """Describe the innermost attribute of a model that cannot be pickled; None if all can be pickled."""
    for owner in [*reversed(model._flatten_layers(include_self=False)), model]:
        for name, value in vars(owner).items():
            if name.startswith("_") or name in (*_COMPILED, *_WRAPPED, *_PAST) or _is_checked_elsewhere(value):
                continue
            try:
                dumps(value)
            except Exception:  # noqa: BLE001 -- pickling an object may raise anything
                named = "the model" if owner is model else f"layer {owner.name!r}"
                return f"attribute '{name}' of {named}, a {type(value).__name__}"
    return None


def _is_checked_elsewhere(value: Any) -> bool:
    """Return whether a value is plain, so that it can be pickled, or a layer, whose attributes are checked."""
    if isinstance(value, list):
        return all(map(_is_checked_elsewhere, value))
    return isinstance(value, bool | int | float | str | None | keras.Layer)


class _Root:
    """The pickled value, followed by the objects with tables of identities, which are known once it is pickled."""

    def __init__(self, value: Any) -> None:
        self.value = value


class _IdentityTables:
    """Placeholder for the objects with tables of identities while the value before it is pickled."""


class GraphPickler(pickling.ByValuePickler):
    """Pickles Keras objects as their attributes and tensors as NumPy arrays."""

    spill_bytes = SPILL_BYTES

    def __init__(self, buffer: BytesIO) -> None:
        super().__init__(buffer)
        self._with_tables: list[Any] = []
        self._followed_by: list[tuple[Any, list[Any]]] = []

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, _Root):
            return _restored, (obj.value, _IdentityTables())
        if isinstance(obj, _IdentityTables):
            return _Restoration, (list(self._with_tables), list(self._followed_by))
        if isinstance(obj, tracking.Tracker | keras.random.SeedGenerator):
            self._with_tables.append(obj)
        if isinstance(obj, KerasSaveable):
            self._with_tables.append(obj)
            return _blank, (type(obj),), self._attributes(obj)
        if isinstance(obj, _CONTAINERS):
            return _container(obj)
        if _is_large_extension_array(obj):
            return _viewed, (obj.view(f"u{obj.dtype.itemsize}"), obj.dtype)
        if type(obj).__name__ == "_DefaultDistributionStrategy":
            return _tensorflows_default_strategy, ()
        tensor = _tensor(obj)
        return super().reducer_override(obj) if tensor is None else tensor

    def _attributes(self, obj: Any) -> dict[str, object]:
        """Return the attributes of an object, without compiled functions and attributes that its class creates.

        Pickling is recursive, so it must not follow the graph from layer to layer: operations are pickled from the
        first on, and the nodes after each operation are restored when all operations exist.
        """
        state = dict(vars(obj))
        if isinstance(obj, graph_functions.Function):
            state = {"_operations": state["_operations"], **state}
        if state.get("_outbound_nodes"):
            self._followed_by.append((obj, state["_outbound_nodes"]))
            state["_outbound_nodes"] = []
        for name in (*_WRAPPED, *_PAST) if isinstance(obj, keras.Layer) else ():
            state.pop(name, None)
        return state | {name: None for name in _COMPILED if name in state}


def _container(obj: Any) -> Any:
    """Reduce a container that notifies its layer: it is filled before it gets its tracker."""
    state = {"tracker": obj.tracker}
    if isinstance(obj, set):
        return type(obj), (list(obj),), state
    items = iter(list(obj)) if isinstance(obj, list) else None
    return type(obj), (), state, items, None if items is not None else iter(list(obj.items()))


def _blank(kind: Any) -> Any:
    """Return an instance with only the attributes that `Layer.__new__` creates."""
    return kind.__new__(kind) if issubclass(kind, keras.Layer) else object.__new__(kind)


@dataclass(frozen=True)
class _Restoration:
    """Objects with tables of identities, and operations with the nodes after them."""

    objects: list[Any]
    followed_by: list[tuple[Any, list[Any]]]


def _restored(value: Any, restoration: _Restoration) -> Any:
    """Return the value after its graph and its tables of identities are restored."""
    for operation, nodes in restoration.followed_by:
        operation._outbound_nodes = nodes
    for obj in restoration.objects:
        _rebuild_tables(obj)
    return value


def _rebuild_tables(obj: Any) -> None:
    """Rebuild the tables of an object that are keyed by the identities of other objects."""
    if isinstance(obj, tracking.Tracker):
        obj.stored_ids = {name: {id(one) for one in stored} for name, (_, stored) in obj.config.items()}
    elif isinstance(obj, graph_functions.Function):
        obj._nodes = graph_functions.map_graph(obj._inputs, obj._outputs)[0]
    elif isinstance(obj, keras.optimizers.Optimizer):
        obj._trainable_variables_indices = {obj._var_key(one): at for at, one in enumerate(obj._trainable_variables)}
        if hasattr(obj, "_var_to_optimizer_idx"):  # a MultiOptimizer that is built
            inner = enumerate(obj._inner_optimizers)
            obj._var_to_optimizer_idx = {obj._var_key(v): at for at, one in inner for v in one._trainable_variables}
    elif isinstance(obj, keras.random.SeedGenerator) and obj._initial_seed is None:
        # Its seed was not set explicitly, so each process draws a new seed, as a new run of a script does.
        state = np.array([seed_generator.make_default_seed(), 0])
        obj.state.assign(state.astype(keras.backend.standardize_dtype(obj.state.dtype)))


def _tensor(obj: Any) -> Any:
    """Reduce a tensor of the backend; None for other objects, and for tensors that can be pickled directly."""
    reducers = {"jax": _jax_tensor, "torch": _torch_tensor}
    reducer = reducers.get(keras.backend.backend())
    return reducer(obj) if reducer is not None and keras.ops.is_tensor(obj) else None


def _tensorflows_default_strategy() -> Any:
    """Return TensorFlow's default strategy, which every process has."""
    import tensorflow as tf

    return tf.distribute.get_strategy()


def _jax_tensor(obj: Any) -> Any:
    import jax

    if not isinstance(obj, jax.Array) or jax.numpy.issubdtype(obj.dtype, jax.dtypes.extended):
        return None
    return _on_jax, (np.asarray(obj),)


def _on_jax(value: np.ndarray[Any, Any]) -> Any:
    import jax.numpy as jnp

    return jnp.array(value)


def _torch_tensor(obj: Any) -> Any:
    import torch

    if obj.dtype is torch.bfloat16 or obj.layout is not torch.strided:
        return None
    value = obj.detach().cpu().numpy()
    return _on_torch, (value, str(obj.device), obj.requires_grad, isinstance(obj, torch.nn.Parameter))


def _on_torch(value: np.ndarray[Any, Any], device: str, requires_grad: bool, parameter: bool) -> Any:
    import torch

    tensor = torch.from_numpy(np.array(value)).to(device)
    return torch.nn.Parameter(tensor, requires_grad) if parameter else tensor.requires_grad_(requires_grad)


def _is_large_extension_array(value: Any) -> bool:
    """Return whether an array is large and has a dtype that is not part of NumPy, such as bfloat16."""
    return (
        type(value) in (np.ndarray, np.memmap)
        and value.nbytes >= SPILL_BYTES
        and value.dtype.kind == "V"
        and value.dtype.names is None
        and value.dtype.itemsize in (1, 2, 4, 8)
    )


def _viewed(value: np.ndarray[Any, Any], dtype: Any) -> np.ndarray[Any, Any]:
    return value.view(dtype)
