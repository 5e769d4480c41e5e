from __future__ import annotations

import pytest

from autoplan import plan_schema
from autoplan.plan import Plan
from cost_models.config import Batch, Layout, Mesh, Precision, Remat, RematMode, TrainConfig
from tests.autoplan import plans

FULL = TrainConfig(
    batch=Batch(local=8, data=4, accumulation=2),
    backend="torch",
    precision=Precision.OTHER,
    mesh=Mesh(data=4, model=2),
    layout=Layout(shard_state=True),
    remat=Remat(RematMode.FULL),
    steps_per_execution=16,
    jit_compile=False,
)


def keys(shape) -> dict:
    """The keys of a record, nested ones with theirs."""
    return {
        name: keys(plan_schema._record_in(field.annotation)) if plan_schema._record_in(field.annotation) else None
        for name, field in plan_schema._fields(shape).items()
    }


def nested(config) -> dict:
    return {key: nested(value) if isinstance(value, dict) else None for key, value in config.items()}


def test_the_shape_of_configurations_has_the_keys_of_train_config():
    assert keys(plan_schema.ConfigShape) == nested(FULL.to_dict())


@pytest.mark.parametrize(
    "config", [FULL, TrainConfig(Batch(1)), TrainConfig(Batch(32), precision=Precision.MIXED_FLOAT16)]
)
def test_what_train_config_writes_has_no_fault(config):
    assert plan_schema.config_faults(config.to_dict()) == []


def test_faults_of_a_configuration_have_their_path():
    config = plans.config() | {"jit_compile": 1, "remat": {"mode": "none", "layers": []}}
    faults = {fault.key: fault.message for fault in plan_schema.config_faults(config, ("trials", 3, "config"))}
    assert faults == {
        "trials[3].config.jit_compile": "1; expected true or false",
        "trials[3].config.remat.layers": "unknown key; expected one of mode",
    }


@pytest.mark.parametrize("value", [None, [], "text", 3, True])
def test_what_is_no_mapping_is_one_fault(value):
    (fault,) = plan_schema.plan_from(value)
    assert fault.path == ()
    assert fault.message.endswith("expected a mapping with the keys of a plan")
    assert plan_schema.config_faults(value)


def test_a_good_plan_is_a_plan():
    assert plan_schema.plan_from(plans.plain_plan()) == plans.plan()


def test_the_json_schema_describes_every_key():
    schema = plan_schema.json_schema()
    assert list(schema["properties"]) == list(plans.plain_plan())
    assert schema["properties"]["schema"]["const"] == 1
    assert {"schema", "config", "baseline"} <= set(schema["required"])
    assert set(schema["$defs"]["ConfigShape"]["properties"]) == set(FULL.to_dict())
    for owner in ("BaselineRecord", "TrialRecord", "Rejection"):
        assert schema["$defs"][owner]["properties"]["config"] == {"$ref": "#/$defs/ConfigShape"}


def test_the_json_schema_names_only_definitions_that_it_has():
    schema = plan_schema.json_schema()

    def references(value):
        if isinstance(value, dict):
            yield from ([value["$ref"]] if "$ref" in value else [])
            for item in value.values():
                yield from references(item)
        elif isinstance(value, list):
            for item in value:
                yield from references(item)

    assert {name.removeprefix("#/$defs/") for name in references(schema)} <= set(schema["$defs"])
    assert Plan.model_config["extra"] == "forbid"
    assert schema["additionalProperties"] is False
