from dataclasses import fields

import pytest

from cost_models.xla.profile import Profile
from cost_models.xla.profiles.choice import compiler_profile

MOST_FIELDS = 20


def test_a_profile_has_few_fields():
    assert len(fields(Profile)) < MOST_FIELDS


def test_without_a_rule_nothing_else_changes():
    gpu = compiler_profile("gpu")
    without = gpu.without("float-normalization")
    assert gpu.rules.keys() - without.rules.keys() == {"float-normalization"}
    assert [one for one in gpu.passes if one.name != "float-normalization"] == list(without.passes)
    assert without.fusion_rules == gpu.fusion_rules


def test_a_profile_that_does_not_list_a_rule_stays_as_it_is():
    gpu = compiler_profile("gpu")
    assert gpu.without("vmem") == gpu
    assert hash(gpu.without("vmem")) == hash(gpu)


def test_another_scheduler_and_another_policy_have_a_substitute_and_the_last_ones_have_none():
    cpu = compiler_profile("cpu")
    assert cpu.without("breadth-first-scheduler").scheduler.name == "list-scheduler"
    assert cpu.without("cpu-fusion").fusion.name == "priority-fusion"
    for last in ("list-scheduler", "priority-fusion"):
        with pytest.raises(ValueError, match=f"'{last}' cannot be switched off: every profile needs a fusion policy"):
            compiler_profile("tpu").without(last)


def test_a_rule_that_nobody_registered_is_an_error_that_lists_the_known():
    with pytest.raises(ValueError, match=r"no rule is named 'magic'; known rules are .*float-normalization"):
        compiler_profile("gpu").without("magic")


def test_settings_are_those_of_the_profile_and_a_rule_that_is_off_has_none():
    tpu, gpu = compiler_profile("tpu"), compiler_profile("gpu")
    assert tpu.on_chip_bytes == tpu.setting("vmem", "room") > 0 == gpu.on_chip_bytes
    assert gpu.setting("vmem", "room", None) is None
