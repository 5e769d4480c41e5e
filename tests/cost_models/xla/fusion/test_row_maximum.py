"""What is in memory of a softmax's rows while their maximum is found, as XLA:TPU's text shows it (jax 0.10.2)."""

import pytest

from cost_models.workload.workload import CONVERT, Kind
from cost_models.xla.fusion.fusion import kernels_of
from cost_models.xla.profiles.choice import compiler_profile
from tests.builders.workloads import B, Step

V4, V5E, V6E = (compiler_profile("tpu", chip=f"tpu-{name}") for name in ("v4", "v5e", "v6e"))
WIDTH, BATCH = 512, 64


def softmax(step, rows, length):
    """exp(rows - max) and its sum; the difference is the second tensor that is returned."""
    maximum = step.op(Kind.REDUCE, (rows,), (B,), primitive="reduce_max")
    guarded = step.op(Kind.ELEMENTWISE, (maximum,), (B,), primitive="max")
    spread = step.op(Kind.BROADCAST, (guarded,), (B, 1))
    difference = step.op(Kind.ELEMENTWISE, (rows, spread), (B, length), primitive="sub")
    exp = step.op(Kind.ELEMENTWISE, (difference,), (B, length), primitive="exp")
    return step.op(Kind.REDUCE, (exp,), (B,), primitive="reduce_sum"), difference, exp


def product(step, length, dtype="float32"):
    return step.op(Kind.DOT, (step.input(B, WIDTH), step.weight("w", WIDTH, length)), (B, length), dtype=dtype)


def written(step, target, *outputs, precision="float32"):
    workload = step.workload(*outputs, batch=BATCH, precision=precision)
    kernels = kernels_of(workload, workload.ops, frozenset(outputs), target, BATCH)
    return {write for kernel in kernels for write in kernel.writes}


@pytest.mark.parametrize("target", [V4, V5E, V6E], ids=lambda target: target.name)
@pytest.mark.parametrize(("length", "both"), [(4096, True), (8192, True), (10000, False), (16384, False)])
def test_long_rows_stand_beside_what_is_left_when_their_maximum_is_taken(target, length, both):
    step = Step()
    logits = product(step, length)
    total, difference, _ = softmax(step, logits, length)
    found = written(step, target, total)
    assert logits in found
    assert (difference in found) is both


@pytest.mark.parametrize(
    ("target", "precision", "both"),
    [(V4, "float32", False), (V5E, "float32", False), (V6E, "float32", True), (V6E, "mixed_bfloat16", False)],
)
@pytest.mark.parametrize("length", [256, 2048])
def test_a_product_that_makes_short_rows_is_part_of_that_kernel(target, precision, both, length):
    """But on v6e where it is in float32."""
    step = Step()
    total, difference, _ = softmax(step, product(step, length), length)
    assert (difference in written(step, target, total, precision=precision)) is both


def test_rows_that_are_converted_are_read_again():
    step = Step()
    wide = step.op(Kind.ELEMENTWISE, (product(step, 4096, "bfloat16"),), (B, 4096), primitive=CONVERT)
    total, difference, _ = softmax(step, wide, 4096)
    assert difference not in written(step, V5E, total, precision="mixed_bfloat16")


def test_what_is_taken_from_rows_must_be_their_own_maximum():
    step = Step()
    logits, others = product(step, 4096), step.input(B, 4096)
    mean = step.op(Kind.BROADCAST, (step.op(Kind.REDUCE, (logits,), (B,), primitive="reduce_sum"),), (B, 1))
    alien = step.op(Kind.BROADCAST, (step.op(Kind.REDUCE, (others,), (B,), primitive="reduce_max"),), (B, 1))
    ends = [step.op(Kind.ELEMENTWISE, (logits, one), (B, 4096), primitive="sub") for one in (mean, alien)]
    sums = [step.op(Kind.REDUCE, (end,), (), primitive="reduce_sum") for end in ends]
    assert written(step, V5E, *sums).isdisjoint(ends)
