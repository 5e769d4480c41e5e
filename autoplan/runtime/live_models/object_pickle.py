"""A live graph of Keras objects -> bytes and back: models, layers, variables and optimizers by value.

Keras pickles its objects through configs, which lose the classes of `__main__` and whatever a config leaves out. Here
an object travels as its attributes, in one pickle with all that it refers to. What Keras remembers by the identity of
an object is learnt anew where the graph is opened.
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
"""A model has hundreds of variables: those of at least so many bytes travel as files, outside the text of every job."""
_COMPILED = ("train_function", "test_function", "predict_function")
_PAST = ("history",)
"""Attributes of a training that is over."""
_CONTAINERS = tuple(kind for name, kind in vars(tracking).items() if name.startswith("Tracked"))
"""Lists, dictionaries and sets that tell their layer what is put into them; later Kerases have more of them."""
_WRAPPED = ("build", "quantize")
"""Attributes that `Layer.__new__` makes, around methods of the class."""


def dumps(value: Any) -> tuple[bytes, dict[str, str]]:
    """Pickle a value that may hold Keras objects. -> (pickle, sha256 of each array that was put aside, by file)

    Raises whatever an object raises that cannot be pickled.
    """
    return pickling.pickled(_Parcel(value), GraphPickler)


def loads(payload: bytes) -> Any:
    """The value of `dumps`, in a process whose Keras runs on the same backend."""
    return cloudpickle.loads(payload)


def first_that_cannot_travel(model: Any) -> str | None:
    """The innermost attribute of a model that cannot be pickled, as its author would name it; None if there is none."""
    for owner in [*reversed(model._flatten_layers(include_self=False)), model]:
        for name, value in vars(owner).items():
            if name.startswith("_") or name in (*_COMPILED, *_WRAPPED, *_PAST) or _is_looked_at_elsewhere(value):
                continue
            try:
                dumps(value)
            except Exception:  # noqa: BLE001 -- objects raise what they like when they are pickled
                named = "the model" if owner is model else f"layer {owner.name!r}"
                return f"attribute '{name}' of {named}, a {type(value).__name__}"
    return None


def _is_looked_at_elsewhere(value: Any) -> bool:
    """Plain values, which travel, and layers, whose own attributes are looked at."""
    if isinstance(value, list):
        return all(map(_is_looked_at_elsewhere, value))
    return isinstance(value, bool | int | float | str | None | keras.Layer)


class _Parcel:
    """A value, then the objects in it that have to learn identities anew, which are known once it is pickled."""

    def __init__(self, value: Any) -> None:
        self.value = value


class _Noted:
    """Stands for those objects until the value before it is pickled."""


class GraphPickler(pickling.ByValue):
    """Pickles Keras objects as their attributes and tensors as NumPy arrays."""

    spill_bytes = SPILL_BYTES

    def __init__(self, buffer: BytesIO) -> None:
        super().__init__(buffer)
        self._noted: list[Any] = []
        self._followed_by: list[tuple[Any, list[Any]]] = []

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, _Parcel):
            return _opened, (obj.value, _Noted())
        if isinstance(obj, _Noted):
            return _Recollections, (list(self._noted), list(self._followed_by))
        if isinstance(obj, tracking.Tracker | keras.random.SeedGenerator):
            self._noted.append(obj)
        if isinstance(obj, KerasSaveable):
            self._noted.append(obj)
            return _blank, (type(obj),), self._attributes(obj)
        if isinstance(obj, _CONTAINERS):
            return _container(obj)
        if _is_foreign(obj):
            return _viewed, (obj.view(f"u{obj.dtype.itemsize}"), obj.dtype)
        if type(obj).__name__ == "_DefaultDistributionStrategy":
            return _tensorflows_default_strategy, ()
        tensor = _tensor(obj)
        return super().reducer_override(obj) if tensor is None else tensor

    def _attributes(self, obj: Any) -> dict[str, Any]:
        """What an object is, without compiled functions and what its class makes by itself.

        In an order that does not go from layer to layer through the whole graph, for pickling is recursive: operations
        from the first on, and what follows each of them is told when all are there.
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
    """A container that tells its layer what is put into it: filled while it does not know the layer, then told."""
    told = {"tracker": obj.tracker}
    if isinstance(obj, set):
        return type(obj), (list(obj),), told
    items = iter(list(obj)) if isinstance(obj, list) else None
    return type(obj), (), told, items, None if items is not None else iter(list(obj.items()))


def _blank(kind: Any) -> Any:
    """An instance without attributes but those that `Layer.__new__` makes."""
    return kind.__new__(kind) if issubclass(kind, keras.Layer) else object.__new__(kind)


@dataclass(frozen=True)
class _Recollections:
    """Objects that remember identities, and operations with the nodes that follow them."""

    objects: list[Any]
    followed_by: list[tuple[Any, list[Any]]]


def _opened(value: Any, recollections: _Recollections) -> Any:
    """The value once it is whole."""
    for operation, nodes in recollections.followed_by:
        operation._outbound_nodes = nodes
    for obj in recollections.objects:
        _recollect(obj)
    return value


def _recollect(obj: Any) -> None:
    """Let an object know the identities of the objects that it remembers."""
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
        # Nobody chose its seed, so it is drawn in each process, as a script that runs again would draw it.
        state = np.array([seed_generator.make_default_seed(), 0])
        obj.state.assign(state.astype(keras.backend.standardize_dtype(obj.state.dtype)))


def _tensor(obj: Any) -> Any:
    """How a tensor of the backend is made again; None for what is none, or what pickles well by itself."""
    makers = {"jax": _jax_tensor, "torch": _torch_tensor}
    maker = makers.get(keras.backend.backend())
    return maker(obj) if maker is not None and keras.ops.is_tensor(obj) else None


def _tensorflows_default_strategy() -> Any:
    """What TensorFlow trains by where no strategy is set: one of its own in every process."""
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


def _is_foreign(value: Any) -> bool:
    """Whether an array is large and of a dtype that is not NumPy's own, such as bfloat16."""
    return (
        type(value) in (np.ndarray, np.memmap)
        and value.nbytes >= SPILL_BYTES
        and value.dtype.kind == "V"
        and value.dtype.names is None
        and value.dtype.itemsize in (1, 2, 4, 8)
    )


def _viewed(value: np.ndarray[Any, Any], dtype: Any) -> np.ndarray[Any, Any]:
    return value.view(dtype)
