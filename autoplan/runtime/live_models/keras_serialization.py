"""Serializes a live model with its custom classes and functions by value, so that none is looked up by name.

While a `Recorder` is active, Keras's serialization asks it for the names of classes and functions that are not part of
Keras. Functions and stateless objects (losses, schedules, initializers, regularizers, constraints) are stored as they
are, because a config may omit attributes of them and cannot contain a closure.
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

KerasConfig = dict[str, Any]
"""A config as Keras serializes an object: plain values, nested configs, and objects that it could not serialize."""
_STATELESS = (
    keras.Initializer,
    keras.regularizers.Regularizer,
    keras.constraints.Constraint,
    keras.losses.Loss,
    keras.optimizers.schedules.LearningRateSchedule,
)


class Recorder:
    """Makes Keras's serialization store the user's own classes by value.

    policy      the dtype policy that counts as the global one: a layer with it is recorded with dtype None
    outputs     layers that are recorded with their own policy
    custom      objects that the config names, for `deserialize_keras_object(custom_objects=...)`
    registered  classes and functions that the user registered, by their registered names
    outputs_with_policy  identities of the outputs that were recorded with their own policy
    """

    def __init__(self, policy: str, outputs: Iterable[Any]) -> None:
        self.custom: dict[str, object] = {}
        self.registered: dict[str, object] = {}
        self.outputs_with_policy: set[int] = set()
        self._policy, self._outputs = policy, {id(layer) for layer in outputs}
        self._names: dict[int, str] = {}
        self._original: dict[str, Callable[..., Any]] = {}

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Redirect Keras's serialization to this recorder in this context."""
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
        """Return the name under which Keras writes a class or a function."""
        if _is_part_of_keras(obj):
            return str(self._original["get_registered_name"](obj))
        registered = object_registration.GLOBAL_CUSTOM_NAMES.get(obj)
        if registered is not None:
            self.registered[registered] = obj
        return self._unique_name(
            obj, LayerFactory(obj) if isinstance(obj, type) and issubclass(obj, keras.Layer) else obj
        )

    def _serialize(self, obj: Any) -> Any:
        if _is_stored_as_object(obj):
            return self._token(obj)
        try:
            return self._original["serialize_keras_object"](obj)
        except TypeError:
            if hasattr(obj, "get_config") or isinstance(obj, list | tuple | dict):
                raise
            return self._token(obj)

    def _function_of_lambda(self, function: Any) -> Any:
        return self._serialize(function)

    def _token(self, obj: Any) -> KerasConfig:
        """Return a config that Keras deserializes to the object itself."""
        name = self._unique_name(obj, obj)
        return {"module": None, "class_name": "function", "config": name, "registered_name": name}

    def _unique_name(self, obj: Any, made_by: Any, role: str = "") -> str:
        """Return a unique name for an object, so that classes of the same name are distinguished."""
        key = id(obj) if not role else id(made_by)
        if key not in self._names:
            module = getattr(obj, "__module__", type(obj).__module__)
            name = f"autoplan>{module}.{getattr(obj, '__qualname__', type(obj).__qualname__)}{role}"
            while name in self.custom:
                name += "'"
            self._names[key] = name
            self.custom[name] = made_by
        return self._names[key]

    def _serialized(self, obj: Any, config: KerasConfig) -> None:
        """Adjust the config of a layer. Called for every object with the config that Keras has made."""
        self._original["record_object_after_serialization"](obj, config)
        inner = config.get("config")
        if not isinstance(obj, keras.Layer) or not isinstance(inner, dict):
            return
        own_policy = id(obj) in self._outputs and obj.dtype_policy.name == self._policy
        if own_policy:
            self.outputs_with_policy.add(id(obj))
        if isinstance(inner.get("dtype"), dict):
            inner["dtype"] = self._policy_in(inner["dtype"], own_policy=own_policy)
        maker = self.custom.get(str(config.get("registered_name")))
        if isinstance(maker, LayerFactory):
            if maker.uses_keras_from_config:
                inner.setdefault("name", obj.name)
            if own_policy:
                # Layers that its __init__ creates take the global policy, and are part of the output, too.
                config["registered_name"] = self._unique_name(
                    maker.kind, LayerFactory(maker.kind, self._policy), " of the output"
                )

    def _policy_in(self, dtype: KerasConfig, *, own_policy: bool) -> KerasConfig | None:
        """Return a layer's policy for the blueprint, unshared, because one of two layers may have its own policy."""
        named = dtype.get("config", {})
        if dtype.get("class_name") == "DTypePolicy" and named.get("name") == self._policy and not own_policy:
            return None
        return {key: value for key, value in dtype.items() if key != "shared_object_id"}


class LayerFactory:
    """Creates layers of a custom class from configs, in place of the class.

    Keras passes `name`, `trainable` and `dtype` to every layer, so a class whose `__init__` does not accept these
    cannot be created from its own config. This factory passes only the accepted arguments, and sets the others later.

    policy  the global dtype policy while a layer is created; None leaves it as it is
    """

    def __init__(self, kind: type[Any], policy: str | None = None) -> None:
        self.kind, self.policy = kind, policy

    @property
    def uses_keras_from_config(self) -> bool:
        """Whether the class does not override `from_config`."""
        return bool(getattr(self.kind.from_config, "__func__", None) is Operation.from_config.__func__)

    def from_config(self, config: KerasConfig) -> Any:
        """Return a layer of the class."""
        with global_policy(self.policy):
            return self._create(config)

    def _create(self, config: KerasConfig) -> Any:
        parameters = inspect.signature(self.kind.__init__).parameters
        takes_all = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
        unknown = set() if takes_all or not self.uses_keras_from_config else config.keys() - parameters.keys()
        layer = self.kind.from_config({name: value for name, value in config.items() if name not in unknown})
        if "name" in unknown:
            layer.name = config["name"]
        if "dtype" in unknown and config["dtype"] is not None:
            layer.dtype_policy = keras.dtype_policies.get(config["dtype"])
        return layer


@contextmanager
def global_policy(policy: Any) -> Iterator[None]:
    """Set the global dtype policy in this context, without interception; None leaves it as it is."""
    before = global_state.get_global_attribute("dtype_policy")
    if policy is not None:
        global_state.set_global_attribute("dtype_policy", keras.dtype_policies.get(policy))
    try:
        yield
    finally:
        global_state.set_global_attribute("dtype_policy", before)


def _as_method(function: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda _, argument: function(argument)


def _is_part_of_keras(obj: Any) -> bool:
    return str(getattr(obj, "__module__", "")).partition(".")[0] in ("keras", "builtins")


def _is_stored_as_object(obj: Any) -> bool:
    """Return whether an object is a function, class or stateless object that is not part of Keras."""
    if isinstance(obj, _STATELESS):
        return not _is_part_of_keras(type(obj))
    without_config = isinstance(obj, type) or (callable(obj) and not hasattr(obj, "get_config"))
    return without_config and not _is_exported(obj)


def _is_exported(obj: Any) -> bool:
    try:
        return api_export.get_name_from_symbol(obj) is not None
    except TypeError:  # not hashable
        return False
