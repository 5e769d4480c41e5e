"""Defines Pydantic field types for the types of `cost_models` (TrainConfig, Estimate), for plans and messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Protocol, TypeVar

from pydantic import PlainSerializer, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError, PydanticKnownError

from cost_models.config import TrainConfig
from cost_models.errors import ConfigError
from cost_models.estimate import Estimate
from cost_models.time.cost import TimeCost

UNREADABLE_CONFIG = "unreadable_config"
"""The type of pydantic's error for a mapping that is no configuration."""
UNREADABLE_COST = "unreadable_cost"
"""The type of pydantic's error for a mapping that is no estimate."""

Compared = Literal["same", "differs", "not_known"]
"""The result of a comparison of two ways to run an update."""


class _Read(Protocol):
    """A value of `cost_models` that can be read from its plain form."""

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Any:
        """Read what `to_dict` writes. ConfigError for anything else."""
        ...


V = TypeVar("V", bound=_Read)


def _reader(kind: type[V], unreadable: str) -> Callable[[Any], V]:
    """Return a function that takes a value of this kind as it is, and reads one from a mapping."""

    def read(value: Any) -> Any:
        if isinstance(value, kind):
            return value
        if not isinstance(value, dict):
            raise PydanticKnownError("dict_type")
        try:
            return kind.from_dict(value)
        except (ConfigError, AttributeError) as error:
            raise PydanticCustomError(unreadable, "{reason}", {"reason": str(error)}) from None

    return read


_MAPPING = WithJsonSchema({"type": "object", "additionalProperties": True})

Config = Annotated[
    TrainConfig,
    PlainValidator(_reader(TrainConfig, UNREADABLE_CONFIG)),
    PlainSerializer(TrainConfig.to_dict, return_type=dict[str, Any]),
    _MAPPING,
]
"""A configuration under the keys of a plan."""

AnalyticEstimate = Annotated[
    Estimate,
    PlainValidator(_reader(Estimate, UNREADABLE_COST)),
    PlainSerializer(Estimate.to_dict, return_type=dict[str, Any]),
    _MAPPING,
]
"""An estimate under the keys of `estimate --format json`."""

ProgramTime = Annotated[
    TimeCost,
    PlainValidator(_reader(TimeCost, UNREADABLE_COST)),
    PlainSerializer(TimeCost.to_dict, return_type=dict[str, Any]),
    _MAPPING,
]
"""The time of a compiled program under the keys of an estimate's `time`."""
