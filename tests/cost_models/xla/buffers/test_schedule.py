"""Bytes alive at each kernel of a schedule."""

from cost_models.workload.workload import Kind
from cost_models.xla.buffers.liveness import schedule
from cost_models.xla.buffers.schedule import Updates
from cost_models.xla.profiles.choice import compiler_profile
from tests.builders.workloads import B, Step, dense

GPU, TPU = compiler_profile("gpu"), compiler_profile("tpu")
K, N = 512, 256


def test_the_peak_is_a_maximum_of_lines_that_are_computed_once():
    plan = schedule(dense(K, N), GPU, Updates.AT_ONCE)
    fixed, per_sample = plan.lines
    for batch in (1, 8, 100, 2048, 65536):
        assert plan.peak(batch)[0] == round(float((fixed + batch * per_sample).max()))


def test_what_is_alive_adds_up_to_the_peak():
    plan = schedule(dense(K, N, slots=2), GPU, Updates.TOGETHER)
    peak, at = plan.peak(64)
    assert plan.sizes(64)[plan.alive(at)].sum() == peak


def test_what_is_read_next_is_on_the_chip_where_there_is_room():
    step = Step()
    a = step.op(Kind.REDUCE, (step.input(B, 4, N),), (B, N))
    end = step.op(Kind.ELEMENTWISE, (a,), (B, N), primitive="exp")
    workload = step.workload(step.op(Kind.REDUCE, (end,), (B, 8)))
    assert TPU.on_chip_bytes >= 2 * 4 * 128 * N
    assert schedule(workload, TPU, Updates.AT_ONCE).peak(128)[0] == 4 * 128 * 8  # the result
    assert schedule(workload, GPU, Updates.AT_ONCE).peak(128)[0] == 4 * 128 * N + 4 * 128 * 8


def test_a_step_without_kernels_has_no_peak():
    plan = schedule(Step().workload(), GPU, Updates.AT_ONCE)
    assert plan.peak(8) == (0, 0)


def test_gaps_between_buffers_are_counted_unless_the_profile_leaves_them_out():
    plan = schedule(dense(K, N, slots=2), GPU, Updates.TOGETHER)
    without = schedule(dense(K, N, slots=2), GPU.without("heap-packing"), Updates.TOGETHER)
    assert plan.packing >= without.packing == 1.0
