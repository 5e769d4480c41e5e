"""Orders of kernels: what moves, and what may not."""

from cost_models.workload.workload import Kind, Phase
from cost_models.xla.fusion.priority_fusion import priority_fusion
from cost_models.xla.profiles.choice import compiler_profile
from cost_models.xla.scheduling.orders import breadth_first_order, greedy_order, program_order
from tests.builders.workloads import B, Step, named, two_layers

GPU = compiler_profile("gpu")
N = 256


def made():
    workload, names = two_layers()
    outputs = frozenset(v.result for v in workload.variables)
    return workload, names, priority_fusion(workload, workload.ops, outputs, GPU, workload.local_batch)


def test_together_is_as_written():
    workload, names, kernels = made()
    order = named(program_order(workload, kernels, together=True), names)
    assert order == ["h", "y", "d_second", "d_h", "d_first", "new_first", "new_second"]


def test_at_once_each_update_follows_its_gradient_but_not_before_the_weight_is_read_for_the_last_time():
    workload, names, kernels = made()
    order = named(program_order(workload, kernels, together=False), names)
    assert order == ["h", "y", "d_second", "d_h", "new_second", "d_first", "new_first"]


def test_greedy_keeps_every_dependency_and_runs_everything_once():
    workload, names, kernels = made()
    order = greedy_order(workload, kernels, workload.local_batch)
    assert sorted(named(order, names)) == sorted(names.values())
    seen = {v.tensor for v in workload.variables} | set(workload.inputs)
    for kernel in order:
        assert seen.issuperset(kernel.reads)
        seen.update(kernel.writes)
    places = named(order, names)
    assert places.index("new_second") > places.index("d_h")  # d_h reads the old weight


def test_greedy_makes_a_large_gradient_late_when_that_keeps_less_alive():
    """At a batch of one, activations are rows and gradients N times as large: gradients wait for their updates."""
    workload, names = two_layers()
    outputs = frozenset(v.result for v in workload.variables)
    kernels = priority_fusion(workload, workload.ops, outputs, GPU, 1)
    order = named(greedy_order(workload, kernels, 1), names)
    assert order.index("new_second") == order.index("d_second") + 1
    assert order.index("d_h") < order.index("d_second")


def test_constants_are_made_at_once():
    step = Step()
    x = step.input(B, N)
    h = step.op(Kind.REDUCE, (x,), (B,))
    zeros = step.op(Kind.BROADCAST, (), (B, N), primitive="broadcast_in_dim")
    end = step.op(Kind.SCATTER, (zeros, h), (B, N), primitive="scatter")
    workload = step.workload(end)
    kernels = priority_fusion(workload, workload.ops, frozenset({end}), GPU, 8)
    assert [k.op.primitive for k in greedy_order(workload, kernels, 8)] == ["broadcast_in_dim", "reduce", "scatter"]


def test_breadth_first_runs_what_is_ready_first_and_gradients_of_weights_behind_their_like():
    workload, names, kernels = made()
    order = named(breadth_first_order(workload, kernels), names)
    assert order == ["h", "y", "d_h", "d_second", "d_first", "new_second", "new_first"]


def test_breadth_first_starts_with_what_waits_for_nothing():
    step = Step()
    w, x = step.weight("w", N, N), step.input(B, N)
    behind = step.op(Kind.SORT, (step.op(Kind.SORT, (x,), (B, N)),), (B, N))
    early = step.op(Kind.SORT, (w,), (N, N))
    workload = step.workload(behind, early)
    kernels = priority_fusion(workload, workload.ops, frozenset({behind, early}), GPU, 8)
    assert [kernel.writes[0] for kernel in breadth_first_order(workload, kernels)] == [early, behind - 1, behind]


def test_breadth_first_runs_gradients_of_values_before_what_the_forward_pass_has_left():
    step = Step()
    x = step.input(B, N)
    shared = step.op(Kind.SORT, (x,), (B, N))
    forward = step.op(Kind.REDUCE, (shared,), (B,))
    step.phase = Phase.BACKWARD
    moved = step.op(Kind.MOVE, (shared,), (B, N), primitive="rev")
    backward = step.op(Kind.ELEMENTWISE, (shared,), (B, N), primitive="exp")
    ends = frozenset({forward, moved, backward})
    workload = step.workload(*ends)
    order = breadth_first_order(workload, priority_fusion(workload, workload.ops, ends, GPU, 8))
    assert [kernel.writes[0] for kernel in order] == [shared, backward, forward, moved]
