"""Operations that are one call of a library, on small graphs. X is a large width."""

import pytest

from cost_models.workload.workload import Kind
from cost_models.xla.dataflow import Graph
from cost_models.xla.fusion.ynnpack import ynnpack
from cost_models.xla.profile import structure_batch
from cost_models.xla.profiles.choice import compiler_profile
from tests.builders.workloads import B, Step

CPU = compiler_profile("cpu")
X = 1024


def calls(step, *outputs, batch=64):
    """The operations of each call, by the position of the last one."""
    workload = step.workload(*outputs, batch=batch)
    found = CPU.rules[ynnpack.name](workload, Graph(workload.ops, frozenset(outputs), CPU), batch)
    return {root: set(members) for root, members in found.values()}


def apply(step, primitive, *operands, dtype="float32", shape=(B, X)):
    return step.op(Kind.ELEMENTWISE, operands, shape, primitive=primitive, dtype=dtype)


def total(step, operand, shape=(B,), primitive="reduce_sum", dtype="float32"):
    return step.op(Kind.REDUCE, (operand,), shape, primitive=primitive, dtype=dtype)


def test_a_reduction_takes_in_what_nothing_else_reads():
    step = Step()
    square = apply(step, "square", apply(step, "neg", step.input(B, X)))
    assert calls(step, total(step, square)) == {2: {0, 1, 2}}


def test_what_something_else_reads_is_handed_to_it():
    step = Step()
    shared = apply(step, "neg", step.input(B, X))
    end = total(step, apply(step, "square", shared))
    assert calls(step, end, apply(step, "abs", shared)) == {2: {1, 2}}


@pytest.mark.parametrize("primitive", ["select_n", "gt", "clamp"])
def test_it_has_no_choices_and_comparisons(primitive):
    step = Step()
    end = total(step, apply(step, primitive, step.input(B, X)))
    assert calls(step, end) == {1: {1}}


def test_it_takes_in_what_alone_reads_its_result_and_then_what_that_is_made_of():
    """Softmax: the largest is subtracted in the same call; a product and its bias come in with it."""
    step = Step()
    product = step.dot(step.input(B, X), step.weight("w", X, X), (B, X), B, X, X)
    logits = apply(step, "add", product, step.op(Kind.BROADCAST, (step.weight("b", X),), (B, X)))
    largest = step.op(Kind.BROADCAST, (total(step, logits, primitive="reduce_max"),), (B, X))
    shifted = apply(step, "sub", logits, largest)
    ends = apply(step, "exp", shifted), apply(step, "neg", shifted)
    assert calls(step, *ends) == {5: {0, 1, 2, 3, 4, 5}}


def test_small_reductions_are_no_calls():
    step = Step()
    end = total(step, step.input(B, X))
    assert calls(step, end, batch=4) == {0: {0}}
    assert calls(step, end, batch=3) == {}


def test_it_has_no_sums_in_half_precision():
    step = Step()
    assert calls(step, total(step, step.input(B, X, dtype="float16"), dtype="float16")) == {}


def test_outputs_are_not_taken_in():
    step = Step()
    kept = apply(step, "neg", step.input(B, X))
    assert calls(step, kept, total(step, kept)) == {1: {1}}


@pytest.mark.parametrize(("batch", "like"), [(1, 3), (3, 3), (4, 4), (15, 4), (16, 16), (500, 16)])
def test_kernels_for_cpus_are_found_for_a_batch_at_which_the_same_tensors_are_large(batch, like):
    """1,024 and 256 elements a sample reach 4,096 at 4 and 16 samples; the trace is of 3."""
    step = Step()
    wide = step.op(Kind.REDUCE, (step.input(B, 2, 1024),), (B, 1024))
    end = step.op(Kind.REDUCE, (wide,), (B, 256))
    step.tensors[0] = step.tensors[1]  # so that no third size is there
    assert structure_batch(step.workload(end, batch=3), CPU, batch) == like
