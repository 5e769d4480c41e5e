"""Copies into the layouts that convolutions want."""

from cost_models.workload.workload import RELAYOUT, Kind, Tensor
from cost_models.xla.passes.pipeline import lower
from cost_models.xla.profiles.choice import compiler_profile
from tests.builders.workloads import B, Step

GPU, TPU, CPU = compiler_profile("gpu"), compiler_profile("tpu"), compiler_profile("cpu")
SIDE, POOLED, C = 8, 4, 16


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
    assert all(op.primitive != RELAYOUT for op in lower(step.workload(wide, tokens), GPU).ops)
