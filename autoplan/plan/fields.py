"""Pydantic field types whose values are those of `cost_models`: typed in the program, plain in files and pipes."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import PlainSerializer, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError, PydanticKnownError

from cost_models.config import TrainConfig
from cost_models.errors import ConfigError

UNREADABLE = "unreadable_config"
"""The type of pydantic's error for a mapping that is no configuration."""


def _config(value: Any) -> TrainConfig:
    """Return the configuration that the keys of a plan describe; a configuration passes as it is."""
    if isinstance(value, TrainConfig):
        return value
    if not isinstance(value, dict):
        raise PydanticKnownError("dict_type")
    try:
        return TrainConfig.from_dict(value)
    except (ConfigError, AttributeError) as error:
        raise PydanticCustomError(UNREADABLE, "{reason}", {"reason": str(error)}) from None


Config = Annotated[
    TrainConfig,
    PlainValidator(_config),
    PlainSerializer(TrainConfig.to_dict, return_type=dict[str, Any]),
    WithJsonSchema({"type": "object"}),
]
"""A `TrainConfig` that is read from the keys of a plan and written under them."""
