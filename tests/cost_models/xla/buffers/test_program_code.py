"""The code of a few kernels, against the formula by hand."""

import pytest

from cost_models.workload.workload import Kind
from cost_models.xla.buffers.liveness import schedule
from cost_models.xla.buffers.program_code import program_code
from cost_models.xla.buffers.schedule import Updates
from cost_models.xla.profiles.choice import compiler_profile
from tests.builders.workloads import B, Step

N = 1024


def code_bytes(workload, batch):
    plan = schedule(workload, compiler_profile("tpu"), Updates.AT_ONCE, batch)
    return program_code(plan.kernels, batch)


def test_kernels_without_products_have_next_to_no_code():
    step = Step()
    workload = step.workload(step.op(Kind.REDUCE, (step.input(B, 4, N),), (B, N)))
    assert code_bytes(workload, 8) == code_bytes(workload, 1024) == 360_000


@pytest.mark.parametrize("batch", [32, 1024])
def test_a_product_has_as_much_code_as_its_flops_ask_for(batch):
    step = Step()
    weight = step.weight("w", N, N)
    workload = step.workload(step.dot(step.input(B, N), weight, (B, N), B, N, N))
    assert code_bytes(workload, batch) == pytest.approx(360_000 + 0.89e6 * (2 * batch * N * N / 1e11) ** 0.2, abs=1)


def test_a_products_code_has_a_limit():
    step = Step()
    weight = step.weight("w", N, N)
    workload = step.workload(step.dot(step.input(B, N), weight, (B, N), B, N, N))
    assert code_bytes(workload, 2**16) == code_bytes(workload, 2**18) == 1_250_000
