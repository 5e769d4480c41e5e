"""The gradient of max-pooling: positions, zeros and a scatter."""

from dataclasses import replace

from cost_models.workload.affine import Affine
from cost_models.workload.workload import Kind, Phase
from cost_models.xla.passes.pipeline import lower
from cost_models.xla.profiles.choice import compiler_profile
from tests.builders.workloads import B, Step, dense

GPU, TPU, CPU = compiler_profile("gpu"), compiler_profile("tpu"), compiler_profile("cpu")
SIDE, POOLED, C = 8, 4, 16


def pooling(*, relu=True, added=False):
    """ReLU (or not), max-pooling, and the gradient of the pooling; that gradient may be added to another one."""
    step = Step()
    x = step.input(B, SIDE, SIDE, C)
    operand = step.op(Kind.ELEMENTWISE, (x,), (B, SIDE, SIDE, C), primitive="max" if relu else "tanh")
    pooled = step.op(Kind.POOL, (operand,), (B, POOLED, POOLED, C))
    step.phase = Phase.BACKWARD
    incoming = step.op(Kind.ELEMENTWISE, (pooled,), (B, POOLED, POOLED, C), primitive="neg")
    shape = (B, SIDE, SIDE, C)
    end = step.op(Kind.POOL_GRADIENT, (incoming, operand), shape, primitive="select_and_scatter_add")
    if added:
        end = step.op(Kind.ELEMENTWISE, (end, x), shape, primitive="add_any")
    return step.workload(end)


def primitives(workload):
    return [op.primitive for op in workload.ops]


def test_on_gpus_the_gradient_of_pooling_is_positions_and_a_scatter_into_a_copy_of_shared_zeros():
    lowered = lower(pooling(), GPU)
    assert primitives(lowered) == [
        "broadcast_in_dim",
        "copy",
        "max",
        "pool",
        "neg",
        "reduce_window",
        "scatter_of_pooling",
    ]
    zeros, copy, relu, _, _, positions, scatter = lowered.ops
    assert relu.reads[-1] == copy.reads[0] == zeros.writes[0]  # the ReLU compares with the same zeros
    assert scatter.reads == (copy.writes[0], scatter.reads[1], *positions.writes)
    assert scatter.writes == pooling().ops[-1].writes
    indices = [lowered.tensors[write] for write in positions.writes[1:]]
    assert [index.dtype for index in indices] == ["int32"] * 4  # one a dimension
    assert {index.elements for index in indices} == {Affine(0, POOLED * POOLED * C)}


def test_a_leaky_relu_compares_with_the_zeros_too_which_are_copied_when_they_are_scattered_into():
    step, shape = Step(), (B, SIDE, SIDE, C)
    x = step.input(*shape)
    positive = step.op(Kind.ELEMENTWISE, (x,), shape, primitive="ge", dtype="bool")
    scaled = step.op(Kind.ELEMENTWISE, (x,), shape, primitive="mul")
    leaky = step.op(Kind.ELEMENTWISE, (positive, scaled, x), shape, primitive="select_n")
    pooled = step.op(Kind.POOL, (leaky,), (B, POOLED, POOLED, C))
    step.phase = Phase.BACKWARD
    end = step.op(Kind.POOL_GRADIENT, (pooled, leaky), shape, primitive="select_and_scatter_add")
    lowered = lower(step.workload(end), GPU)
    names = primitives(lowered)
    assert names[:2] == ["broadcast_in_dim", "ge"]
    zeros, compared = lowered.ops[:2]
    copy = lowered.ops[names.index("copy")]
    assert compared.reads[-1] == copy.reads[0] == zeros.writes[0]
    assert names.index("pool") < names.index("copy") < names.index("scatter_of_pooling")


def test_without_a_relu_of_that_shape_the_scatter_takes_the_zeros_themselves():
    lowered = lower(pooling(relu=False), GPU)
    assert primitives(lowered) == ["tanh", "pool", "neg", "broadcast_in_dim", "reduce_window", "scatter_of_pooling"]
    assert lowered.ops[-1].reads[0] == lowered.ops[3].writes[0]


def test_a_gradient_that_is_only_added_needs_no_zeros():
    lowered = lower(pooling(added=True), GPU)
    assert primitives(lowered) == ["max", "pool", "neg", "reduce_window", "scatter_of_pooling", "add_any"]


def test_cpus_write_the_counting_numbers_out():
    lowered = lower(pooling(), CPU)
    counting = [op for op in lowered.ops if op.primitive == "iota"]
    assert len(counting) == 4
    assert {lowered.tensors[op.writes[0]].elements for op in counting} == {Affine(0, SIDE * SIDE * C)}


def test_variables_keep_their_tensors():
    workload = pooling()
    step_with_state = replace(workload, variables=dense(4, 4).variables)
    assert lower(step_with_state, GPU).variables == step_with_state.variables
