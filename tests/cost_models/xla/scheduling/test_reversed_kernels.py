"""Convolutions that wait for the update of their own weights, as nets compiled for an A100 show them."""

import pytest

from cost_models.workload.workload import Kind, Phase, Role
from cost_models.xla.fusion.fusion import kernels_of
from cost_models.xla.profiles.choice import compiler_profile
from cost_models.xla.scheduling.memory_scheduler import orders
from cost_models.xla.scheduling.reversed_kernels import waiting
from tests.builders.workloads import B, Step

GPU = compiler_profile("gpu")
SIDE = 8


def decoder(larger=2 * SIDE, channels=32, dtype="float32", slots=0, in_parts=False):
    """A convolution to `larger` sides, its gradients, and the update of its weights from these and `slots` of state."""
    shape, image, made = (3, 3, channels, channels), (B, SIDE, SIDE, channels), (B, larger, larger, channels)
    step, like = Step(), {"dtype": dtype}
    weights = step.weight("kernel", *shape)
    states = [step.weight(f"slot_{number}", *shape, role=Role.SLOT) for number in range(slots)]
    x = step.op(Kind.SORT, (step.input(*image, **like),), image, **like)
    copy = step.op(Kind.COPY, (weights,), shape, **like)
    y = step.op(Kind.CONV, (x, copy), made, **like)
    step.phase = Phase.BACKWARD
    reverse = step.op(Kind.SORT, (copy,), shape, primitive="rev", **like)
    of_input = step.op(Kind.CONV, (y, reverse), image, **like)
    of_weights = step.op(Kind.CONV, (x, y), shape, **like)
    step.phase = Phase.UPDATE
    reads = (of_weights, *states)
    for state in states:
        new = step.op(Kind.SORT if in_parts else Kind.ELEMENTWISE, (state, of_weights), shape)
        step.new_value(state, new)
        reads = (of_weights, new) if in_parts else reads
    step.new_value(weights, step.op(Kind.ELEMENTWISE, (weights, *reads), shape))
    workload = step.workload(of_input)
    outputs = frozenset((of_input, *(v.result for v in workload.variables)))
    kernels = kernels_of(workload, workload.ops, outputs, GPU, 8)
    return workload, kernels, (of_input, of_weights)


def waits(**options):
    workload, kernels, (of_input, _) = decoder(**options)
    found = waiting(workload, kernels)
    if not found:
        return False
    ((convolution, update),) = found.items()
    assert kernels[convolution].writes == (of_input,)
    assert workload.variables[0].result in kernels[update].writes
    return True


@pytest.mark.parametrize(
    ("options", "expected"), [({}, True), ({"larger": SIDE}, False), ({"larger": SIDE // 2}, False)]
)
def test_a_transposed_convolutions_input_waits_for_the_update_of_its_weights(options, expected):
    assert waits(**options) is expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [({"slots": 1}, True), ({"slots": 2}, False), ({"slots": 1, "in_parts": True}, False)],
)
def test_the_update_is_one_kernel_with_it_where_it_has_few_results_and_is_one_kernel_itself(options, expected):
    assert waits(**options) is expected


@pytest.mark.parametrize(("dtype", "channels", "expected"), [("bfloat16", 64, True), ("bfloat16", 128, False)])
def test_large_weights_in_half_precision_are_converted_first_and_reversed_apart(dtype, channels, expected):
    """3 x 3 x 64 x 64 elements were reversed as they were converted, 3 x 3 x 64 x 72 were not."""
    assert waits(dtype=dtype, channels=channels) is expected
    assert waits(channels=channels)


def test_in_every_order_the_gradient_of_the_weights_comes_first():
    workload, kernels, (of_input, of_weights) = decoder()
    for order in orders(workload, kernels, GPU, 8):
        place = {write: at for at, kernel in enumerate(order) for write in kernel.writes}
        assert place[of_weights] < place[workload.variables[0].result] < place[of_input]
