from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from autoplan import plan_check
from autoplan.machine import this_machine
from autoplan.plan.records import Environment, HardwareRecord
from autoplan.plan_check import Difference, Verdict
from autoplan.sources.source import resolve
from cost_models.config import AttentionMode
from tests.builders import plans

PLAN = plans.plan()


def differences(environment=None, hardware_changes=None, sha256=PLAN.source.sha256, plan=PLAN, why="", **more):
    here = Environment(**(PLAN.environment.model_dump() | (environment or {})))
    found = HardwareRecord(**(PLAN.hardware.model_dump() | (hardware_changes or {})))
    return list(plan_check.check(plan, plan_check.Here(here, found, sha256, why, **more)))


def test_nothing_differs_where_the_plan_was_made():
    assert differences() == []


@pytest.mark.parametrize(
    ("key", "version", "name", "matters"),
    [
        ("keras", "3.16.0", "keras", True),
        ("keras", "3.15.2", "keras", False),
        ("backend_version", "0.11.0", "jax", True),
        ("backend_version", "0.10.3", "jax", False),
        ("backend_version", "not here", "jax", True),
        ("backend", "torch", "backend", True),
        ("platform", "darwin-arm64", "platform", True),
        ("python", "3.12.1", "python", False),
        ("autoplan", "0.2.0", "autoplan", False),
    ],
)
def test_versions(key, version, name, matters):
    planned = getattr(PLAN.environment, key)
    assert differences({key: version}) == [Difference(name, planned, version, matters)]


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"kind": "gpu"}, Difference("hardware kind", "cpu", "gpu", True)),
        ({"name": "local"}, Difference("hardware", "cpu", "local", True)),
        ({"description": "8 cores"}, Difference("device", "2 cores", "8 cores", True)),
        ({"devices": 0}, Difference("hardware devices", "1 device", "0 devices", True)),
        (
            {"capacity_bytes": 6 * plans.GIB},
            Difference("hardware memory", "12.0 GiB per device", "6.00 GiB per device", True),
        ),
        (
            {"capacity_bytes": 24 * plans.GIB},
            Difference("hardware memory", "12.0 GiB per device", "24.0 GiB per device", False),
        ),
    ],
)
def test_hardware(changes, difference):
    assert differences(hardware_changes=changes) == [difference]


@pytest.mark.parametrize(
    "changes", [{"devices": 2}, {"capacity_bytes": None}, {"capacity_bytes": int(12.3 * plans.GIB)}]
)
def test_hardware_that_is_as_good(changes):
    assert differences(hardware_changes=changes) == []


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"mesh": {"data": 1, "model": 2}}, Difference("config.mesh.model", "2", "only 1", True)),
        (
            {"layout": {"shard_state": True}, "backend": "torch"},
            Difference("config.layout.shard_state", "true", "only false, or backend to jax", True),
        ),
    ],
)
def test_settings_that_cannot_be_applied(changes, difference):
    assert differences(plan=plans.plan(config=plans.config(**changes))) == [difference]


def test_memory_that_cannot_be_kept_matters_to_a_plan_that_keeps_it():
    keeping = plans.plan(config=plans.config(keep_freed_memory=True))
    assert differences(plan=keeping) == []
    lacking = {"keep_freed_memory": "a C library that has no setting for it"}
    assert differences(missing_settings=lacking) == []
    found = Difference("config.keep_freed_memory", "true", "a C library that has no setting for it", True)
    assert differences(plan=keeping, missing_settings=lacking) == [found]


def test_attention_that_trains_another_model_on_a_tpu_is_not_valid():
    own = PLAN.baseline.model_copy(update={"issues": ["tpu-attention-becomes-causal"]})
    there = PLAN.hardware.model_copy(update={"kind": "tpu"})
    auto = PLAN.model_copy(update={"baseline": own, "hardware": there})
    (found,) = differences(plan=auto, hardware_changes={"kind": "tpu"})
    assert (found.key, found.planned, found.matters) == ("config.attention", "auto", True)
    assert found.here.startswith("Keras's attention kernel for TPUs makes attention without a mask causal")
    unfused = auto.model_copy(update={"config": PLAN.config.with_(attention=AttentionMode.UNFUSED)})
    assert differences(plan=unfused, hardware_changes={"kind": "tpu"}) == []
    later = [one for one in differences({"keras": "3.99.0"}, {"kind": "tpu"}, plan=auto) if "attention" in one.key]
    assert later == []


@pytest.mark.parametrize("can", [True, False])
def test_here_asks_the_c_library(can, monkeypatch):
    monkeypatch.setattr("autoplan.machine.processes.can_keep_freed_memory", lambda: can)
    assert ("keep_freed_memory" in plan_check.here(PLAN).missing_settings) is not can


