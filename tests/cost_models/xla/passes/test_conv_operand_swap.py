"""What is copied for the gradient of a transposed or dilated convolution's weights."""

import pytest

from cost_models.workload.workload import RELAYOUT, STRIDED_CONVOLUTION, UNEVEN_PAD, Kind, Phase
from cost_models.xla.fusion.fusion import kernels_of
from cost_models.xla.passes.conv_operand_swap import conv_operand_swap
from cost_models.xla.passes.pipeline import lower
from cost_models.xla.profiles.choice import compiler_profile
from tests.builders.workloads import B, Step, dim

GPU, TPU = compiler_profile("gpu"), compiler_profile("tpu")
SIDE, IN, OUT = 8, 32, 16


def step_of(larger, uneven=False, primitive="conv_general_dilated"):
    """One convolution forward, and the gradients of its weights and of its input."""
    step = Step()
    x, w = step.input(B, SIDE, SIDE, IN), step.weight("kernel", 3, 3, OUT, IN)
    y = step.op(Kind.CONV, (x, w), (B, larger, larger, OUT))
    step.phase = Phase.BACKWARD
    incoming = step.op(Kind.ELEMENTWISE, (y,), (B, larger, larger, OUT), primitive="mul")
    of_weights = step.op(Kind.CONV, (x, incoming), (3, 3, IN, OUT), primitive=primitive)
    padded = incoming
    if uneven:
        shape = (B, larger + 1, larger + 1, OUT)
        padded = step.op(Kind.MOVE, (incoming,), shape, primitive=UNEVEN_PAD)
    of_input = step.op(Kind.CONV, (padded, w), (B, SIDE, SIDE, IN))
    return step.workload(of_weights, of_input), x, incoming, of_weights


def copies(workload, of_weights):
    made = next(op for op in workload.ops if of_weights in op.writes)
    return [tuple(workload.tensors[read].shape) for read in made.reads]


def shape(*sizes):
    return tuple(map(dim, sizes))


def test_both_operands_are_written_anew():
    before, x, incoming, of_weights = step_of(2 * SIDE)
    after = conv_operand_swap(before, GPU, 0)
    assert copies(after, of_weights) == [shape(B, SIDE, SIDE, IN), shape(B, 2 * SIDE, 2 * SIDE, OUT)]
    made = next(op for op in after.ops if of_weights in op.writes)
    assert {x, incoming}.isdisjoint(made.reads)
    assert next(op for op in after.ops if made.reads[0] in op.writes).primitive == RELAYOUT
    assert made.reads[1] in next(op for op in after.ops if incoming in op.writes).writes


def test_uneven_padding_is_written_into_them():
    before, _, _, of_weights = step_of(2 * SIDE, uneven=True)
    dilated, padded = 2 * (SIDE - 1) + 1, 2 * SIDE + 1
    after = copies(conv_operand_swap(before, GPU, 0), of_weights)
    assert after == [shape(B, dilated, dilated, IN), shape(B, padded, padded, OUT)]


@pytest.mark.parametrize("larger", [SIDE, SIDE // 2])
def test_other_convolutions_are_left_alone(larger):
    before, _, _, _ = step_of(larger)
    assert conv_operand_swap(before, GPU, 0) is before


def test_it_is_done_on_gpus_alone():
    before, _, _, of_weights = step_of(2 * SIDE)
    for target, swapped in ((GPU, True), (TPU, False)):
        made = next(op for op in lower(before, target).ops if of_weights in op.writes)
        assert (made.reads[1] >= len(before.tensors)) is swapped


def test_the_gradient_of_dilated_weights_skips_positions_and_reads_copies_of_both_operands():
    before, _, incoming, of_weights = step_of(SIDE, primitive=STRIDED_CONVOLUTION)
    after = conv_operand_swap(before, GPU, 0)
    assert copies(after, of_weights) == [shape(B, SIDE, SIDE, IN), shape(B, SIDE, SIDE, OUT)]
    made = next(op for op in after.ops if of_weights in op.writes)
    assert incoming not in made.reads


def test_padding_that_the_copy_is_made_along_with_comes_before_what_reads_it():
    """It stands after the gradient of the weights in the program, and before the copy of the image for them now."""
    before, _, _, _ = step_of(2 * SIDE, uneven=True)
    there = {*before.inputs, *(v.tensor for v in before.variables)}
    order = []
    for op in conv_operand_swap(before, GPU, 0).ops:
        assert there.issuperset(op.reads)
        there.update(op.writes)
        order.append(op.primitive)
    assert order[2:4] == [UNEVEN_PAD, RELAYOUT]


def test_what_is_padded_and_copied_at_once_is_in_memory():
    before, _, incoming, _ = step_of(2 * SIDE, uneven=True)
    after = conv_operand_swap(before, GPU, 0)
    kernels = kernels_of(after, after.ops, frozenset(after.outputs), GPU, 8)
    assert incoming in {write for kernel in kernels for write in kernel.writes}


def test_what_several_gradients_read_of_one_image_is_copied_once():
    """Two dilated convolutions of one image: their weights' gradients read one copy of it."""
    step = Step()
    x = step.input(B, SIDE, SIDE, IN)
    step.phase = Phase.BACKWARD
    gradients = []
    for _ in range(2):
        incoming = step.op(Kind.SORT, (x,), (B, SIDE, SIDE, OUT))
        gradients.append(step.op(Kind.CONV, (x, incoming), (3, 3, IN, OUT), primitive=STRIDED_CONVOLUTION))
    after = conv_operand_swap(step.workload(*gradients), GPU, 0)
    read = [next(op for op in after.ops if gradient in op.writes).reads for gradient in gradients]
    assert read[0][0] == read[1][0]
    assert read[0][1] != read[1][1]
    assert len([op for op in after.ops if op.primitive == RELAYOUT and x in op.reads]) == 1


@pytest.mark.parametrize("kernel", [2, 3, 4, 5])
def test_a_line_is_written_with_zeros_between_and_around(kernel):
    """XLA wrote lines of 513, 514, 515 and 516 elements for one of 256, and gradients of 512 as they are (A100)."""
    step = Step()
    x, w = step.input(B, 256, IN), step.weight("kernel", kernel, OUT, IN)
    y = step.op(Kind.CONV, (x, w), (B, 512, OUT))
    step.phase = Phase.BACKWARD
    incoming = step.op(Kind.ELEMENTWISE, (y,), (B, 512, OUT), primitive="mul")
    of_weights = step.op(Kind.CONV, (x, incoming), (kernel, IN, OUT))
    step.op(Kind.MOVE, (incoming,), (B, 513, OUT), primitive=UNEVEN_PAD)
    after = conv_operand_swap(step.workload(of_weights), GPU, 0)
    assert copies(after, of_weights) == [shape(B, 511 + kernel, IN), shape(B, 512, OUT)]
    gradient = next(op for op in after.ops if of_weights in op.writes).reads[1]
    made = next(op for op in after.ops if gradient in op.writes)
    assert (made.primitive, made.reads, made.writes) == (RELAYOUT, (incoming,), (gradient,))
