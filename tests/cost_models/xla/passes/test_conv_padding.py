"""How much of an uneven padding is written on GPUs, and what strided grouped convolutions read in the backward pass."""

import pytest

from cost_models.workload.affine import Affine
from cost_models.workload.workload import RELAYOUT, UNEVEN_PAD, Kind, Phase
from cost_models.xla.dataflow import Graph
from cost_models.xla.passes.conv_padding import (
    conv_crop_removal,
    conv_gradient_padding,
    conv_padding_sharing,
    grouped_gradient_dilation,
)
from cost_models.xla.passes.pipeline import lower
from cost_models.xla.profiles.choice import compiler_profile
from tests.builders.workloads import B, Step, dim

GPU = compiler_profile("gpu")

SIDE, CHANNELS = 40, 16


def strided(kernel, groups):
    """A convolution of stride 2 with "same" padding, and its two gradients."""
    step = Step()
    x, w = step.input(B, SIDE, SIDE, CHANNELS), step.weight("kernel", kernel, kernel, 1, CHANNELS)
    padded = step.op(Kind.MOVE, (x,), (B, SIDE + kernel - 2, SIDE + kernel - 2, CHANNELS), primitive=UNEVEN_PAD)
    gemm = (Affine(groups), Affine(1), Affine(1), Affine(1))
    y = step.op(Kind.CONV, (padded, w), (B, SIDE // 2, SIDE // 2, CHANNELS), gemm=gemm)
    step.phase = Phase.BACKWARD
    of_weights = step.op(Kind.CONV, (padded, y), (kernel, kernel, 1, CHANNELS), gemm=gemm)
    of_input = step.op(Kind.CONV, (y, w), (B, SIDE, SIDE, CHANNELS), gemm=gemm)
    return step.workload(of_weights, of_input), padded, y, of_weights, of_input


def shape_of(workload, tensor):
    return tuple(workload.tensors[tensor].shape)


def maker(workload, tensor):
    return next(op for op in workload.ops if tensor in op.writes)


def image(side):
    return (dim(B), dim(side), dim(side), dim(CHANNELS))


@pytest.mark.parametrize("groups", [1, CHANNELS])
def test_a_convolution_reads_all_of_the_padding_and_the_gradient_of_its_weights_what_one_end_has_more(groups):
    """5 x 5, stride 2: XLA wrote images of 51 x 51 for the convolution and of 49 x 49 for the gradient, of 48 x 48."""
    before, padded, y, of_weights, _ = strided(5, groups=groups)
    after = conv_gradient_padding(before, GPU, 0)
    anew = maker(after, of_weights).reads[0]
    assert maker(after, y).reads[0] == padded
    assert (shape_of(after, padded), shape_of(after, anew)) == (image(SIDE + 3), image(SIDE + 1))
    assert maker(after, anew).phase is Phase.BACKWARD


def test_where_one_element_is_added_forward_and_backward_share_it():
    before, _, _, _, _ = strided(3, groups=CHANNELS)
    assert conv_gradient_padding(before, GPU, 0) is before


@pytest.mark.parametrize(("stride", "shared"), [(1, True), (2, False)])
def test_causal_lines_are_shared(stride, shared):
    """They are padded at one end alone, as others are that move by more than one and have two ends."""
    step = Step()
    x, w = step.input(B, SIDE, CHANNELS), step.weight("kernel", 5, CHANNELS, CHANNELS)
    padded = step.op(Kind.MOVE, (x,), (B, SIDE + (4 if stride == 1 else 3), CHANNELS), primitive=UNEVEN_PAD)
    y = step.op(Kind.CONV, (padded, w), (B, SIDE // stride, CHANNELS))
    step.phase = Phase.BACKWARD
    of_weights = step.op(Kind.CONV, (padded, y), (5, CHANNELS, CHANNELS))
    after = conv_gradient_padding(step.workload(of_weights), GPU, 0)
    assert (maker(after, of_weights).reads[0] == padded) is shared


def test_the_gradient_of_a_strided_grouped_convolutions_input_reads_zeros_between_and_around():
    before, _, y, _, of_input = strided(5, groups=CHANNELS)
    after = grouped_gradient_dilation(before, GPU, 0)
    read = maker(after, of_input).reads[0]
    assert shape_of(after, read) == image(SIDE + 5 - 1)
    assert (maker(after, read).primitive, maker(after, read).reads) == (RELAYOUT, (y,))
    alone, *_ = strided(5, groups=1)
    assert grouped_gradient_dilation(alone, GPU, 0) is alone


def test_two_convolutions_that_pad_one_image_alike_share_what_is_padded():
    step = Step()
    x, w = step.input(B, SIDE, SIDE, CHANNELS), step.weight("kernel", 2, 2, CHANNELS, CHANNELS)
    sides = (SIDE + 1, SIDE + 1, SIDE + 2)
    pads = [step.op(Kind.MOVE, (x,), (B, side, side, CHANNELS), primitive=UNEVEN_PAD) for side in sides]
    ends = [step.op(Kind.CONV, (pad, w), (B, SIDE, SIDE, CHANNELS)) for pad in pads]
    before = step.workload(*ends)
    after = conv_padding_sharing(before, GPU, 0)
    assert [maker(after, end).reads[0] for end in ends] == [pads[0], pads[0], pads[2]]
    assert len(after.ops) == len(before.ops) - 1
    assert conv_padding_sharing(after, GPU, 0) is after


def cropped(other_reader=False, side=SIDE - 1):
    """The gradient of a 1 x 1 convolution's weights, of stride 2: the last row and column are not reached."""
    step = Step()
    x, w = step.input(B, SIDE, SIDE, CHANNELS), step.weight("kernel", 1, 1, CHANNELS, CHANNELS)
    image_made = step.op(Kind.SORT, (x,), (B, SIDE, SIDE, CHANNELS))
    y = step.op(Kind.CONV, (image_made, w), (B, SIDE // 2, SIDE // 2, CHANNELS))
    step.phase = Phase.BACKWARD
    less = step.op(Kind.MOVE, (image_made,), (B, side, side, CHANNELS), primitive=UNEVEN_PAD)
    of_weights = step.op(Kind.CONV, (less, y), (1, 1, CHANNELS, CHANNELS))
    ends = [of_weights] + ([step.op(Kind.ELEMENTWISE, (less,), (B, side, side, CHANNELS))] if other_reader else [])
    return step.workload(*ends), image_made, of_weights


def test_rows_that_a_strided_convolution_does_not_reach_are_not_copied_away():
    workload, whole, of_weights = cropped()
    target = compiler_profile("gpu")
    lowered = lower(workload, target)
    graph = Graph(lowered.ops, frozenset({of_weights}), target)
    assert graph.of(maker(lowered, of_weights).reads[0]) == whole


def test_what_something_else_reads_or_what_is_larger_is_written():
    for workload in (cropped(other_reader=True)[0], cropped(side=SIDE + 1)[0]):
        assert conv_crop_removal(workload, GPU, 0) == workload
