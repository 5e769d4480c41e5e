"""Attention is found by what it is: in hand-made steps, and its absence in others."""

import pytest

from cost_models.time.attention import find_attention
from cost_models.workload.workload import Kind
from cost_models.xla.buffers.liveness import schedule
from cost_models.xla.buffers.schedule import Updates
from cost_models.xla.profiles.choice import compiler_profile
from tests.builders.workloads import HEADS, B, Step, attention, dense


def found(workload):
    plan = schedule(workload, compiler_profile("gpu"), Updates.AT_ONCE)
    return find_attention(plan.kernels, plan.tensors, workload.ops), plan


def test_scores_lie_between_two_products_with_the_batch_among_their_groups():
    attends, plan = found(attention(256))
    assert len(attends.products) == 2
    sizes = {plan.tensors[score].elements.per_sample for score in attends.scores}
    assert sizes == {HEADS * 256 * 256}
    assert not attends.products & attends.vector


@pytest.mark.parametrize("causal", [True, False])
def test_a_mask_that_compares_positions_is_causal(causal):
    assert found(attention(256, causal=causal))[0].causal is causal


def test_products_with_weights_are_no_attention():
    attends, _ = found(dense(64, 32))
    assert not attends.scores
    assert not attends.products
    assert not attends.vector


def test_two_batched_products_of_other_sizes_between_them_are_no_attention():
    step = Step()
    x = step.input(B, 8, 64, 64)
    made = step.op(Kind.DOT, (x, x), (B, 8, 64, 64), gemm=attention(64).ops[0].gemm)
    less = step.op(Kind.REDUCE, (made,), (B, 8, 64))
    more = step.op(Kind.BROADCAST, (less,), (B, 8, 64, 64))
    end = step.op(Kind.DOT, (more, x), (B, 8, 64, 64), gemm=attention(64).ops[0].gemm)
    assert not found(step.workload(end))[0].scores
