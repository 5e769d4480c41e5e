"""Kernels, and the updates of one variable as one launch."""

from cost_models.workload.workload import Kind, Phase
from cost_models.xla.fusion.kernel import in_update
from cost_models.xla.fusion.priority_fusion import priority_fusion
from cost_models.xla.profiles.choice import compiler_profile
from tests.builders.workloads import Step

X = 1024
GPU, EAGER = compiler_profile("gpu"), compiler_profile("gpu", jit_compile=False)


def kernels(step, *outputs, target=GPU):
    workload = step.workload(*outputs, batch=64)
    return priority_fusion(workload, workload.ops, frozenset(outputs), target, 64)


def adam(step, n):
    """Moments and weight from one gradient: three results of one shape."""
    w, m, v, g = (step.weight(name, n) for name in ("w", "m", "v", "g"))
    step.phase = Phase.UPDATE
    new_m, new_v = (step.op(Kind.ELEMENTWISE, (state, g), (n,), primitive="add") for state in (m, v))
    new_w = step.op(Kind.ELEMENTWISE, (w, new_m, new_v), (n,), primitive="sub")
    return (w, m, v, g), (new_m, new_v, new_w)


def test_the_updates_of_one_variable_are_one_kernel_that_reads_the_gradient_once():
    step = Step()
    states, results = adam(step, X)
    (kernel,) = kernels(step, *results)
    assert set(kernel.reads) == set(states)
    assert kernel.writes == results
    assert len(kernels(step, *results, target=EAGER)) == 3


def test_updates_of_two_variables_are_two_kernels():
    step = Step()
    results = adam(step, X)[1] + adam(step, X)[1]
    assert len(kernels(step, *results)) == 2


def test_an_update_that_waits_for_a_sum_over_the_others_does_not_join_them():
    """As in LAMB: the weight needs the norm of what the moments give."""
    step = Step()
    w, g = step.weight("w", X), step.weight("g", X)
    step.phase = Phase.UPDATE
    new_m = step.op(Kind.ELEMENTWISE, (step.weight("m", X), g), (X,))
    norm = step.op(Kind.REDUCE, (new_m,), ())
    new_w = step.op(Kind.ELEMENTWISE, (w, new_m, norm), (X,))
    assert [kernel.writes for kernel in kernels(step, new_m, new_w)] == [(new_m,), (norm,), (new_w,)]


def test_kernels_of_the_update_phase_are_in_the_update():
    step = Step()
    _, results = adam(step, X)
    assert all(in_update(kernel) for kernel in kernels(step, *results))
