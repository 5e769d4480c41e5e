"""Stacks of loops."""

import pytest

from cost_models.workload.workload import Kind, Op, Phase
from cost_models.xla.buffers.liveness import schedule
from cost_models.xla.buffers.schedule import Updates
from cost_models.xla.profiles.choice import compiler_profile
from tests.builders.workloads import B, Step

CPU, TPU = compiler_profile("cpu"), compiler_profile("tpu")
N = 256


@pytest.mark.parametrize("phase", [Phase.FORWARD, Phase.BACKWARD])
def test_on_cpus_the_stacks_of_loops_are_allocated_when_the_program_starts(phase):
    """Alive at the first kernel already: 10 x B x N stacked, beside the first result."""
    step = Step()
    step.phase = phase
    first = step.op(Kind.SORT, (step.input(B, N),), (B, N))
    stacked, inside = step.tensor(10, B, N), step.tensor(B, N)
    body = (
        Op(Kind.SORT, "sort", (first,), (inside,)),
        Op(Kind.SCATTER, "dynamic_update_slice", (inside,), (stacked,)),
    )
    step.ops.append(Op(Kind.LOOP, "scan", (first,), (stacked,), repeat=10, body=body, phase=phase))
    workload = step.workload(step.op(Kind.SORT, (stacked,), (10, B, N)))
    assert schedule(workload, CPU, Updates.AT_ONCE).live(8)[0] == 4 * 8 * N * (10 + 1)
    assert schedule(workload, CPU.without("early-loop-stacks"), Updates.AT_ONCE).live(8)[0] == 4 * 8 * N
    assert schedule(workload, TPU, Updates.TOGETHER).live(8)[0] <= 4 * 8 * N
