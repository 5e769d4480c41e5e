"""The orders that XLA tries on GPUs: what comes first in each, and that nothing is run before what it reads."""

import pytest

from cost_models.workload.workload import Kind, Op, Phase, Role
from cost_models.xla.fusion.priority_fusion import priority_fusion
from cost_models.xla.profiles.choice import compiler_profile
from cost_models.xla.scheduling.memory_scheduler import orders
from tests.builders.workloads import B, Step, named, two_layers

GPU = compiler_profile("gpu")
N = 256


def of(workload):
    outputs = frozenset(v.result for v in workload.variables) | frozenset(workload.outputs)
    kernels = priority_fusion(workload, workload.ops, outputs, GPU, workload.local_batch)
    return [list(order) for order in orders(workload, kernels, workload.local_batch)]


@pytest.mark.parametrize("which", range(3))
def test_every_kernel_runs_once_after_what_it_reads(which):
    workload, names = two_layers()
    order = of(workload)[which]
    assert sorted(named(order, names)) == sorted(names.values())
    there = {v.tensor for v in workload.variables} | set(workload.inputs)
    for kernel in order:
        assert there.issuperset(kernel.reads)
        there.update(kernel.writes)


@pytest.mark.parametrize("which", [1, 2])
def test_a_new_value_waits_for_the_readers_of_the_old_one(which):
    workload, names = two_layers()
    order = named(of(workload)[which], names)
    assert order.index("d_h") < order.index("new_second")


def test_in_post_order_what_leads_to_the_first_weight_comes_before_the_last_weights_gradient():
    workload, names = two_layers()
    order = named(of(workload)[2], names)
    assert order == ["h", "y", "d_h", "d_first", "new_first", "d_second", "new_second"]


def test_the_list_runs_first_what_frees_most():
    """Two large values, one of which can be made small at once: that is done before the other is made."""
    step = Step()
    x = step.input(B, N)
    large = [step.op(Kind.SORT, (x,), (B, 4 * N)) for _ in range(2)]
    small = [step.op(Kind.REDUCE, (one,), (B,)) for one in large]
    order = of(step.workload(*small))[0]
    assert [len(kernel.writes) for kernel in order] == [1, 1, 1, 1]
    assert [kernel.op.kind for kernel in order] == [Kind.SORT, Kind.REDUCE, Kind.SORT, Kind.REDUCE]


def looped(step, start, shape):
    """A loop that stacks what it makes of `start` ten times."""
    stacked, inside = step.tensor(10, *shape), step.tensor(*shape)
    body = (
        Op(Kind.SORT, "sort", (start,), (inside,)),
        Op(Kind.SCATTER, "dynamic_update_slice", (inside,), (stacked,)),
    )
    step.ops.append(Op(Kind.LOOP, "scan", (start,), (stacked,), repeat=10, body=body, phase=step.phase))
    return stacked


def test_the_zeros_that_loops_of_one_shape_fill_are_one_kernel():
    step = Step()
    x = step.input(B, N)
    first = looped(step, x, (B, N))
    step.phase = Phase.BACKWARD
    second = looped(step, step.op(Kind.REDUCE, (first,), (B, N)), (B, N))
    other = looped(step, x, (B, 2 * N))
    order = of(step.workload(second, other))[2]
    zeros = [kernel.writes for kernel in order if kernel.op.kind is Kind.BROADCAST]
    assert sorted(zeros) == sorted([(first, second), (other,)])
    place = {write: at for at, kernel in enumerate(order) for write in kernel.writes if kernel.op.kind is Kind.LOOP}
    assert all(order.index(k) < place[k.writes[0]] for k in order if k.op.kind is Kind.BROADCAST)


