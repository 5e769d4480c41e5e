from __future__ import annotations

import pytest

from autoplan.plan.records import CompiledMemory, Plan
from tests.builders import plans


def plan(**changes):
    return Plan.model_validate(plans.plain_plan(**changes))


def test_a_plan_is_printed_in_one_line_with_its_tier_and_what_it_gained():
    one = plan(whole_fit=None)
    gained = f"{one.verification.speedup:.3g} times as fast as float32, batch 32, accumulation 4, jit_compile off"
    assert str(one) == f"plan for train.py on cpu, measured: float32, batch 128 ({gained})"
    assert repr(one) == f"<{one}>"


def test_a_plan_without_a_speed_up_claims_none():
    assert str(plan(verification=None)).endswith("(instead of float32, batch 32, accumulation 4, jit_compile off)")


def test_a_plan_that_is_the_baseline_says_so():
    own = plans.plain_plan()["baseline"]["config"]
    assert str(plan(config=own)).endswith("jit_compile off (the baseline itself)")


@pytest.mark.parametrize(
    ("held_by", "peak_bytes", "must_fit_bytes"),
    [("total", None, 100), ("total", 60, 100), ("total", 120, 120), ("peak", 60, 60), ("peak", None, 100)],
)
def test_what_must_fit_is_the_larger_figure_or_the_peak_where_that_is_the_compilers_own(
    held_by, peak_bytes, must_fit_bytes
):
    memory = CompiledMemory(
        argument_bytes=40,
        output_bytes=40,
        alias_bytes=40,
        temporary_bytes=60,
        total_bytes=100,
        peak_bytes=peak_bytes,
        held_by=held_by,
    )
    assert memory.must_fit_bytes == memory.program_bytes == must_fit_bytes
    assert "temporary_heap_bytes" not in memory.model_dump()
    assert "other_batches_bytes" not in memory.model_dump()
    beside = memory.model_copy(update={"other_batches_bytes": 7})
    assert (beside.must_fit_bytes, beside.program_bytes) == (must_fit_bytes + 7, must_fit_bytes)
    assert beside.model_dump()["other_batches_bytes"] == 7


@pytest.mark.parametrize(("heap", "code", "must_fit_bytes"), [(45, 7, 92), (45, None, 85), (None, 7, 107)])
def test_on_tpus_state_heap_and_code_must_fit_whatever_the_peak_is(heap, code, must_fit_bytes):
    memory = CompiledMemory(
        argument_bytes=40,
        output_bytes=30,
        alias_bytes=30,
        temporary_bytes=60,
        total_bytes=100,
        peak_bytes=900,
        code_bytes=code,
        temporary_heap_bytes=heap,
        held_by="heap",
    )
    assert memory.must_fit_bytes == memory.program_bytes == must_fit_bytes
