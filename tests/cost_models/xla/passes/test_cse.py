import pytest

from cost_models.workload.workload import Kind
from cost_models.xla.passes.cse import cse
from cost_models.xla.profiles.choice import compiler_profile
from tests.builders.workloads import B, Step

CPU = compiler_profile("cpu")

X = 8


def kinds(step):
    return [op.kind for op in cse(step.workload(), CPU, 0).ops]


def test_the_second_of_two_equal_operations_is_a_view():
    step = Step()
    x, y = step.input(B, X), step.input(B, X)
    first, _ = (step.op(Kind.ELEMENTWISE, (x, y), (B, X), primitive="mul") for _ in range(2))
    assert kinds(step) == [Kind.ELEMENTWISE, Kind.VIEW]
    assert cse(step.workload(), CPU, 0).ops[1].reads == (first,)


def test_what_follows_from_equal_values_is_equal():
    step = Step()
    x = step.input(B, X)
    sums = [step.op(Kind.REDUCE, (x,), (B,), primitive="reduce_sum") for _ in range(2)]
    for total in sums:
        step.op(Kind.ELEMENTWISE, (total,), (B,), primitive="neg")
    assert kinds(step) == [Kind.REDUCE, Kind.VIEW, Kind.ELEMENTWISE, Kind.VIEW]


@pytest.mark.parametrize("primitive", ["mul", "add", "max", "pow"])
def test_constants_that_are_not_known_may_differ(primitive):
    step = Step()
    x = step.input(B, X)
    for _ in range(2):
        step.op(Kind.ELEMENTWISE, (x,), (B, X), primitive=primitive)
    assert kinds(step) == [Kind.ELEMENTWISE, Kind.ELEMENTWISE]


def test_random_numbers_and_other_shapes_differ():
    step = Step()
    x = step.input(B, X)
    for _ in range(2):
        step.op(Kind.RANDOM, (x,), (B, X), primitive="random_bits")
    step.op(Kind.REDUCE, (x,), (B,), primitive="reduce_sum")
    step.op(Kind.REDUCE, (x,), (X,), primitive="reduce_sum")
    assert Kind.VIEW not in kinds(step)


def test_what_is_recomputed_stays_so():
    step = Step()
    x = step.input(B, X)
    for region in (0, 1):
        step.op(Kind.ELEMENTWISE, (x,), (B, X), primitive="exp", region=region)
    assert Kind.VIEW not in kinds(step)


def test_one_value_padded_twice_to_one_shape_is_one_value():
    step = Step()
    x, zeros = step.input(B, X), [step.input(), step.input()]
    for zero in zeros:
        step.op(Kind.MOVE, (x, zero), (B, X + 1), primitive="pad")
    assert kinds(step) == [Kind.MOVE, Kind.VIEW]


def test_what_reads_the_second_of_two_equal_values_reads_the_first():
    step = Step()
    x = step.input(B, X)
    first, second = (step.op(Kind.ELEMENTWISE, (x,), (B, X), primitive="exp") for _ in range(2))
    step.op(Kind.ELEMENTWISE, (second,), (B, X), primitive="mul")
    assert cse(step.workload(), CPU, 0).ops[-1].reads == (first,)
