"""Purposes of temporaries."""

from cost_models.workload.workload import Kind, Phase, Role
from cost_models.xla.buffers.liveness import schedule
from cost_models.xla.buffers.purpose import Purpose
from cost_models.xla.buffers.schedule import Updates
from cost_models.xla.profiles.choice import compiler_profile
from tests.builders.workloads import B, Step

CPU, VOLTA = compiler_profile("cpu"), compiler_profile("gpu", compute_capability=7.0)
K, N = 512, 256


def test_gradients_and_copies_of_weights_are_named():
    step = Step()
    w = step.weight("w", K, N)
    copy = step.op(Kind.ELEMENTWISE, (w,), (K, N), dtype="bfloat16", primitive="convert_element_type")
    x = step.input(B, K, dtype="bfloat16")
    y = step.dot(x, copy, (B, N), B, K, N)
    step.phase = Phase.BACKWARD
    gradient = step.dot(x, y, (K, N), K, B, N)
    again = step.dot(y, copy, (B, K), B, N, K)
    step.phase = Phase.UPDATE
    step.new_value(w, step.op(Kind.ELEMENTWISE, (w, gradient), (K, N), primitive="sub"))
    columns = schedule(step.workload(again), VOLTA, Updates.TOGETHER).temporaries
    purposes = dict(zip(columns.tensor.tolist(), columns.purpose.tolist(), strict=True))
    assert purposes[gradient] == Purpose.GRADIENTS
    assert purposes[copy] == Purpose.WEIGHT_COPIES
    assert purposes[y] == Purpose.ACTIVATIONS
    assert purposes[-1] == Purpose.WORKSPACE


def test_what_is_drawn_from_a_seed_for_every_sample_is_no_copy_of_a_weight():
    step = Step()
    seed, x = step.weight("seed", 2, role=Role.SEED, dtype="uint32"), step.input(B, N)
    words = step.op(Kind.RANDOM, (seed,), (B, N), dtype="uint32")
    kept = step.op(Kind.ELEMENTWISE, (x, words), (B, N))
    columns = schedule(step.workload(kept), CPU, Updates.AT_ONCE).temporaries
    assert set(columns.purpose.tolist()) == {Purpose.ACTIVATIONS}
