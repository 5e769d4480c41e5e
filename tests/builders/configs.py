"""Configurations by their local batch, devices and accumulation."""

from typing import Any

from cost_models.config import Batch, Mesh, TrainConfig


def local_config(local: int = 8, data: int = 1, accumulation: int = 1, *, model: int = 1, **more: Any) -> TrainConfig:
    """Return a configuration with this local batch on `data` x `model` devices."""
    return TrainConfig(Batch(local, data, accumulation), mesh=Mesh(data, model), **more)
