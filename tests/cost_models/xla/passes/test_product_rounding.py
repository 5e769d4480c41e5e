"""Operands of products alone are kept in the dtype to which products round them."""

from cost_models.workload.workload import Kind, Op
from cost_models.xla.passes.pipeline import lower
from cost_models.xla.profiles.choice import compiler_profile
from tests.builders.workloads import B, Step

GPU, TPU, CPU = compiler_profile("gpu"), compiler_profile("tpu"), compiler_profile("cpu")
SIDE, POOLED, C = 8, 4, 16


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
