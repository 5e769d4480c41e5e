"""Rows that one kernel holds, and results that take the place of what they are made of."""

import pytest

from cost_models.workload.workload import Kind
from cost_models.xla.dataflow import Graph
from cost_models.xla.fusion.priority_fusion import priority_fusion
from cost_models.xla.fusion.row_normalization import Rows
from cost_models.xla.profiles.choice import compiler_profile
from tests.builders.workloads import B, Step

GPU, TPU = compiler_profile("gpu"), compiler_profile("tpu")


def softmax(width, then_summed=True):
    """x - log(sum(x)) over rows of this width, chosen from, and summed."""
    step = Step()
    x = step.op(Kind.SORT, (step.input(B, width),), (B, width))
    total = step.op(Kind.REDUCE, (x,), (B,), primitive="reduce_sum")
    log = step.op(Kind.ELEMENTWISE, (total,), (B,), primitive="log")
    spread = step.op(Kind.BROADCAST, (log,), (B, width), primitive="broadcast_in_dim")
    normalised = step.op(Kind.ELEMENTWISE, (x, spread), (B, width), primitive="sub")
    chosen = step.op(Kind.ELEMENTWISE, (normalised, step.input(B, width)), (B, width), primitive="mul")
    rows = step.op(Kind.REDUCE, (chosen,), (B,), primitive="reduce_sum")
    loss = step.op(Kind.REDUCE, (rows,), (), primitive="reduce_sum") if then_summed else rows
    return step.workload(loss), total, log, normalised


def rows_of(workload, batch):
    return Rows(workload, Graph(workload.ops, frozenset(workload.outputs), GPU), batch)


def test_statistics_are_one_value_a_row_of_at_most_16384_elements():
    for width, known in ((2**14, True), (2**14 + 1, False), (1, False)):
        workload, total, log, normalised = softmax(width)
        found = rows_of(workload, 8).statistics
        assert (total in found, log in found) == (known, known)
        assert normalised not in found


@pytest.mark.parametrize(
    ("batch", "width", "written"),
    [(64, 64, False), (32, 64, False), (16, 64, True), (64, 1000, True), (128, 1000, True), (256, 1000, False)],
)
def test_normalised_rows_are_written_where_the_sum_of_all_is_split_otherwise(batch, width, written):
    """As many parts as the power of two next below the root of the elements: 64 x 64 has 64, 128 x 1000 has 256."""
    workload, *_, normalised = softmax(width)
    assert list(rows_of(workload, batch).normalised()) == ([normalised] if written else [])


def test_a_sum_of_each_row_alone_is_part_of_their_kernel():
    workload, *_ = softmax(1000, then_summed=False)
    assert list(rows_of(workload, 64).normalised()) == []


def in_place(build, target=GPU):
    step = Step()
    x = step.op(Kind.SORT, (step.input(B, 256),), (B, 256))
    end = build(step, x)
    workload = step.workload(end)
    kernels = priority_fusion(workload, workload.ops, frozenset({end}), target, 8)
    return next(kernel.in_place for kernel in kernels if end in kernel.writes), x


def test_a_result_may_take_the_place_of_what_is_read_element_for_element_alone():
    found, x = in_place(lambda step, x: step.op(Kind.ELEMENTWISE, (x,), (B, 256)))
    assert found == (x,)
    assert in_place(lambda step, x: step.op(Kind.ELEMENTWISE, (x,), (B, 256)), TPU)[0] == ()

    def reversed_too(step, x):
        other = step.op(Kind.MOVE, (x,), (B, 256), primitive="rev")
        return step.op(Kind.ELEMENTWISE, (x, other), (B, 256))

    assert in_place(reversed_too)[0] == ()
    assert in_place(lambda step, x: step.op(Kind.ELEMENTWISE, (x,), (B, 256), dtype="bfloat16"))[0] == ()


def test_a_result_takes_no_place_of_what_comes_in_a_tuple():
    """A library's convolution hands over its workspace, too: who reads its result does not read the call itself."""

    def behind(kind):
        def build(step, x):
            made = step.op(kind, (x,), (B, 256))
            return step.op(Kind.ELEMENTWISE, (made,), (B, 256))

        return build

    assert in_place(behind(Kind.CONV))[0] == ()
    assert len(in_place(behind(Kind.DOT))[0]) == 1
