"""Validates the values of a plan file against its schema, and returns a `Plan` or a message for every fault.

The shape of configurations follows from the table of knobs.
"""

from __future__ import annotations

import json
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from keyword import iskeyword
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.fields import FieldInfo

from autoplan.plan import knobs
from autoplan.plan.fields import UNREADABLE_CONFIG, UNREADABLE_COST
from autoplan.plan.knobs import Knob, Tuning
from autoplan.plan.records import SCHEMA_VERSION, Evidence, Plan
from cost_models.config import Batch, TrainConfig
from cost_models.errors import ConfigError
from cost_models.validation import did_you_mean, nearest

LARGEST_NUMBER = 2**63
_UNREADABLE = (UNREADABLE_CONFIG, UNREADABLE_COST)
"""Errors of sections whose keys are explained one by one."""
KeyPath = tuple[str | int, ...]


class _Shape(BaseModel):
    """A mapping that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def _shape(name: str, description: str, keys: Mapping[str, tuple[Any, Any]]) -> type[BaseModel]:
    """Return a record with these keys. Python's keywords need another name, with the key as alias."""
    fields: dict[str, Any] = {f"{key}_" if iskeyword(key) else key: value for key, value in keys.items()}
    return create_model(name, __base__=_Shape, __doc__=description, **fields)


def _leaf(knob: Knob) -> tuple[Any, Any]:
    """Return the annotation and the field of one knob."""
    kind, key = knob.kind, knob.path[-1]
    about: dict[str, Any] = dict(kind.constraints)
    if knob.description:
        about["description"] = knob.description
    if iskeyword(key):
        about["alias"] = key
    if knob.in_every_plan:
        return kind.type, Field(**about)
    if knob.tuning is Tuning.DERIVED:
        return kind.type | None, Field(None, **about)
    return kind.type, Field(knob.value(_DEFAULTS), **about)


def _section(name: str) -> tuple[Any, Any]:
    """Return the annotation and the field of one field of TrainConfig: a knob, or a mapping of several."""
    rows = knobs.parts_of(name)
    if len(rows[0].path) == 1:
        return _leaf(rows[0])
    description = (type(getattr(_DEFAULTS, name)).__doc__ or "").splitlines()[0]
    shape = _shape(f"{name.capitalize()}Shape", description, {knob.path[-1]: _leaf(knob) for knob in rows})
    if any(knob.in_every_plan for knob in rows):
        return shape, Field()
    return shape, Field(getattr(_DEFAULTS, name))


def config_shape() -> type[BaseModel]:
    """Return the record of a configuration in a plan file, as the table of knobs has it."""
    fields = {name: _section(name) for name in TrainConfig.settings()}
    return _shape("ConfigShape", "A configuration, under the keys of `cost_models.TrainConfig.to_dict()`.", fields)


_DEFAULTS = TrainConfig(Batch(1))
_CONFIG = config_shape()


