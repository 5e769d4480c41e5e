"""Serializing a live model so that its own classes and functions stand beside its config, and none is found by name.

While a `Recorder` records, Keras's serialization asks it how to name what Keras does not ship. Functions and other
objects without state of their own (losses, schedules, initializers, regularizers, constraints) travel as they are: a
config may leave some of them out, and knows no closure.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
from keras.src import api_export
from keras.src.backend.common import global_state
from keras.src.ops.operation import Operation
from keras.src.saving import object_registration, serialization_lib

_STATELESS = (
    keras.Initializer,
    keras.regularizers.Regularizer,
    keras.constraints.Constraint,
    keras.losses.Loss,
    keras.optimizers.schedules.LearningRateSchedule,
)


class Recorder:
    """Serializes what Keras is asked to serialize, with the user's own classes by value.

    policy    the dtype policy that counts as the global one: a layer that has it is recorded with dtype None
    outputs   layers that keep theirs
    custom    what the config names, for `deserialize_keras_object(custom_objects=...)`
    registered   classes and functions that the user registered, by that name
    kept      identities of the outputs that were recorded with their policy
    """

    def __init__(self, policy: str, outputs: Iterable[Any]) -> None:
        self.custom: dict[str, Any] = {}
        self.registered: dict[str, Any] = {}
        self.kept: set[int] = set()
        self._policy, self._outputs = policy, {id(layer) for layer in outputs}
        self._names: dict[int, str] = {}
        self._original: dict[str, Callable[..., Any]] = {}

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Within it, Keras's serialization is this recorder's."""
        instead: list[tuple[Any, str, Callable[..., Any]]] = [
            (object_registration, "get_registered_name", self._name),
            (serialization_lib, "serialize_keras_object", self._serialize),
            (serialization_lib, "record_object_after_serialization", self._serialized),
            (keras.layers.Lambda, "_serialize_function_to_config", self._function_of_lambda),
        ]
        self._original = {name: vars(owner)[name] for owner, name, _ in instead}
        try:
            for owner, name, ours in instead:
                setattr(owner, name, ours if owner is not keras.layers.Lambda else _as_method(ours))
            with serialization_lib.ObjectSharingScope():
                yield
        finally:
            for owner, name, _ in instead:
                setattr(owner, name, self._original[name])

    def _name(self, obj: Any) -> str:
        """The name under which Keras writes a class or a function that it does not export."""
        if _is_kerass_own(obj):
            return str(self._original["get_registered_name"](obj))
        registered = object_registration.GLOBAL_CUSTOM_NAMES.get(obj)
        if registered is not None:
            self.registered[registered] = obj
        return self._kept(obj, Maker(obj) if isinstance(obj, type) and issubclass(obj, keras.Layer) else obj)

    def _serialize(self, obj: Any) -> Any:
        if _travels_as_it_is(obj):
            return self._token(obj)
        try:
            return self._original["serialize_keras_object"](obj)
        except TypeError:
            if hasattr(obj, "get_config") or isinstance(obj, list | tuple | dict):
                raise
            return self._token(obj)

    def _function_of_lambda(self, function: Any) -> Any:
        return self._serialize(function)

    def _token(self, obj: Any) -> dict[str, Any]:
        """What Keras reads as a function of that name, and answers with the object."""
        name = self._kept(obj, obj)
        return {"module": None, "class_name": "function", "config": name, "registered_name": name}

    def _kept(self, obj: Any, made_by: Any, role: str = "") -> str:
        """A name of its own for an object: two classes of one name, or one named like Keras's, are told apart."""
        key = id(obj) if not role else id(made_by)
        if key not in self._names:
            module = getattr(obj, "__module__", type(obj).__module__)
            name = f"autoplan>{module}.{getattr(obj, '__qualname__', type(obj).__qualname__)}{role}"
            while name in self.custom:
                name += "'"
            self._names[key] = name
            self.custom[name] = made_by
        return self._names[key]

    def _serialized(self, obj: Any, config: dict[str, Any]) -> None:
        """Called for every object with the config that Keras has made of it."""
        self._original["record_object_after_serialization"](obj, config)
        inner = config.get("config")
        if not isinstance(obj, keras.Layer) or not isinstance(inner, dict):
            return
        keeps = id(obj) in self._outputs and obj.dtype_policy.name == self._policy
        if keeps:
            self.kept.add(id(obj))
        if isinstance(inner.get("dtype"), dict):
            inner["dtype"] = self._policy_in(inner["dtype"], keeps=keeps)
        maker = self.custom.get(str(config.get("registered_name")))
        if isinstance(maker, Maker):
            if maker.by_keras:
                inner.setdefault("name", obj.name)
            if keeps:
                # Layers that it makes in its __init__ take the global policy, and are part of the output too.
                config["registered_name"] = self._kept(maker.kind, Maker(maker.kind, self._policy), " of the output")

    def _policy_in(self, dtype: dict[str, Any], *, keeps: bool) -> dict[str, Any] | None:
        """A layer's policy as the blueprint has it; policies are not shared, for one of two layers may keep its own."""
        named = dtype.get("config", {})
        if dtype.get("class_name") == "DTypePolicy" and named.get("name") == self._policy and not keeps:
            return None
        return {key: value for key, value in dtype.items() if key != "shared_object_id"}


