from __future__ import annotations

import pytest

from autoplan.errors import PlanError
from autoplan.plan import file
from autoplan.plan import schema as plan_schema
from autoplan.plan.records import Plan
from cost_models.config import AttentionMode, Batch, Layout, Mesh, Precision, Remat, RematMode, TrainConfig
from tests.builders import plans

FULL = TrainConfig(
    batch=Batch(local=8, data=4, accumulation=2),
    backend="torch",
    precision=Precision.OTHER,
    mesh=Mesh(data=4, model=2),
    layout=Layout(shard_state=True),
    remat=Remat(RematMode.FULL),
    attention=AttentionMode.UNFUSED,
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
    assert keys(plan_schema.config_shape()) == nested(FULL.to_dict())


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


def test_a_rescue_is_checked_with_its_configurations():
    plain = plans.rescued_plan()
    assert plan_schema.plan_from(plain) == Plan.model_validate(plain)
    plain["rescue"]["tried"][1]["config"]["jit_compile"] = 1
    (fault,) = plan_schema.plan_from(plain)
    assert (fault.key, fault.message) == ("rescue.tried[1].config.jit_compile", "1; expected true or false")


def test_the_json_schema_describes_every_key():
    schema = plan_schema.json_schema()
    assert list(schema["properties"]) == list(plans.plain_plan())
    assert schema["properties"]["schema"]["const"] == 1
    assert {"schema", "config", "baseline"} <= set(schema["required"])
    assert set(schema["$defs"]["ConfigShape"]["properties"]) == set(FULL.to_dict())
    for owner in ("BaselineRecord", "TrialRecord", "Rejection", "Rescue", "Rung"):
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


UNKNOWN = "unknown key; expected one of "
PLAN_KEYS = (
    "schema, evidence, source, hardware, environment, config, baseline, predicted, compiled, measured, verification, "
    "validation, whole_fit, rescue, "
)
PRECISIONS = "float32, mixed_bfloat16, mixed_float16, bfloat16, float16, float64, other"
FAILURES = "oom, compile_oom, timeout, nan, unsupported, data, crash"
NUMERICS = "exact, within_seed_band, outside, not_compared"
BASELINE_SECONDS = "    micro_step_seconds: 0.0625\n"

FAULTS = [
    (
        "evidence: measured",
        "evidence: mesured",
        "evidence",
        '"mesured" is not one of analytic, compiled, measured; did you mean measured?',
    ),
    ("\nnotes:", "\nnote:", "note", UNKNOWN + PLAN_KEYS + "trials, rejected, notes; did you mean notes?"),
    ("\nnotes:\n- ", "\nnotes: ", "notes", '"BatchNorm\'s statistics are per micro-batch"; expected a list'),
    ("kind: script", "kind: notebook", "source.kind", '"notebook" is not one of script, builder, callable, instance'),
    ("args: [", "args: [7, ", "source.args[0]", "7; expected text"),
    ("epochs: 10", "epochs: ten", "source.fit.epochs", '"ten"; expected a whole number'),
    ("epochs: 10", "epochs: 2.5", "source.fit.epochs", "2.5; expected a whole number"),
    ("simulated: false", "simulated: no", "hardware.simulated", '"no"; expected true or false'),
    ("jax\n  prec", "jaxx\n  prec", "config.backend", '"jaxx" is not one of jax, tensorflow, torch; did you mean jax?'),
    (
        "precision: float32",
        "precision: mixed_bf16",
        "config.precision",
        f'"mixed_bf16" is not one of {PRECISIONS}; did you mean mixed_bfloat16?',
    ),
    (
        "global: 128",
        "globl: 128",
        "config.batch.globl",
        UNKNOWN + "local, global, accumulation, effective; did you mean global?",
    ),
    ("    accumulation: 1\n", "    accumulation: 0\n", "config.batch.accumulation", "0; expected at least 1"),
    ("    accumulation: 1\n", "", "config.batch.accumulation", "missing; expected micro-steps per update"),
    ("mode: none", "mode: blocks", "config.remat.mode", '"blocks" is not one of none, activations, full'),
    ("remat:\n    mode: none", "remat: none", "config.remat", '"none"; expected a mapping'),
    ("execution: 1", "execution: '1'", "config.steps_per_execution", '"1"; expected a whole number'),
    ("jit_compile: true", "jit_compile: maybe", "config.jit_compile", '"maybe"; expected true or false'),
    (
        BASELINE_SECONDS,
        "    micro_step_seconds: fast\n",
        "baseline.measured.micro_step_seconds",
        '"fast"; expected a number',
    ),
    (
        BASELINE_SECONDS,
        "    micro_step_seconds:\n",
        "baseline.measured.micro_step_seconds",
        "nothing; expected a number",
    ),
    (
        BASELINE_SECONDS,
        "",
        "baseline.measured.micro_step_seconds",
        "missing; expected median over groups of micro-steps, real input path",
    ),
    ("group_seconds: [0.0625,", "group_seconds: [x,", "baseline.measured.group_seconds[0]", '"x"; expected a number'),
    ("numerics: exact", "numerics: great", "verification.numerics", f'"great" is not one of {NUMERICS}'),
    (
        "kind: nan",
        "kind: nans",
        "trials[2].failure.kind",
        f'"nans" is not one of {FAILURES}; did you mean nan?',
    ),
    (
        "stage: infeasible",
        "stage: unfeasible",
        "rejected[0].stage",
        '"unfeasible" is not one of infeasible, slower, known_issue, held; did you mean infeasible?',
    ),
    (
        "local: 4096",
        "local: 4095",
        "rejected[0].config",
        "batch.local is 4095, but the other batch sizes make it 4096",
    ),
]


@pytest.mark.parametrize(("old", "new", "key", "message"), FAULTS)
def test_each_fault_of_a_file_is_told_with_line_key_and_what_was_expected(tmp_path, old, new, key, message):
    good = file.to_yaml(plans.plan())
    assert old in good
    text = good.replace(old, new, 1)
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    with pytest.raises(PlanError) as caught:
        file.read(path)
    where, told = str(caught.value).splitlines()[0].split(": ", 1)
    assert told == f"{key}: {message}"
    line = int(where.removeprefix(f"{path}:"))
    if message.startswith("missing"):
        assert text.splitlines()[line - 1].strip() == key.split(".")[-2] + ":"
    else:
        start = good.index(old) + len(old) - len(old.lstrip("\n"))
        assert line == 1 + text[:start].count("\n")


NO_NUMBER = "expected a number below 9.22e+18"


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("baseline", "measured", "micro_step_seconds"), 0.0, "0.0; expected more than 0"),
        (("baseline", "measured", "micro_step_seconds_low"), -1.0, "-1.0; expected more than 0"),
        (("baseline", "measured", "micro_step_seconds"), float("nan"), f"NaN; {NO_NUMBER}"),
        (("baseline", "measured", "group_seconds", 0), float("inf"), f"Infinity; {NO_NUMBER}"),
        (("baseline", "measured", "peak_bytes"), 10**30, f"1000000000000000000000000000000; {NO_NUMBER}"),
        (("config", "batch", "global"), -(2**63), f"-9223372036854775808; {NO_NUMBER}"),
        (("baseline", "predicted", "time"), -1, "-1; expected a mapping"),
        (("baseline", "predicted", "time", "compute_seconds"), "fast", '"fast"; expected a number'),
        (("baseline", "predicted", "time", "bound"), [], "a list; expected text"),
        (("predicted", "time", "mfu"), "", '""; expected a number'),
        (("predicted", "memory", "per_device_bytes"), 3, "3; expected a mapping"),
        (("predicted", "memory", "per_device_bytes", "total"), "much", '"much"; expected a whole number'),
        (("predicted", "memory"), "much", '"much"; expected a mapping'),
        (("predicted",), [1], "a list; expected a mapping"),
    ],
)
def test_figures_that_nobody_can_compute_with_are_faults(path, value, message):
    """Whoever tells a plan's story divides by its figures."""
    document = plans.plain_plan(predicted=plans.estimate())
    document["baseline"] |= {"predicted": plans.estimate()}
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    faults = plan_schema.plan_from(document)
    assert isinstance(faults, list), "no fault was found"
    assert [(fault.path, fault.message) for fault in faults] == [(path, message)]
