"""Rows of the table against the kernels that they stand for."""

import numpy as np

from cost_models.config import Batch, TrainConfig
from cost_models.time.kernels import LstmRows, kernel_table, lstm_rows, moved_share
from cost_models.time.step import device_time
from cost_models.workload.lstm import buffers_of
from cost_models.workload.workload import Kind
from cost_models.xla.buffers.schedule import Updates
from cost_models.xla.profiles.choice import compiler_profile
from tests.builders.workloads import B, Step, attention, cluster, dense, recurrent

STEPS = 20
RECURRENT = recurrent(STEPS, 64, 128)
FORWARD, BACKWARD = (op for op in RECURRENT.ops if op.kind is Kind.LSTM)


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


def test_steps_are_those_of_the_outputs():
    assert lstm_rows(RECURRENT.tensors, (FORWARD, BACKWARD)).steps.tolist() == [STEPS, STEPS]
    others = [op for op in RECURRENT.ops if op.kind is not Kind.LSTM]
    assert not lstm_rows(RECURRENT.tensors, others).rows.any()


def test_each_step_launches_a_product_and_its_gates_for_each_direction():
    rows = LstmRows(np.array([STEPS, STEPS, 0.0]))
    assert rows.launches(np.array([1.0, 2.0, 5.0])).tolist() == [2 * STEPS, 4 * STEPS, 1]


def test_only_what_cudnn_asked_for_is_moved():
    for op in (FORWARD, BACKWARD):
        assert [moved_share(op, end) for end in buffers_of(op)] == [0.25, 0.25]
        assert moved_share(op, op.writes[0]) == 1
    other = next(op for op in RECURRENT.ops if op.kind is not Kind.LSTM)
    assert moved_share(other, buffers_of(FORWARD)[0]) == 1


def test_launches_of_a_step_are_those_of_its_steps():
    found = device_time(RECURRENT, TrainConfig(Batch(16)), cluster("gpu"))
    assert found.launches >= 2 * 2 * STEPS
    assert found.launches - 2 * 2 * STEPS < 10