class Maker:
    """Stands for a custom layer class where Keras makes layers from configs.

    Keras hands `name`, `trainable` and `dtype` to every layer, and a class whose `__init__` takes none of them cannot
    be made from its own config. Here such a class is made with what it takes, and told the rest.

    policy   the global dtype policy while a layer is made; None: as it is
    """

    def __init__(self, kind: type[Any], policy: str | None = None) -> None:
        self.kind, self.policy = kind, policy

    @property
    def by_keras(self) -> bool:
        """Whether the class leaves making it from a config to Keras."""
        return bool(getattr(self.kind.from_config, "__func__", None) is Operation.from_config.__func__)

    def from_config(self, config: dict[str, Any]) -> Any:
        """A layer of the class."""
        with global_policy(self.policy):
            return self._made(config)

    def _made(self, config: dict[str, Any]) -> Any:
        parameters = inspect.signature(self.kind.__init__).parameters
        takes_all = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
        unknown = set() if takes_all or not self.by_keras else config.keys() - parameters.keys()
        layer = self.kind.from_config({name: value for name, value in config.items() if name not in unknown})
        if "name" in unknown:
            layer.name = config["name"]
        if "dtype" in unknown and config["dtype"] is not None:
            layer.dtype_policy = keras.dtype_policies.get(config["dtype"])
        return layer


@contextmanager
def global_policy(policy: Any) -> Iterator[None]:
    """A global dtype policy for a while, past those who watch over it; None leaves it as it is."""
    before = global_state.get_global_attribute("dtype_policy")
    if policy is not None:
        global_state.set_global_attribute("dtype_policy", keras.dtype_policies.get(policy))
    try:
        yield
    finally:
        global_state.set_global_attribute("dtype_policy", before)


def _as_method(function: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda _, argument: function(argument)


def _is_kerass_own(obj: Any) -> bool:
    return str(getattr(obj, "__module__", "")).partition(".")[0] in ("keras", "builtins")


def _travels_as_it_is(obj: Any) -> bool:
    """Functions, classes and stateless objects that Keras does not ship."""
    if isinstance(obj, _STATELESS):
        return not _is_kerass_own(type(obj))
    without_config = isinstance(obj, type) or (callable(obj) and not hasattr(obj, "get_config"))
    return without_config and not _is_exported(obj)


def _is_exported(obj: Any) -> bool:
    try:
        return api_export.get_name_from_symbol(obj) is not None
    except TypeError:  # it cannot be hashed
        return False
