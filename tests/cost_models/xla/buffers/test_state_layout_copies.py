"""State that v6e copies into another layout, as its text shows it (jax 0.10.2) for a first layer of 1,024 x 4,096."""

import pytest

from cost_models.config import Batch, TrainConfig
from cost_models.memory import memory
from cost_models.workload.workload import Kind, Phase, Role
from cost_models.xla.buffers.liveness import Updates, schedule
from cost_models.xla.buffers.state_layout_copies import turned
from cost_models.xla.fusion.fusion import kernels_of
from cost_models.xla.profiles.choice import compiler_profile
from tests.builders.workloads import B, Step, cluster

V5E, V6E = (compiler_profile("tpu", chip=f"tpu-{name}") for name in ("v5e", "v6e"))


def layer(inputs, outputs, *, computed=False, dtype="float32"):
    """y = x w; w and a slot of its shape are updated from dw = x' dy, where x is in memory or computed there."""
    step = Step()
    w = step.weight("w", inputs, outputs)
    slot = step.weight("slot", inputs, outputs, role=Role.SLOT)
    x = step.input(B, 8, inputs)
    if computed:
        x = step.op(Kind.ELEMENTWISE, (x,), (B, 8, inputs), primitive="exp")
    if dtype != "float32":
        x = step.op(Kind.ELEMENTWISE, (x,), (B, 8, inputs), dtype=dtype, primitive="convert_element_type")
    end = step.op(Kind.DOT, (x, w), (B, 8, outputs))
    step.phase = Phase.BACKWARD
    dy = step.op(Kind.SORT, (step.input(B, 8, outputs),), (B, 8, outputs))
    dw = step.op(Kind.DOT, (x, dy), (inputs, outputs))
    step.phase = Phase.UPDATE
    for state in (w, slot):
        step.new_value(state, step.op(Kind.ELEMENTWISE, (state, dw), (inputs, outputs), primitive="sub"))
    return step.workload(end), {w, slot}


def copied(workload, target=V6E):
    outputs = frozenset(v.result for v in workload.variables) | frozenset(workload.outputs)
    kernels = kernels_of(workload, workload.ops, outputs, target, workload.local_batch)
    return set(turned(workload, kernels))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_kernel_with_more_outputs_than_inputs_and_its_slots_are_copied(dtype):
    workload, states = layer(1024, 4096, dtype=dtype)
    assert copied(workload) == states


@pytest.mark.parametrize(
    ("inputs", "outputs", "computed"), [(4096, 1024, False), (4096, 4096, False), (1024, 4096, True)]
)
def test_others_are_not(inputs, outputs, computed):
    """Of fewer outputs, of as many, and where the layer's input is computed in the product."""
    workload, _ = layer(inputs, outputs, computed=computed)
    assert not copied(workload)


def test_copies_wait_from_the_start_for_the_update_on_v6e_alone():
    """They are larger than the chip here."""
    workload, states = layer(8192, 16384)
    v6e, v5e = (schedule(workload, target, Updates.AT_ONCE).live(8) for target in (V6E, V5E))
    assert v6e[0] - v5e[0] == v6e.max() - v5e.max() == len(states) * 4 * 8192 * 16384


def test_they_are_copies_of_weights_in_the_breakdown():
    workload, states = layer(8192, 16384)
    on_v6e = memory(workload, TrainConfig(Batch(8)), cluster("tpu", name="tpu-v6e"))
    assert on_v6e.weight_copies == len(states) * 4 * 8192 * 16384
