"""Convolutions in plain loops against hand formulas, and against what was timed: on 490 GFLOP/s of products."""

import pytest

from cost_models.config import Batch, TrainConfig
from cost_models.hardware.efficiency import efficiency_of
from cost_models.time.kernels import kernel_table
from cost_models.time.roofline import kernel_seconds
from cost_models.workload.affine import Affine
from cost_models.workload.workload import Kind, Phase
from cost_models.xla.buffers.liveness import Updates
from cost_models.xla.target import target_of
from tests.builders.workloads import B, Step, cluster

PEAK = 490e9
HERE = cluster("cpu", local=True, peak_flops_per_second={"float32": PEAK}, memory_bytes_per_second=84e9, processors=2)
FORK = efficiency_of(HERE).fork_seconds


def seconds(step, batch):
    """Of the arithmetic of a step's one convolution."""
    table = kernel_table(step.workload(step.ops[-1].writes[0]), target_of("cpu"), Updates.AT_ONCE, batch)
    return kernel_seconds(table, TrainConfig(Batch(batch)), HERE)[0].max()


def convolved(image, kernel, made, groups=1, phase=Phase.FORWARD):
    """Of images whose kernel has its window first, then channels a group and features; both but the batch given."""
    step = Step()
    step.phase = phase
    places, features = _volume(made[:-1]), kernel[-1]
    depth = _volume(kernel[:-1])
    gemm = Affine(groups), Affine(0, places), Affine(features // groups), Affine(depth)
    ends = step.input(B, *image), step.weight("w", *kernel)
    step.op(Kind.CONV, ends, (B, *made), gemm=gemm, flops=Affine(0, 2 * places * depth * features))
    return step


def gradient(image, made, kernel, groups=1):
    """Of the kernel of such a convolution."""
    step = Step()
    step.phase = Phase.BACKWARD
    places, features = _volume(made[:-1]), kernel[-1]
    window = _volume(kernel[:-1])
    gemm = Affine(groups), Affine(window), Affine(features // groups), Affine(0, places)
    ends = step.input(B, *image), step.input(B, *made)
    step.op(Kind.CONV, ends, kernel, gemm=gemm, flops=Affine(0, 2 * places * window * features))
    return step


def _volume(sizes):
    product = 1
    for size in sizes:
        product *= size
    return product


# As timed one by one with jax 0.10.2, in ms: (image, kernel, result, groups, samples, forward, kernel's gradient).
TIMED = [
    ((16, 16, 48), (3, 3, 1, 48), (16, 16, 48), 48, 4, 0.96, 0.31),
    ((16, 16, 96), (5, 5, 1, 96), (16, 16, 96), 96, 4, 2.93, 1.45),
    ((16, 16, 96), (7, 7, 1, 96), (16, 16, 96), 96, 4, 4.37, 3.47),
    ((32, 32, 48), (3, 3, 1, 48), (32, 32, 48), 48, 16, 14.9, 6.24),
    ((16, 16, 64), (3, 3, 16, 64), (16, 16, 64), 4, 4, 0.34, 18.2),
    ((16, 16, 48), (3, 3, 1, 96), (16, 16, 96), 48, 4, 0.95, 119.0),
    ((16, 24, 24, 1), (3, 3, 3, 1, 8), (16, 24, 24, 8), 1, 4, 6.39, 4.37),
    ((8, 12, 12, 8), (3, 3, 3, 8, 16), (8, 12, 12, 16), 1, 16, 4.03, 5.07),
    ((16, 16, 16, 32), (3, 3, 3, 32, 32), (16, 16, 16, 32), 1, 2, 7.79, 19.5),
    ((8, 8, 8, 64), (3, 3, 3, 64, 64), (8, 8, 8, 64), 1, 2, 2.52, 6.46),
    ((8, 16, 16, 16), (1, 3, 3, 16, 16), (8, 16, 16, 16), 1, 4, 1.36, 2.41),
]


@pytest.mark.parametrize(("image", "kernel", "made", "groups", "batch", "forward", "of_kernel"), TIMED)
def test_loops_take_as_long_as_they_were_timed_within_45_percent(
    image, kernel, made, groups, batch, forward, of_kernel
):
    found = seconds(convolved(image, kernel, made, groups), batch)
    assert 1e3 * found == pytest.approx(forward, rel=0.45)
    found = seconds(gradient(image, made, kernel, groups), batch)
    assert 1e3 * found == pytest.approx(of_kernel, rel=0.45)


def test_a_window_is_picked_position_by_position_and_then_multiplied():
    loops, reached = efficiency_of(HERE).looped_conv_operations, efficiency_of(HERE).conv_share
    positions, flops = 2 * 8**3, 2 * 2 * 8**3 * 27 * 64 * 64
    picked = positions * 27 * 64 * loops["volume_pick"] / PEAK
    step = convolved((8, 8, 8, 64), (3, 3, 3, 64, 64), (8, 8, 8, 64))
    assert seconds(step, 2) - FORK == pytest.approx(picked + flops / (PEAK * reached), rel=0.01)


def test_strides_gradients_over_volumes_multiply_the_zeros_between():
    """16 x 16 x 16 positions made of 8 x 8 x 8: timed at 34 ms of 4 samples, 8 channels from 16."""
    step = convolved((8, 8, 8, 16), (3, 3, 3, 16, 8), (16, 16, 16, 8), phase=Phase.BACKWARD)
    flops = 2 * 4 * 16**3 * 27 * 16 * 8
    (op,) = step.ops
    step.ops = [type(op)(**{**_fields(op), "flops": Affine(0, flops / 8 / 4)})]
    assert 1e3 * seconds(step, 4) == pytest.approx(34.0, rel=0.1)


def _fields(op):
    return {name: getattr(op, name) for name in op.__slots__}


def test_windows_of_one_position_and_images_are_a_librarys():
    for kernel, made in (((1, 1, 1, 16, 32), (8, 16, 16, 32)), ((3, 3, 16, 32), (16, 16, 32))):
        step = convolved((*made[:-1], 16), kernel, made)
        flops = 2 * 4 * _volume(made) * _volume(kernel[:-1])
        assert seconds(step, 4) - FORK < 1.5 * flops / (PEAK * efficiency_of(HERE).conv_share)
