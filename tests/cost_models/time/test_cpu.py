"""Kernels of a processor against hand formulas: of 1 TFLOP/s on four cores, 100 GB/s and a cache of 32 MiB."""

from dataclasses import replace

import pytest

from cost_models.config import Batch, TrainConfig
from cost_models.hardware.efficiency import efficiency_of
from cost_models.time.kernels import kernel_table
from cost_models.time.roofline import kernel_seconds
from cost_models.workload.affine import Affine
from cost_models.workload.workload import POOL_SCATTER, Kind, Op, Phase
from cost_models.xla.buffers.schedule import Updates
from cost_models.xla.profiles.choice import compiler_profile
from tests.builders.workloads import B, Step, chip, cluster

PEAK, BANDWIDTH, CORES, CACHE = 1e12, 1e11, 4, 2**25
HERE = cluster(
    "cpu",
    local=True,
    peak_flops_per_second={"float32": PEAK},
    memory_bytes_per_second=BANDWIDTH,
    processors=CORES,
    cache_bytes=CACHE,
)
REACHED = efficiency_of(HERE)
GPU = cluster("gpu", local=True)


def seconds(step, batch=64, machine=HERE):
    """(of arithmetic, of traffic) of the last kernel of a step."""
    table = kernel_table(step.workload(*step.ops[-1].writes), compiler_profile(machine.chip.kind), Updates.AT_ONCE)
    compute, traffic = kernel_seconds(table, TrainConfig(Batch(batch)), machine)
    return compute[-1], traffic[-1]


def product(m, n, k):
    """Of m rows a sample."""
    step = Step()
    gemm = Affine(1), Affine(0, m), Affine(n), Affine(k)
    ends = step.input(B, m, k), step.weight("w", k, n)
    step.op(Kind.DOT, ends, (B, m, n), gemm=gemm, flops=Affine(0, 2 * m * n * k))
    return step


def test_large_products_run_on_every_core():
    step = product(16, 1024, 1024)
    compute, _ = seconds(step)
    assert compute == pytest.approx(2 * 64 * 16 * 1024 * 1024 / (PEAK * REACHED.library_gemm_share))


@pytest.mark.parametrize(("rows", "cores"), [(1, 1), (2, 2), (3, 3), (4, 4), (64, 4)])
def test_smaller_ones_wake_a_core_for_so_many_multiply_adds(rows, cores):
    side = 724  # 16 samples of a row are one core's work to a thousandth
    step = product(rows, side, side)
    compute, _ = seconds(step, batch=16)
    on_these = PEAK * REACHED.library_gemm_share * cores / CORES
    assert compute == pytest.approx(2 * 16 * rows * side * side / on_these, rel=2e-3)


def test_a_processor_that_does_not_tell_its_cores_is_busy_with_all():
    unknown = replace(HERE, chip=replace(HERE.chip, processors=None))
    assert seconds(product(1, 64, 64), machine=unknown)[0] == pytest.approx(
        2 * 64 * 64 * 64 / (PEAK * REACHED.library_gemm_share)
    )


def copied(*shape, primitive="add", kind=Kind.ELEMENTWISE):
    step = Step()
    step.op(kind, (step.input(B, *shape),), (B, *shape), primitive=primitive)
    return step


