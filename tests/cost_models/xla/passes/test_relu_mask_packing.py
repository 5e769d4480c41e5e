"""What a ReLU after a product leaves in memory, as XLA:TPU's text shows it (jax 0.10.2). X is a width."""

import pytest

from cost_models.workload.workload import Kind, Phase
from cost_models.xla.fusion.fusion import kernels_of
from cost_models.xla.passes.pipeline import lower
from cost_models.xla.profile import structure_batch
from cost_models.xla.profiles.choice import compiler_profile
from tests.builders.workloads import B, Step

V4, V5E, V6E = (compiler_profile("tpu", chip=f"tpu-{name}") for name in ("v4", "v5e", "v6e"))
LENGTH, X = 256, 4096


def relu(*sizes, made=Kind.DOT, read_by=Kind.DOT):
    """A layer with ReLU that two operations read, and the ReLU's gradient. What comes in is the second returned."""
    step = Step()
    product = step.op(made, (step.input(*sizes), step.weight("w", X, X)), sizes)
    bias = step.op(Kind.BROADCAST, (step.weight("bias", X),), sizes)
    before = step.op(Kind.ELEMENTWISE, (product, bias), sizes, primitive="add")
    positive = step.op(Kind.ELEMENTWISE, (before,), sizes, dtype="bool", primitive="gt")
    after = step.op(Kind.ELEMENTWISE, (before,), sizes, primitive="max")
    ends = [step.op(read_by, (after, step.weight(f"w{n}", X, X)), (X,)) for n in range(2)]
    step.phase = Phase.BACKWARD
    gradient = step.op(Kind.ELEMENTWISE, (positive, step.input(*sizes)), sizes, primitive="select_n")
    ends.append(step.op(Kind.DOT, (gradient, step.weight("w2", X, X)), (X,)))
    return step.workload(*ends, batch=16), before


def kept(workload, target, batch):
    """Dtypes of what is in memory of the layer."""
    lowered = lower(workload, target, batch)
    kernels = kernels_of(lowered, lowered.ops, frozenset(lowered.outputs), target, batch)
    written = {write for kernel in kernels for write in kernel.writes}.difference(lowered.outputs)
    return [lowered.tensors[write].dtype for write in sorted(written)]


@pytest.mark.parametrize(
    ("target", "batch", "dtype"),
    [
        (V4, 32, "bfloat16"),
        (V4, 16, "bfloat16"),
        (V5E, 32, "bfloat16"),
        (V5E, 64, "float32"),
        (V6E, 32, "float32"),
    ],
)
def test_what_products_read_is_kept_as_they_round_it_where_the_sign_is_kept_as_bits(target, batch, dtype):
    workload, before = relu(B, LENGTH, X)
    assert kept(workload, target, batch) == [dtype]
    assert lower(workload, target, batch).tensors[before].dtype == dtype


def test_rows_of_samples_are_not_packed():
    """A dense net of 8,192 samples by 4,096 features keeps float32; so it would of few samples."""
    workload, _ = relu(B, X)
    assert kept(workload, V5E, 16) == ["float32"]


@pytest.mark.parametrize("other", [{"made": Kind.CONV}, {"read_by": Kind.SORT}])
def test_only_between_products(other):
    workload, before = relu(B, LENGTH, X, **other)
    assert lower(workload, V5E, 16).tensors[before].dtype == "float32"


def test_kernels_at_more_samples_than_a_word_has_bits_are_others():
    workload, _ = relu(B, LENGTH, X)
    assert structure_batch(workload, V5E, 8) == structure_batch(workload, V5E, 32) == workload.local_batch
    assert structure_batch(workload, V5E, 33) == structure_batch(workload, V5E, 1024) == 64
