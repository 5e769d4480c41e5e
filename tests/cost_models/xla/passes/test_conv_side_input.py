"""Gradients that a library's convolution adds to another one itself, as nets compiled for an A100 show it."""

import pytest

from cost_models.workload.workload import Kind, Phase
from cost_models.xla.passes.conv_side_input import conv_side_input
from cost_models.xla.passes.pipeline import lower
from cost_models.xla.profiles.choice import compiler_profile
from tests.builders.workloads import B, Step

GPU = compiler_profile("gpu")

SIDE, CHANNELS = 16, 32


def branches(window=1, smaller=SIDE, dtype="float32", read_again=False, phase=Phase.BACKWARD):
    """The gradients of two branches and their sum; one of them is a convolution's."""
    image, like = (B, SIDE, SIDE, CHANNELS), {"dtype": dtype}
    step = Step()
    kernel = step.weight("kernel", window, window, CHANNELS, CHANNELS)
    step.phase = phase
    other = step.op(Kind.SORT, (step.input(*image, **like),), image, **like)
    incoming = step.op(Kind.SORT, (step.input(B, smaller, smaller, CHANNELS, **like),), (B, smaller, smaller, CHANNELS))
    own = step.op(Kind.CONV, (incoming, kernel), image, **like)
    total = step.op(Kind.ELEMENTWISE, (own, other), image, primitive="add_any", **like)
    ends = (total, step.op(Kind.SORT, (own,), image, **like)) if read_again else (total,)
    return step.workload(*ends), own, other, total


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_convolution_of_one_element_writes_the_sum(dtype):
    before, own, other, total = branches(dtype=dtype)
    after = conv_side_input(before, GPU, 0)
    made = next(op for op in after.ops if total in op.writes)
    assert (made.kind, made.reads[-1]) == (Kind.CONV, other)
    assert not any(own in op.writes for op in after.ops)


@pytest.mark.parametrize(
    "options",
    [{"window": 3}, {"smaller": SIDE // 2}, {"dtype": "bfloat16"}, {"read_again": True}, {"phase": Phase.FORWARD}],
)
def test_other_sums_are_kernels_of_their_own(options):
    before, *_ = branches(**options)
    assert conv_side_input(before, GPU, 0) is before


def test_it_is_done_on_gpus_alone():
    before, own, _, _ = branches()
    for target, there in (("gpu", False), ("tpu", True), ("cpu", True)):
        assert any(own in op.writes for op in lower(before, compiler_profile(target)).ops) is there
