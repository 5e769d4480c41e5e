from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError

from autoplan.plan.fields import UNREADABLE_CONFIG, Config
from cost_models.config import Batch, Layout, Mesh, Precision, Remat, RematMode, TrainConfig

FULL = TrainConfig(
    Batch(16, data=4, accumulation=2),
    precision=Precision.MIXED_BFLOAT16,
    mesh=Mesh(data=4),
    layout=Layout(shard_state=True),
    remat=Remat(RematMode.FULL),
    steps_per_execution=4,
    jit_compile=False,
    keep_freed_memory=True,
)
CONFIG = TypeAdapter(Config)


@pytest.mark.parametrize("config", [TrainConfig(Batch(1)), FULL])
def test_a_configuration_is_written_under_the_keys_of_a_plan_and_read_from_them(config):
    assert CONFIG.dump_python(config, mode="json") == config.to_dict()
    assert CONFIG.validate_python(config.to_dict()) == config
    assert CONFIG.validate_json(CONFIG.dump_json(config), strict=True) == config


def test_a_configuration_passes_as_it_is():
    assert CONFIG.validate_python(FULL) is FULL


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("float32", "dict_type"),
        ({}, UNREADABLE_CONFIG),
        ({"batch": {"global": 64, "local": 32}}, UNREADABLE_CONFIG),
        ({"batch": 64}, UNREADABLE_CONFIG),
        ({"batch": {"global": 64}, "remat": "none"}, UNREADABLE_CONFIG),
    ],
)
def test_what_is_no_configuration_is_refused(value, kind):
    with pytest.raises(ValidationError) as caught:
        CONFIG.validate_python(value)
    assert [error["type"] for error in caught.value.errors()] == [kind]
