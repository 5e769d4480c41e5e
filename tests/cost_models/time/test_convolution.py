"""Which convolutions have minimal filtering, and what is transposed for matrix units, by their shapes alone."""

import pytest

from cost_models.time.convolution import moves_by_one, window_of
from cost_models.time.kernels import kernel_table
from cost_models.workload.affine import Affine
from cost_models.workload.workload import Kind
from cost_models.xla.buffers.schedule import Updates
from cost_models.xla.profiles.choice import compiler_profile
from tests.builders.workloads import B, Step


def convolution(*, window=3, side=8, groups=1, channels=16, filters=32):
    """x of 8 x 8 places, and what comes out of it."""
    step = Step()
    x = step.input(B, 8, 8, channels)
    w = step.weight("w", window, window, channels // groups, filters)
    gemm = (Affine(groups), Affine(0, side * side), Affine(filters // groups), Affine(window * window * channels))
    y = step.op(Kind.CONV, (x, w), (B, side, side, filters), gemm=gemm)
    return step, step.ops[-1], (x, w, y)


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, True), ({"side": 4}, False), ({"window": 1}, False), ({"window": 5}, False), ({"groups": 16}, False)],
)
def test_windows_of_three_by_three_at_every_place_and_of_all_channels(options, expected):
    step, op, _ = convolution(**options)
    assert moves_by_one(step.tensors, op) is expected


def test_gradients_too():
    step, op, (x, w, y) = convolution()
    of_input = step.op(Kind.CONV, (y, w), (B, 8, 8, 16), gemm=op.gemm)
    of_weights = step.op(Kind.CONV, (x, y), (3, 3, 16, 32), gemm=op.gemm)
    assert of_input != of_weights
    assert all(moves_by_one(step.tensors, one) for one in step.ops)


@pytest.mark.parametrize("window", [1, 3, 5])
def test_a_window_has_as_many_positions_as_its_kernel(window):
    step, op, (x, _, y) = convolution(window=window)
    assert window_of(step.tensors, op) == window**2
    of_weights = step.op(Kind.CONV, (x, y), (window, window, 16, 32), gemm=op.gemm)
    assert of_weights is not None
    assert window_of(step.tensors, step.ops[-1]) == 0, "a kernel's gradient moves no kernel"


def test_products_are_none():
    step = Step()
    step.dot(step.input(B, 9), step.weight("w", 9, 9), (B, 9), B, 9, 9)
    assert not moves_by_one(step.tensors, step.ops[0])


def test_operands_and_results_are_read_and_written_to_transpose_them():
    step, _, (_, _, y) = convolution()
    table = kernel_table(step.workload(y), compiler_profile("gpu"), Updates.TOGETHER)
    operands, results = table.transposed_bytes(5)
    image, kernel, made = 5 * 8 * 8 * 16, 3 * 3 * 16 * 32, 5 * 8 * 8 * 32
    assert (operands.sum(), results.sum()) == (2 * 4 * (image + kernel), 2 * 4 * made)


def test_depthwise_convolutions_and_products_are_not_transposed():
    step, _, (_, _, y) = convolution(groups=16, channels=16, filters=16)
    of_depthwise = kernel_table(step.workload(y), compiler_profile("gpu"), Updates.TOGETHER)
    step = Step()
    step.dot(step.input(B, 9), step.weight("w", 9, 9), (B, 9), B, 9, 9)
    of_product = kernel_table(step.workload(step.ops[-1].writes[0]), compiler_profile("gpu"), Updates.TOGETHER)
    for table in (of_depthwise, of_product):
        assert [moved.sum() for moved in table.transposed_bytes(5)] == [0, 0]
