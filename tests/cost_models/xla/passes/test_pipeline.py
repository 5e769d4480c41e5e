"""What a compiler replaces before it fuses."""

from dataclasses import replace

import pytest

from cost_models.workload.affine import Affine
from cost_models.workload.workload import PADDED_COPY, RELAYOUT, Kind, Op, Phase, Tensor
from cost_models.xla.passes.pipeline import lower
from cost_models.xla.target import target_of
from tests.builders.workloads import B, Step, dense

GPU, TPU, CPU = target_of("gpu"), target_of("tpu"), target_of("cpu")
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


def test_a_target_that_replaces_nothing_gets_the_workload_itself():
    workload = dense(32, 16)
    assert lower(workload, GPU) is workload
    assert lower(pooling(), TPU).ops == pooling().ops


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


def test_tpus_keep_in_bfloat16_what_only_products_read():
    step = Step()
    x, w = step.input(B, 32), step.weight("w", 32, 32)
    only = step.op(Kind.ELEMENTWISE, (x,), (B, 32), primitive="tanh")
    view = step.op(Kind.VIEW, (only,), (B, 4, 8), primitive="reshape")
    both = step.op(Kind.ELEMENTWISE, (x,), (B, 32), primitive="exp")
    y = step.dot(view, w, (B, 32), B, 32, 32)
    z = step.dot(both, w, (B, 32), B, 32, 32)
    end = step.op(Kind.ELEMENTWISE, (both, y, z), (B, 32), primitive="add")
    step.op(Kind.REDUCE, (only,), (), primitive="reduce_sum")
    lowered = lower(step.workload(end), TPU)
    dtypes = {
        name: lowered.tensors[number].dtype for name, number in {"only": only, "view": view, "both": both}.items()
    }
    assert dtypes == {"only": "bfloat16", "view": "bfloat16", "both": "float32"}
    assert {lowered.tensors[number].dtype for number in (x, w, end)} == {"float32"}


def test_what_only_products_in_a_loop_read_a_part_of_is_kept_as_they_round_it():
    step = Step()
    w, small = step.weight("w", 32, 32), step.input(B, 32)
    stacks = [step.op(Kind.MOVE, (small,), (20, B, 32)) for _ in range(2)]
    parts = [step.op(Kind.MOVE, (stack,), (B, 32), primitive="dynamic_slice") for stack in stacks]
    made = step.dot(parts[0], w, (B, 32), B, 32, 32)
    made = step.op(Kind.ELEMENTWISE, (made, parts[1]), (B, 32), primitive="add")
    body = tuple(step.ops[2:])
    loop = Op(Kind.LOOP, "scan", (w, *stacks), (step.tensor(B, 32),), repeat=20, body=body, results=(made,))
    step.ops = [*step.ops[:2], loop]
    lowered = lower(step.workload(*loop.writes), TPU)
    assert [lowered.tensors[end].dtype for end in (*stacks, *parts)] == ["bfloat16", "float32", "bfloat16", "float32"]


def test_weights_of_convolutions_are_copied_once_on_gpus_and_the_gradient_reads_the_copy():
    step = Step()
    x, kernel = step.input(B, 8, 8, 4), step.weight("kernel", 3, 3, 4, 4)
    y = step.op(Kind.CONV, (x, kernel), (B, 8, 8, 4), primitive="conv_general_dilated")
    turned = step.op(Kind.MOVE, (kernel,), (3, 3, 4, 4), primitive="rev")
    end = step.op(Kind.CONV, (y, turned), (B, 8, 8, 4), primitive="conv_general_dilated")
    workload = step.workload(end)
    copy, forward, _, backward = lower(workload, GPU).ops
    assert (copy.kind, copy.reads) == (Kind.COPY, (kernel,))
    assert forward.reads == (x, copy.writes[0])
    assert backward.reads == (y, copy.writes[0])
    assert lower(workload, CPU).ops == workload.ops


