"""Rows of the table against the kernels that they stand for."""

import numpy as np

from cost_models.time.kernels import kernel_table
from cost_models.workload.workload import Kind
from cost_models.xla.buffers.schedule import Updates
from cost_models.xla.profiles.choice import compiler_profile
from tests.builders.workloads import B, Step, attention, dense


def table_of(workload):
    return kernel_table(workload, compiler_profile("gpu"), Updates.AT_ONCE)


def test_the_table_has_a_row_a_kernel():
    table = table_of(dense(64, 32))
    assert len(table.runs) == 5
    assert np.all(table.runs == 1)
    assert table.dtypes == ("float32",)
    assert table.item_bytes.tolist() == [4.0] * 5
    assert table.attention is None


def test_every_sum_reads_its_operand():
    step = Step()
    step.layer = "normalization"
    x = step.input(B, 1024)
    first = step.op(Kind.REDUCE, (x,), (B,))
    second = step.op(Kind.REDUCE, (x,), (B,))
    table = table_of(step.workload(first, second))
    assert table.bytes_at(4).tolist() == [4 * 4 * 1025, 4 * 4 * 1025]


def test_a_sum_that_needs_another_reads_again():
    step = Step()
    x = step.input(B, 1024)
    mean = step.op(Kind.REDUCE, (x,), (B,))
    variance = step.op(Kind.REDUCE, (x, mean), (B,))
    table = table_of(step.workload(variance))
    assert table.bytes_at(4).tolist() == [4 * 4 * 1025, 4 * 4 * 1026]


def test_fused_attention_moves_only_what_goes_in_and_out():
    table = table_of(attention(256))
    operands = 4 * 2 * 8 * 256 * 64 * 2
    assert table.bytes_at(2, fused_attention=True).sum() == operands
    assert table.bytes_at(2).sum() > operands + 4 * 2 * 8 * 256 * 256 * 2


def test_kernels_of_a_processor_are_those_of_the_batch():
    step = Step()
    total = step.op(Kind.REDUCE, (step.input(B, 8),), (8,))
    step.op(Kind.ELEMENTWISE, (total,), (8,))
    workload = step.workload(step.ops[-1].writes[0])
    kernels = [len(kernel_table(workload, compiler_profile("cpu"), Updates.AT_ONCE, batch).runs) for batch in (16, 64)]
    assert kernels == [1, 2]  # sums of more than 32 are split in two, and the first half is a kernel