class TimeShape(BaseModel):
    """The time of a micro-step: figures under their names, and the part that bounds it."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, float | None] = Field(init=False)
    bound: str | None = None


class MemoryShape(BaseModel):
    """The memory of a device."""

    model_config = ConfigDict(extra="allow")
    per_device_bytes: dict[str, int | None] | None = None


class PredictedShape(BaseModel):
    """The keys of an estimate (`cost_models.Estimate.to_dict()`) that reports read. It may have more."""

    model_config = ConfigDict(extra="allow")
    memory: MemoryShape | None = None
    time: TimeShape | None = None


@dataclass(frozen=True)
class Fault:
    """One fault of a plan: its key path, what was expected, and the key that was probably meant."""

    path: KeyPath
    message: str
    meant: KeyPath | None = None

    @property
    def key(self) -> str:
        """Return the path as text: `trials[3].config.batch.global`."""
        text = ""
        for part in self.path:
            text += f"[{part}]" if isinstance(part, int) else f".{part}"
        return text.removeprefix(".")


_OWNERS = ("BaselineRecord", "TrialRecord", "Rejection", "Rescue", "Rung")
"""The records, besides the plan, that hold a configuration."""


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of plan files, configurations included."""
    schema = Plan.model_json_schema(by_alias=True)
    shape = _CONFIG.model_json_schema(by_alias=True)
    definitions = schema["$defs"]
    definitions.update(shape.pop("$defs"))
    definitions["ConfigShape"] = shape
    for owner in (schema, *(definitions[name] for name in _OWNERS)):
        owner["properties"]["config"] = {"$ref": "#/$defs/ConfigShape"}
    schema["properties"]["schema"] = {"const": SCHEMA_VERSION, "description": "the version of this file format"}
    schema["required"] = ["schema", *schema["required"]]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def plan_from(value: Any) -> Plan | list[Fault]:
    """Return a Plan from plain values, or all faults that they have."""
    faults = _version_faults(value) or list(_number_faults(value))
    if faults:
        return faults
    try:
        # JSON mode: strict about types, but text is accepted for members of an enumeration.
        plan = Plan.model_validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        return _explained(error, Plan) or _section_faults(value) or _unreadable(error)
    faults = _section_faults(value)
    if plan.evidence is Evidence.MEASURED and plan.measured is None:
        faults.append(Fault(("evidence",), "measured, but the plan has no section `measured`; expected its figures"))
    return faults or plan


def _section_faults(value: Mapping[str, Any]) -> list[Fault]:
    """Return what is wrong with the configurations and the estimates, each key by itself."""
    faults = [fault for path, config in _configs(value) for fault in config_faults(config, path)]
    for path, part, shape in _estimates(value):
        faults += _shape_faults(part, shape, path)
    return faults


def _unreadable(error: ValidationError) -> list[Fault]:
    """Return the sections that cannot be read although each of their keys is right."""
    return [Fault(tuple(detail["loc"]), detail["msg"]) for detail in error.errors(include_url=False)]


def config_faults(config: Any, path: KeyPath = ()) -> list[Fault]:
    """Return the faults that keep `config` from being a TrainConfig."""
    faults = _shape_faults(config, _CONFIG, path)
    if faults:
        return faults
    try:
        TrainConfig.from_dict(config)
    except ConfigError as error:
        return [Fault(path, str(error))]
    return []


def _shape_faults(part: Any, shape: type[BaseModel], path: KeyPath) -> list[Fault]:
    try:
        shape.model_validate_json(json.dumps(part), strict=True)
    except ValidationError as error:
        return _explained(error, shape, path)
    return []


def _number_faults(value: Any, path: KeyPath = ()) -> Iterator[Fault]:
    """Yield numbers that are too large or not finite: readers of a plan compute with its figures."""
    if isinstance(value, Mapping | list):
        for key, part in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _number_faults(part, (*path, key))
    elif isinstance(value, int | float) and not abs(value) < LARGEST_NUMBER:
        yield Fault(path, f"{_quoted(value)}; expected a number below {LARGEST_NUMBER:.3g}")


def _version_faults(value: Any) -> list[Fault]:
    if not isinstance(value, Mapping):
        return [Fault((), f"{_quoted(value)}; expected a mapping with the keys of a plan")]
    if "schema" not in value:
        return [Fault(("schema",), f"missing; expected `schema: {SCHEMA_VERSION}`, as `autoplan tune` writes it")]
    if value["schema"] != SCHEMA_VERSION or isinstance(value["schema"], bool):
        return [
            Fault(
                ("schema",),
                f"{_quoted(value['schema'])} is not a version that this autoplan reads; expected {SCHEMA_VERSION}: "
                "tune again, or use the autoplan that wrote the file",
            )
        ]
    return []


def _configs(value: Mapping[str, Any]) -> Iterator[tuple[KeyPath, Any]]:
    yield ("config",), value["config"]
    yield ("baseline", "config"), value["baseline"]["config"]
    for section in ("trials", "rejected"):
        for index, record in enumerate(value.get(section, [])):
            yield (section, index, "config"), record["config"]
    rescue = value.get("rescue")
    if rescue is not None:
        yield ("rescue", "config"), rescue["config"]
        for index, rung in enumerate(rescue.get("tried", [])):
            yield ("rescue", "tried", index, "config"), rung["config"]