@pytest.mark.parametrize(
    ("side", "window", "made", "padded"), [(32, 3, 16, 33), (32, 3, 15, 32), (32, 2, 16, 32), (48, 3, 23, 48)]
)
def test_cpus_pad_what_they_pool_first_where_windows_reach_beyond_it(side, window, made, padded):
    """`same` with a stride of 2 needs (16 - 1) 2 + 3 = 33 rows; without padding whole windows fit in."""
    step = Step()
    x = step.input(B, side, side, 4)
    pooled = step.op(Kind.POOL, (x,), (B, made, made, 4), primitive="reduce_window_max")
    step.phase = Phase.BACKWARD
    flops = Affine(0, 2 * made * made * 4 * window**2)
    end = step.op(Kind.POOL_GRADIENT, (pooled, x), (B, side, side, 4), flops=flops)
    lowered = lower(step.workload(end), CPU)
    (scatter,) = (op for op in lowered.ops if op.primitive == "scatter_of_pooling")
    assert [dim.fixed for dim in lowered.tensors[scatter.reads[0]].shape[1:]] == [padded, padded, 4]
    assert (PADDED_COPY in primitives(lowered)) is (padded != side)
    assert lowered.ops[-1].writes == (end,)


def test_images_are_copied_once_on_tpus_as_convolutions_round_them():
    step = Step()
    x, kernel = step.input(B, 8, 8, 4), step.weight("kernel", 3, 3, 4, 4)
    cast = step.op(Kind.VIEW, (x,), (B, 8, 8, 4), primitive="reshape")
    y = step.op(Kind.CONV, (cast, kernel), (B, 8, 8, 4), primitive="conv_general_dilated")
    padded = step.op(Kind.MOVE, (x,), (B, 10, 10, 4), primitive="pad")
    end = step.op(Kind.CONV, (padded, y), (3, 3, 4, 4), primitive="conv_general_dilated")
    lowered = lower(step.workload(end), TPU)
    _, copy, forward, _, backward = lowered.ops
    assert (copy.kind, copy.reads) == (Kind.COPY, (x,))
    assert lowered.tensors[copy.writes[0]] == Tensor("bfloat16", lowered.tensors[x].shape)
    assert forward.reads == (*copy.writes, kernel)
    assert backward.reads == (*copy.writes, y)


def test_variables_keep_their_tensors():
    workload = pooling()
    step_with_state = replace(workload, variables=dense(4, 4).variables)
    assert lower(step_with_state, GPU).variables == step_with_state.variables


def test_on_tpus_a_reshape_of_an_images_features_moves_them_as_they_are_converted_next():
    step = Step()
    image = step.op(Kind.CONV, (step.input(B, 8, 8, 3), step.weight("w", 3, 3, 3, 64)), (B, 8, 8, 64), dtype="bfloat16")
    groups = step.op(Kind.VIEW, (image,), (B, 8, 8, 16, 4), dtype="bfloat16", primitive="reshape")
    wide = step.op(Kind.ELEMENTWISE, (groups,), (B, 8, 8, 16, 4), primitive="convert_element_type")
    tokens = step.op(Kind.VIEW, (image,), (B, 64, 64), dtype="bfloat16", primitive="reshape")
    lowered = lower(step.workload(wide, tokens), TPU)
    made = {op.writes[0]: (op.kind, op.primitive) for op in lowered.ops}
    assert made[groups] == (Kind.MOVE, RELAYOUT)
    assert lowered.tensors[groups].dtype == "float32"
    assert made[tokens] == (Kind.VIEW, "reshape")  # every feature stays where it is
    assert RELAYOUT not in primitives(lower(step.workload(wide, tokens), GPU))


def test_on_cpus_a_gradient_of_pooling_is_scattered_into_what_it_is_added_to():
    step = Step()
    x, other = step.input(B, 32, 32, 4), step.input(B, 32, 32, 4)
    pooled = step.op(Kind.POOL, (x,), (B, 16, 16, 4), primitive="reduce_window_max")
    step.phase = Phase.BACKWARD
    flops = Affine(0, 2 * 16 * 16 * 4 * 2**2)
    gradient = step.op(Kind.POOL_GRADIENT, (pooled, x), (B, 32, 32, 4), flops=flops)
    total = step.op(Kind.ELEMENTWISE, (gradient, other), (B, 32, 32, 4), primitive="add_any")
    last = lower(step.workload(total), CPU).ops[-1]
    assert (last.primitive, last.reads[0], last.writes) == ("scatter_of_pooling", other, (total,))