def test_a_changed_and_a_missing_source():
    assert differences(sha256="00" * 32) == [Difference("source", "sha256 abababababab", "sha256 000000000000", True)]
    assert differences(sha256=None, why="there is no file train.py") == [
        Difference("source", "sha256 abababababab", "there is no file train.py", True)
    ]


@pytest.mark.parametrize("kind", ["callable", "instance"])
def test_what_lies_in_no_file_cannot_be_looked_at_and_is_not_held_against_the_plan(kind):
    source = plans.plain_plan()["source"] | {"kind": kind, "path": "build_model"}
    assert differences(plan=plans.plan(source=source), sha256=None) == []


def test_warnings_are_of_what_matters_alone():
    release, fix = Difference("keras", "3.15.1", "3.16.0", True), Difference("python", "3.11.7", "3.11.8", False)
    assert Verdict((fix,)).warnings("plan.yaml") == []
    (told,) = Verdict((fix, release)).warnings("plan.yaml")
    assert told.startswith("plan.yaml was tuned for a different setup, so its figures may not apply")
    assert told.endswith("(keras: the plan has 3.15.1; here: 3.16.0)")


def test_a_verdict_tells_what_matters_first():
    changed = Difference("python", "3.11.7", "3.12.1", False)
    differs = Difference("keras", "3.15.1", "3.16.0", True)
    assert Verdict(()).lines("plan.yaml") == ["plan.yaml is valid here"]
    assert Verdict((changed,)).lines("plan.yaml") == [
        "plan.yaml is valid here. These changes do not affect it:",
        "changed: python: the plan has 3.11.7; here: 3.12.1",
    ]
    both = Verdict((changed, differs))
    assert not both.valid
    assert both.lines("plan.yaml") == [
        "plan.yaml is not valid here. Tune again, or restore the differing values:",
        "differs: keras: the plan has 3.15.1; here: 3.16.0",
        "changed: python: the plan has 3.11.7; here: 3.12.1",
    ]
    assert both.to_dict() == {
        "schema": 1,
        "valid": False,
        "differences": [
            {"key": "python", "planned": "3.11.7", "here": "3.12.1", "matters": False},
            {"key": "keras", "planned": "3.15.1", "here": "3.16.0", "matters": True},
        ],
    }


# What is here


@pytest.fixture
def made_here(tmp_path, monkeypatch):
    """A plan as a worker on this machine would make it, for a script that is here, before any probe."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    Path("train.py").write_text("model.fit()\n")
    spec = resolve("train.py", [], 1)
    here = plan_check.here(PLAN)
    plain = plans.plain_plan()
    return plans.plan(
        source=plain["source"] | {"path": spec.path, "sha256": spec.sha256},
        environment=here.environment.model_dump(),
        hardware=plain["hardware"]
        | {
            "name": "local",
            "description": this_machine.processor_name(),
            "capacity_bytes": this_machine.memory_bytes(),
        },
    )


def test_a_plan_made_here_is_valid_here(made_here):
    assert plan_check.verdict(made_here, plan_check.here(made_here)) == Verdict(())


def test_a_changed_script_is_seen(made_here):
    Path("train.py").write_text("model.fit(x)\n")
    verdict = plan_check.verdict(made_here, plan_check.here(made_here))
    assert [(one.key, one.matters) for one in verdict.differences] == [("source", True)]
    Path("train.py").unlink()
    (gone,) = plan_check.verdict(made_here, plan_check.here(made_here)).differences
    assert gone.here.startswith("there is no file ")


def test_simulated_devices_share_this_machine(made_here):
    plan = plans.plan(
        **made_here.model_dump(by_alias=True)
        | {
            "hardware": made_here.hardware.model_dump()
            | {"devices": 4, "simulated": True, "capacity_bytes": this_machine.memory_bytes() // 4}
        }
    )
    assert plan_check.verdict(plan, plan_check.here(plan)) == Verdict(())


def test_an_accelerator_must_have_been_measured_here(made_here):
    plan = plans.plan(
        **made_here.model_dump(by_alias=True) | {"hardware": made_here.hardware.model_dump() | {"kind": "gpu"}}
    )
    (difference,) = plan_check.verdict(plan, plan_check.here(plan)).differences
    assert str(difference) == (
        "hardware kind: the plan has gpu; here: not measured yet (run `autoplan hardware probe`)"
    )


def test_here_tells_installed_versions():
    keras = importlib.util.find_spec("keras")
    source = (Path(keras.origin).parent / "src" / "version.py").read_text()
    assert f'__version__ = "{plan_check.here(PLAN).environment.keras}"' in source