def _estimates(value: Mapping[str, Any]) -> Iterator[tuple[KeyPath, Any, type[BaseModel]]]:
    """Yield sections that are written as they were computed, with the shape that readers rely on."""
    yield ("predicted",), value.get("predicted") or {}, PredictedShape
    yield ("baseline", "predicted"), value["baseline"].get("predicted") or {}, PredictedShape
    compiled: list[tuple[KeyPath, Any]] = [(("compiled",), value.get("compiled"))]
    compiled += [(("trials", at, "compiled"), one.get("compiled")) for at, one in enumerate(value.get("trials", []))]
    for path, section in compiled:
        yield (*path, "time"), (section or {}).get("time") or {}, TimeShape


def _explained(error: ValidationError, root: type[BaseModel], prefix: KeyPath = ()) -> list[Fault]:
    """Return each of pydantic's complaints once: a misspelled key is not reported as missing too."""
    details = (detail for detail in error.errors(include_url=False) if detail["type"] not in _UNREADABLE)
    faults = [_explain(detail, root, prefix) for detail in details]
    misspelled = {fault.meant for fault in faults}
    return [fault for fault in faults if fault.path not in misspelled]


def _explain(detail: Any, root: type[BaseModel], prefix: KeyPath) -> Fault:
    """Return a complaint in this project's words."""
    path: KeyPath = tuple(detail["loc"])
    if detail["type"] == "extra_forbidden":
        return _unknown_key(root, path, prefix)
    found = _quoted(detail["input"])
    context = detail.get("ctx", {})
    match detail["type"]:
        case "missing":
            message = f"missing; expected {_description(root, path)}"
        case "enum" | "literal_error":
            choices = context["expected"].replace("'", "").replace(" or ", ", ")
            message = f"{found} is not one of {choices}" + did_you_mean(str(detail["input"]), choices.split(", "))
        case "greater_than_equal":
            message = f"{found}; expected at least {context['ge']}"
        case "greater_than":
            message = f"{found}; expected more than {context['gt']:g}"
        case kind:
            message = f"{found}; expected {_KINDS.get(kind, detail['msg'].removeprefix('Input should be '))}"
    return Fault((*prefix, *path), message)


_KINDS = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "list_type": "a list",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}


def _description(root: type[BaseModel], path: KeyPath) -> str:
    field = _fields(_model_at(root, path[:-1])).get(str(path[-1]))
    return field.description if field and field.description else "a value"


def _unknown_key(root: type[BaseModel], path: KeyPath, prefix: KeyPath) -> Fault:
    known = list(_fields(_model_at(root, path[:-1])))
    near = nearest(str(path[-1]), known)
    message = f"unknown key; expected one of {', '.join(known)}" + did_you_mean(str(path[-1]), known)
    return Fault((*prefix, *path), message, meant=(*prefix, *path[:-1], near) if near else None)


def _model_at(root: type[BaseModel], path: KeyPath) -> type[BaseModel] | None:
    """Return the record that describes the mapping at `path`."""
    model: type[BaseModel] | None = root
    for part in path:
        if isinstance(part, int) or model is None:
            continue
        field = _fields(model).get(part)
        model = _record_in(field.annotation) if field else None
    return model


def _fields(model: type[BaseModel] | None) -> dict[str, FieldInfo]:
    """Return the fields of a record under the keys that files use."""
    return {field.alias or name: field for name, field in model.model_fields.items()} if model else {}


def _record_in(annotation: Any) -> type[BaseModel] | None:
    """Return the record inside `Record`, `Record | None` or `list[Record]`."""
    inner = typing.get_args(annotation)
    if inner:
        return next(filter(None, map(_record_in, inner)), None)
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _quoted(value: Any) -> str:
    """Return a value as an error quotes it: short, and of a recognizable type."""
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    text = "nothing" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."
