"""The pipeline runs the passes that a profile lists, in order."""

from dataclasses import replace

from cost_models.xla.passes.pipeline import lower
from cost_models.xla.profiles.choice import compiler_profile
from cost_models.xla.rules import Rule
from tests.builders.workloads import dense

GPU = compiler_profile("gpu")


def test_a_target_that_replaces_nothing_gets_the_workload_itself():
    workload = dense(32, 16)
    assert lower(workload, GPU) is workload


def test_passes_run_in_the_order_of_the_profile_at_the_batch_that_is_asked():
    ran = []
    first, second = (
        Rule(name, "a test", lambda workload, profile, batch, name=name: ran.append((name, batch)) or workload)
        for name in ("first", "second")
    )
    workload, profile = dense(32, 16), replace(GPU, passes=(first, second))
    assert lower(workload, profile) is workload
    assert lower(workload, profile, 7) is workload
    asked = workload.local_batch, 7
    assert ran == [(name, batch) for batch in asked for name in ("first", "second")]