@pytest.mark.parametrize(("times", "share"), [(1 / 64, 0.75), (1 / 4, 0.75), (1, 0.5), (16, 0.5)])
def test_what_the_cache_holds_is_moved_faster(times, share):
    bytes_moved = int(CACHE * times)
    _, traffic = seconds(copied(bytes_moved // 8 // 64))
    assert traffic == pytest.approx(bytes_moved / (BANDWIDTH * share))


def image(channels, features, side=64):
    step = Step()
    x, w = step.input(B, side, side, channels), step.weight("w", 3, 3, channels, features)
    gemm = Affine(1), Affine(0, side * side), Affine(features), Affine(9 * channels)
    flops = Affine(0, 2 * side * side * features * 9 * channels)
    step.op(Kind.CONV, (x, w), (B, side, side, features), gemm=gemm, flops=flops)
    return step


@pytest.mark.parametrize(
    ("channels", "features", "times"),
    [(3, 16, 1), (3, 24, 9), (3, 32, 2.9), (3, 40, 1), (4, 24, 1), (5, 24, 4), (5, 32, 2.9), (1, 24, 1)],
)
def test_of_three_channels_some_numbers_of_features_take_several_times_as_long(channels, features, times):
    picked = 64 * 64 * 64 * 9 / (PEAK * REACHED.im2col_share)
    step = image(channels, features)
    assert seconds(step)[0] == pytest.approx(times * picked)


def test_gradients_of_convolutions_in_loops_run_in_plain_ones():
    def looped(phase, repeat):
        inner = image(64, 64, side=8)
        inner.ops = [replace(op, phase=phase) for op in inner.ops]
        body, out = tuple(inner.ops), inner.tensor(B, 8, 8, 64)
        inner.ops = [Op(Kind.LOOP, "scan", body[0].reads, (out,), repeat=repeat, body=body, results=body[0].writes)]
        return seconds(inner)[0]

    flops = 5 * 64 * 2 * 8 * 8 * 64 * 9 * 64
    assert looped(Phase.FORWARD, 5) == pytest.approx(flops / (PEAK * REACHED.conv_share))
    assert looped(Phase.BACKWARD, 5) == pytest.approx(flops / (PEAK * REACHED.slow_kernel_shares["looped_gradient"]))


def test_exchanging_samples_and_steps_copies_whole_rows():
    def turned(made, batch=64):
        step = Step()
        step.op(Kind.MOVE, (step.input(B, 64, 48),), made, primitive="transpose")
        return seconds(step, batch)[1]

    straight = turned((64, B, 48))
    assert turned((B, 48, 64)) == pytest.approx(straight / REACHED.strided_share)


def test_products_in_loops_read_parts_of_what_lies_further_away():
    def looped(repeat):
        inner = product(1, 256, 256)
        body, out = tuple(inner.ops), inner.tensor(B, 1, 256)
        inner.ops = [Op(Kind.LOOP, "scan", body[0].reads, (out,), repeat=repeat, body=body, results=body[0].writes)]
        return seconds(inner, 256)[0]

    whole = seconds(product(1, 256, 256), 256)[0]
    assert looped(10) == pytest.approx(10 * whole * REACHED.library_gemm_share / REACHED.loop_gemm_share)


def test_what_is_read_across_takes_longer():
    """Two dimensions are a matrix, which products take in any order; more are copied."""
    _, straight = seconds(copied(16, 32, 64))
    _, across = seconds(copied(16, 32, 64, primitive="transpose", kind=Kind.MOVE))
    assert across == pytest.approx(straight / REACHED.strided_share)


def test_a_loop_finds_what_it_wrote_near():
    def of(repeat):
        inner = Step()
        x = inner.input(B, 16)
        y = inner.op(Kind.ELEMENTWISE, (x,), (B, 16))
        loop = Op(Kind.LOOP, "scan", (x,), (y,), repeat=repeat, body=tuple(inner.ops), results=(y,))
        inner.ops = [loop]
        return inner

    size = 2 * 4 * 64 * 16
    assert seconds(of(10))[1] == pytest.approx(10 * size / (BANDWIDTH * REACHED.loop_cache_curve[0][1]))


@pytest.mark.parametrize("primitive", ["tanh", "exp", "logistic", "log1p"])
def test_functions_are_polynomials(primitive):
    """Of 64 samples of 8: as long as 33 multiply-adds an element."""
    step = Step()
    step.op(Kind.ELEMENTWISE, (step.input(B, 8),), (B, 8), primitive=primitive, flops=Affine(0, 8))
    compute, _ = seconds(step)
    assert compute == pytest.approx(33 * 64 * 8 / (PEAK * REACHED.vector_share))


def convolution(channels, filters, *, side=32, window=3):
    step = Step()
    x, w = step.input(B, side, side, channels), step.weight("w", window, window, channels, filters)
    gemm = Affine(1), Affine(0, side * side), Affine(filters), Affine(window * window * channels)
    flops = Affine(0, 2 * side * side * filters * window * window * channels)
    step.op(Kind.CONV, (x, w), (B, side, side, filters), gemm=gemm, flops=flops)
    return step


def test_wide_convolutions_take_their_flops():
    compute, _ = seconds(convolution(64, 64))
    flops = 2 * 64 * 1024 * 64 * 64 * 9
    assert compute == pytest.approx(flops / (PEAK * REACHED.conv_share))


@pytest.mark.parametrize(("channels", "filters"), [(1, 16), (3, 16), (3, 64)])
def test_narrow_ones_take_the_positions_that_their_windows_pick(channels, filters):
    """64 images of 32 x 32, windows of 9: however few channels they have."""
    compute, _ = seconds(convolution(channels, filters))
    assert compute == pytest.approx(64 * 1024 * 9 / (PEAK * REACHED.im2col_share))


def kernel_gradient(first, second):
    """Of images of these sides, 16 channels to 32, over windows of 2 x 2."""
    step = Step()
    x, dy = step.input(B, first, first, 16), step.input(B, second, second, 32)
    gemm = Affine(1), Affine(4 * 16), Affine(32), Affine(0, 256)
    step.op(Kind.CONV, (x, dy), (2, 2, 16, 32), gemm=gemm, flops=Affine(0, 2 * 4 * 16 * 32 * 256))
    return step


def test_gradients_of_kernels_of_transposed_convolutions_run_in_plain_loops():
    flops = 64 * 2 * 4 * 16 * 32 * 256
    straight, transposed = kernel_gradient(32, 16), kernel_gradient(16, 32)
    assert seconds(straight)[0] == pytest.approx(flops / (PEAK * REACHED.conv_share))
    slow = REACHED.slow_kernel_shares["transposed_kernel_gradient"]
    assert seconds(transposed)[0] == pytest.approx(flops / (PEAK * slow))


def test_convolutions_along_a_line_are_nearly_products():
    step = Step()
    x, w = step.input(B, 1024, 32), step.weight("w", 9, 32, 64)
    gemm = Affine(1), Affine(0, 1024), Affine(64), Affine(9 * 32)
    step.op(Kind.CONV, (x, w), (B, 1024, 64), gemm=gemm, flops=Affine(0, 2 * 1024 * 64 * 9 * 32))
    flops = 64 * 2 * 1024 * 64 * 9 * 32
    assert seconds(step)[0] == pytest.approx(flops / (PEAK * REACHED.conv1d_shares[0]))


def test_pooling_of_images_is_sent_back_in_plain_loops():
    def slowest(shape):
        step = Step()
        ends = step.input(*shape), step.input(*shape)
        sent = step.op(Kind.SCATTER, ends, shape, flops=Affine(0, 50 * 64), primitive=POOL_SCATTER)
        table = kernel_table(step.workload(sent), compiler_profile("cpu"), Updates.AT_ONCE)
        return kernel_seconds(table, TrainConfig(Batch(4096)), HERE)[0].max()

    operations = 50 * 64 * 4096
    assert slowest((B, 4, 4, 4)) == pytest.approx(operations / (PEAK * REACHED.slow_kernel_shares["pool_gradient"]))
    assert slowest((B, 8, 8)) == pytest.approx(operations / (PEAK * REACHED.vector_share))


def test_a_published_processor_reaches_less_than_its_data_sheet():
    """One that was measured reaches what it was seen to reach."""
    figures = {"peak_flops_per_second": {"float32": PEAK}, "memory_bytes_per_second": BANDWIDTH}
    published = replace(HERE, local=False, chip=chip("cpu", **figures, processors=CORES, cache_bytes=CACHE))
    reached = efficiency_of(published)
    here, there = (seconds(product(64, 1024, 1024), machine=machine) for machine in (HERE, published))
    assert there[1] == pytest.approx(here[1] / reached.stream_share)
    assert there[0] == pytest.approx(here[0] / reached.gemm_share)


TIMED_PEAK = 490e9
TIMED_ON = cluster(
    "cpu", local=True, peak_flops_per_second={"float32": TIMED_PEAK}, memory_bytes_per_second=84e9, processors=2
)


def arithmetic_seconds(step, batch):
    """Return the seconds of the arithmetic of a step's only convolution."""
    table = kernel_table(step.workload(step.ops[-1].writes[0]), compiler_profile("cpu"), Updates.AT_ONCE, batch)
    return kernel_seconds(table, TrainConfig(Batch(batch)), TIMED_ON)[0].max()


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


def window_gradient(image, made, kernel, groups=1):
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
    found = arithmetic_seconds(convolved(image, kernel, made, groups), batch)
    assert 1e3 * found == pytest.approx(forward, rel=0.45)
    found = arithmetic_seconds(window_gradient(image, made, kernel, groups), batch)
    assert 1e3 * found == pytest.approx(of_kernel, rel=0.45)


def test_a_window_is_picked_position_by_position_and_then_multiplied():
    loops, reached = efficiency_of(TIMED_ON).looped_conv_operations, efficiency_of(TIMED_ON).conv_share
    positions, flops = 2 * 8**3, 2 * 2 * 8**3 * 27 * 64 * 64
    picked = positions * 27 * 64 * loops["volume_pick"] / TIMED_PEAK
    step = convolved((8, 8, 8, 64), (3, 3, 3, 64, 64), (8, 8, 8, 64))
    assert arithmetic_seconds(step, 2) == pytest.approx(picked + flops / (TIMED_PEAK * reached), rel=0.01)


def test_strides_gradients_over_volumes_multiply_the_zeros_between():
    """16 x 16 x 16 positions made of 8 x 8 x 8: timed at 34 ms of 4 samples, 8 channels from 16."""
    step = convolved((8, 8, 8, 16), (3, 3, 3, 16, 8), (16, 16, 16, 8), phase=Phase.BACKWARD)
    flops = 2 * 4 * 16**3 * 27 * 16 * 8
    (op,) = step.ops
    step.ops = [type(op)(**{**_fields(op), "flops": Affine(0, flops / 8 / 4)})]
    assert 1e3 * arithmetic_seconds(step, 4) == pytest.approx(34.0, rel=0.1)


def _fields(op):
    return {name: getattr(op, name) for name in op.__slots__}


def test_windows_of_one_position_and_images_are_a_librarys():
    for kernel, made in (((1, 1, 1, 16, 32), (8, 16, 16, 32)), ((3, 3, 16, 32), (16, 16, 32))):
        step = convolved((*made[:-1], 16), kernel, made)
        flops = 2 * 4 * _volume(made) * _volume(kernel[:-1])
        assert arithmetic_seconds(step, 4) < 1.5 * flops / (TIMED_PEAK * efficiency_of(TIMED_ON).conv_share)