def with_counted_rate(of_one, counted=True):
    """Two layers; the updates read how many there were so far, that of a bias of one element among them."""
    step = Step()
    first, second = step.weight("first", N, N), step.weight("second", N, N)
    bias = step.weight("bias", *((1,) if of_one else (N,)))
    counter = step.weight("iteration", role=Role.SLOT, dtype="int32")
    x = step.input(B, N)
    h = step.dot(x, first, (B, N), B, N, N)
    y = step.dot(h, second, (B, N), B, N, N)
    step.phase = Phase.BACKWARD
    d_bias = step.op(Kind.REDUCE, (y,), (1,) if of_one else (N,))
    d_second = step.dot(h, y, (N, N), N, B, N)
    d_h = step.dot(y, second, (B, N), B, N, N)
    d_first = step.dot(x, d_h, (N, N), N, B, N)
    step.phase = Phase.UPDATE
    names = {h: "h", y: "y", d_bias: "d_bias", d_second: "d_second", d_h: "d_h", d_first: "d_first"}
    for name, weight, gradient in (("first", first, d_first), ("second", second, d_second), ("bias", bias, d_bias)):
        shape = [size.fixed for size in step.tensors[weight].shape]
        reads = (weight, gradient, counter) if counted else (weight, gradient)
        new = step.op(Kind.ELEMENTWISE, reads, shape, primitive="sub")
        step.new_value(weight, new)
        names[new] = f"new_{name}"
    return step.workload(), names


@pytest.mark.parametrize(
    ("of_one", "counted", "waits"), [(True, True, True), (False, True, False), (True, False, False)]
)
def test_the_kernel_that_updates_a_variable_of_one_element_works_the_rate_out_for_all(of_one, counted, waits):
    workload, names = with_counted_rate(of_one, counted)
    for order in of(workload)[1:]:
        placed = named(order, names)
        assert (placed.index("new_bias") < placed.index("new_first")) is waits


def test_no_order_but_these_three_is_tried():
    workload, _ = two_layers()
    assert len(of(workload)) == 3


def test_where_loss_scaling_chooses_gradients_come_before_the_flag_that_they_are_finite():
    """The flag asks for the last layer's gradient first, the choice for the first layer's."""
    step = Step()
    first, second = step.weight("first", N, N), step.weight("second", N, N)
    x = step.input(B, N)
    h = step.dot(x, first, (B, N), B, N, N)
    y = step.dot(h, second, (B, N), B, N, N)
    step.phase = Phase.BACKWARD
    d_second = step.dot(h, y, (N, N), N, B, N)
    d_h = step.dot(y, second, (B, N), B, N, N)
    d_first = step.dot(x, d_h, (N, N), N, B, N)
    step.phase = Phase.UPDATE
    finite = [step.op(Kind.REDUCE, (one,), (), dtype="bool", primitive="reduce_and") for one in (d_second, d_first)]
    flag = step.op(Kind.SORT, finite, (), dtype="bool")
    new = [step.tensor(N, N), step.tensor(N, N)]
    step.ops.append(Op(Kind.BRANCH, "cond", (flag, d_first, d_second), tuple(new), phase=step.phase))
    for weight, result in zip((first, second), new, strict=True):
        step.new_value(weight, result)
    names = {h: "h", y: "y", d_second: "d_second", d_h: "d_h", d_first: "d_first", new[0]: "new", flag: "flag"}
    names |= {finite[0]: "second is finite", finite[1]: "first is finite"}
    order = named(of(step.workload())[2], names)
    assert order[:5] == ["h", "y", "d_h", "d_first", "d_second"]


@pytest.mark.parametrize(("readers", "first"), [(1, "left"), (3, "right")])
def test_depth_first_takes_up_first_what_reads_state_that_others_read_too(readers, first):
    step = Step()
    weight = step.weight("weight", N, N)
    left = step.op(Kind.SORT, (step.input(B, N),), (B, N))
    right = step.op(Kind.SORT, (weight,), (B, N))
    end = step.op(Kind.SORT, (left, right), (B, N))
    others = [step.op(Kind.SORT, (weight,), (B,)) for _ in range(readers - 1)]
    order = of(step.workload(end, *others))[1]
    made = [kernel.writes[0] for kernel in order]
    assert made.index(left if first == "left" else right) < made.index(right if first == "left" else left)
