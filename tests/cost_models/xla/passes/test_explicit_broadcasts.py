from cost_models.workload.workload import Kind
from cost_models.xla.passes.explicit_broadcasts import explicit_broadcasts
from cost_models.xla.profiles.choice import compiler_profile
from tests.builders.workloads import B, Step

CPU = compiler_profile("cpu")

X = 8


def ops(step):
    return [(op.kind, op.reads, op.writes) for op in explicit_broadcasts(step.workload(), CPU, 0).ops]


def test_a_smaller_operand_is_broadcast_first():
    step = Step()
    x, scale = step.input(B, X), step.weight("scale", X)
    end = step.op(Kind.ELEMENTWISE, (x, scale), (B, X), primitive="mul")
    wide = end + 1
    assert ops(step) == [(Kind.BROADCAST, (scale,), (wide,)), (Kind.ELEMENTWISE, (x, wide), (end,))]
    assert explicit_broadcasts(step.workload(), CPU, 0).tensors[wide] == step.tensors[x]


def test_what_is_broadcast_twice_to_one_shape_is_one_value():
    step = Step()
    x, scale = step.input(B, X), step.weight("scale", X)
    named = step.op(Kind.VIEW, (scale,), (1, X), primitive="reshape")
    ends = [step.op(Kind.ELEMENTWISE, (x, part), (B, X), primitive="mul") for part in (scale, named)]
    kinds = [kind for kind, _, _ in ops(step)]
    assert kinds == [Kind.VIEW, Kind.BROADCAST, Kind.ELEMENTWISE, Kind.ELEMENTWISE]
    assert len({reads for _, reads, writes in ops(step) if writes[0] in ends}) == 1


def test_adding_dimensions_of_one_element_is_a_view():
    step = Step()
    step.op(Kind.BROADCAST, (x := step.input(B),), (B, 1), primitive="broadcast_in_dim")
    assert ops(step) == [(Kind.VIEW, (x,), (1,))]


def test_a_second_equal_broadcast_is_a_view_of_the_first():
    step = Step()
    x = step.input(B)
    first, second = (step.op(Kind.BROADCAST, (x,), (B, X), primitive="broadcast_in_dim") for _ in range(2))
    assert ops(step) == [(Kind.BROADCAST, (x,), (first,)), (Kind.VIEW, (first,), (second,))]


def test_a_relu_and_what_compares_with_its_bound_share_a_constant_of_that_shape():
    step = Step()
    x = step.input(B, X)
    bounded = step.op(Kind.ELEMENTWISE, (x,), (B, X), primitive="max")
    mask = step.op(Kind.ELEMENTWISE, (x,), (B, X), dtype="bool", primitive="gt")
    constant = mask + 1
    assert ops(step) == [
        (Kind.BROADCAST, (), (constant,)),
        (Kind.ELEMENTWISE, (x, constant), (bounded,)),
        (Kind.ELEMENTWISE, (x, constant), (mask,)),
    ]
