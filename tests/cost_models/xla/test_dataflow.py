"""Who makes and who reads each tensor, views and fences resolved."""

from dataclasses import replace

import pytest

from cost_models.workload.affine import Affine
from cost_models.workload.workload import UNEVEN_PAD, Kind, Op
from cost_models.xla.dataflow import (
    Graph,
    ancestors,
    before_conversions,
    chain_of_names,
    connected_groups,
    is_narrow,
    is_part_of_convolution,
    members,
)
from cost_models.xla.profiles.choice import compiler_profile
from tests.builders.workloads import B, Step

GPU, TPU = compiler_profile("gpu"), compiler_profile("tpu")
EAGER = compiler_profile("gpu", jit_compile=False)
N = 16


def graph_of(step, *outputs, target=GPU):
    return Graph(step.ops, frozenset(outputs), target)


def test_views_of_views_name_the_tensor_that_is_there():
    step = Step()
    x = step.input(B, N)
    y = step.op(Kind.ELEMENTWISE, (x,), (B, N))
    flat = step.op(Kind.VIEW, (y,), ((B, N),))
    again = step.op(Kind.VIEW, (flat,), (B, N))
    end = step.op(Kind.ELEMENTWISE, (again,), (B, N))
    graph = graph_of(step, again, end)
    assert [graph.of(tensor) for tensor in (x, y, flat, again, end)] == [x, y, y, y, end]
    assert graph.producer == {y: 0, end: 3}
    assert graph.readers == {x: [0], y: [3]}
    assert [graph.is_view(index) for index in range(4)] == [False, True, True, False]
    assert graph.outputs == {y, end}


def test_a_kernel_that_reads_a_tensor_twice_is_one_reader():
    step = Step()
    x = step.input(B, N)
    view = step.op(Kind.VIEW, (x,), ((B, N),))
    step.op(Kind.ELEMENTWISE, (x, view, x), (B, N))
    assert graph_of(step).readers == {x: [1]}


def test_what_goes_through_a_barrier_keeps_its_name_and_is_fenced():
    step = Step()
    x, y = (step.op(Kind.ELEMENTWISE, (step.input(B, N),), (B, N)) for _ in range(2))
    behind = tuple(step.tensor(B, N) for _ in range(2))
    step.ops.append(Op(Kind.BARRIER, "optimization_barrier", (x, y), behind))
    step.op(Kind.ELEMENTWISE, behind, (B, N))
    graph = graph_of(step)
    assert graph.fenced == {x, y}
    assert (graph.of(behind[0]), graph.of(behind[1])) == (x, y)
    assert graph.readers[x] == graph.readers[y] == [3]


def test_a_view_of_nothing_is_made_by_it():
    step = Step()
    made = step.op(Kind.VIEW, (), (N,))
    assert graph_of(step).producer == {made: 0}


@pytest.mark.parametrize("target", [GPU, EAGER])
def test_transposes_are_views_where_layouts_make_them_free(target):
    step = Step()
    x = step.input(N, B)
    turned = step.op(Kind.MOVE, (x,), (B, N), primitive="transpose")
    assert graph_of(step, target=target).of(turned) == (x if "transpose" in target.free_moves else turned)


@pytest.mark.parametrize(("reader", "absorbed"), [(Kind.CONV, True), (Kind.POOL, True), (Kind.ELEMENTWISE, False)])
def test_even_padding_is_part_of_the_convolutions_and_poolings_that_read_it(reader, absorbed):
    step = Step()
    x = step.input(B, N)
    padded = step.op(Kind.MOVE, (x,), (B, N + 2), primitive="pad")
    step.op(reader, (padded,), (B, N))
    graph = graph_of(step)
    assert (graph.of(padded) == x) is absorbed
    assert graph_of(step, target=EAGER).of(padded) == padded


def test_padding_that_something_else_reads_too_is_written():
    step = Step()
    padded = step.op(Kind.MOVE, (step.input(B, N),), (B, N + 2), primitive="pad")
    step.op(Kind.CONV, (padded,), (B, N))
    step.op(Kind.ELEMENTWISE, (padded,), (B, N + 2))
    assert graph_of(step).of(padded) == padded


def test_uneven_padding_is_part_of_a_convolution_where_its_library_pads_so():
    step = Step()
    x = step.input(B, N)
    padded = step.op(Kind.MOVE, (x,), (B, N + 1), primitive=UNEVEN_PAD)
    step.op(Kind.CONV, (padded,), (B, N))
    assert graph_of(step, target=TPU).of(padded) == x
    assert graph_of(step, target=GPU).of(padded) == padded
    assert graph_of(step, target=replace(TPU, free_moves=TPU.free_moves - {UNEVEN_PAD})).of(padded) == padded


def test_a_loops_stack_is_transposed_where_it_is_read_in_another_shape():
    step = Step()
    x = step.input(B, N)
    stacked, inside = step.tensor(10, B, N), step.tensor(B, N)
    body = (Op(Kind.ELEMENTWISE, "tanh", (x,), (inside,)),)
    step.ops.append(Op(Kind.LOOP, "scan", (x,), (stacked,), repeat=10, body=body))
    turned = step.op(Kind.VIEW, (stacked,), (B, 10, N))
    other = step.op(Kind.ELEMENTWISE, (x,), (B, 10, N))
    product = Op(Kind.DOT, "dot_general", (other, turned), (step.tensor(N, N),), gemm=(Affine(1),) * 4)
    straight = Op(Kind.DOT, "dot_general", (other, stacked), (step.tensor(N, N),), gemm=(Affine(1),) * 4)
    step.ops += [product, straight]
    workload, graph = step.workload(), graph_of(step)
    assert graph.reads_transposed_stack(product, other, workload)
    assert not graph.reads_transposed_stack(product, stacked, workload)  # asked about the stack itself
    assert not graph.reads_transposed_stack(straight, other, workload)


def test_reads_name_each_tensor_once_and_resolve_views():
    step = Step()
    x = step.input(B, N)
    view = step.op(Kind.VIEW, (x,), ((B, N),))
    step.op(Kind.ELEMENTWISE, (view, x), (B, N))
    assert graph_of(step).reads == [(x,), (x,)]


def test_the_maker_of_a_view_is_that_of_its_source():
    step = Step()
    spread = step.op(Kind.BROADCAST, (step.input(N),), (B, N))
    view = step.op(Kind.VIEW, (spread,), ((B, N),))
    half = step.op(Kind.ELEMENTWISE, (view,), (B, N), dtype="bfloat16", primitive="convert_element_type")
    graph = graph_of(step)
    assert graph.maker(view) is step.ops[0]
    assert graph.maker(step.input(N)) is None
    assert graph.is_broadcast(view)
    assert not graph.is_broadcast(half)
    assert before_conversions(graph, half) is step.ops[0]


def test_ancestors_are_all_that_a_node_depends_on():
    """2 reads of 0 and 1 by way of 1; 3 stands alone."""
    found = ancestors([((), (10,)), ((10,), (11,)), ((11,), (12,)), ((), (13,))])
    assert [list(members(mask)) for mask in found] == [[], [0], [0, 1], []]
    assert list(members(0b1011)) == [0, 1, 3]


def test_links_join_items_to_groups():
    first, second, third, alone, fifth = connected_groups(5, [(0, 1), (4, 2), (1, 4)])
    assert first == second == third == fifth != alone


def test_names_follow_each_other_back_to_the_first():
    assert list(chain_of_names(3, {3: 2, 2: 1})) == [3, 2, 1]


def test_a_convolutions_own_padding_has_no_value_to_pad_with():
    step = Step()
    x = step.input(B, N)
    step.op(Kind.MOVE, (x,), (B, N + 2), primitive="pad")
    step.op(Kind.MOVE, (x, step.input(1)), (B, N + 2), primitive="pad")
    assert [is_part_of_convolution(op) for op in step.ops] == [True, False]


def test_a_step_is_narrow_if_a_tensor_is():
    step = Step()
    x = step.input(B, N)
    assert not is_narrow(step.workload())
    step.op(Kind.ELEMENTWISE, (x,), (B, N), dtype="bfloat16")
    assert is_narrow(step.workload())
