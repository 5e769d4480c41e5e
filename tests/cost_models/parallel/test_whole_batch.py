"""Calls that XLA cannot split: every device computes the LSTM of the rows of all devices."""

from cost_models.config import Batch, Mesh, TrainConfig
from cost_models.memory import largest, memory
from cost_models.parallel.collectives import all_gather
from cost_models.parallel.whole_batch import gathered_bytes, on_whole_batch
from cost_models.time.step import device_time, step_time
from cost_models.workload.lstm import Lstm, buffers_of
from cost_models.workload.workload import Kind, walk
from tests.builders.workloads import cluster, dense, recurrent

B, T, N, H, DEVICES = 16, 20, 64, 128, 4
ONE, ALL = Lstm(B, T, N, H), Lstm(DEVICES * B, T, N, H)
STEP = recurrent(T, N, H)
GPUS = cluster("gpu", DEVICES)


def split(devices):
    return TrainConfig(Batch(B, devices), mesh=Mesh(devices))


def lstms(workload):
    return [op for op in walk(workload.ops) if op.kind is Kind.LSTM]


def test_one_device_and_other_steps_stay_as_they_are():
    assert on_whole_batch(STEP, 1) == STEP
    other = dense(N, H)
    assert on_whole_batch(other, DEVICES) == other


def test_both_passes_are_of_the_rows_of_all_devices():
    whole = on_whole_batch(STEP, DEVICES)
    forward, backward = lstms(whole)
    assert (forward.flops.at(B), backward.flops.at(B)) == (ALL.forward_flops, ALL.backward_flops)
    assert tuple(size.at(B) for size in forward.gemm) == ALL.step_product
    sizes = [whole.sizes[end].at(B) for end in buffers_of(forward)]
    assert sizes == [4 * ALL.reserve_bytes, 4 * ALL.workspace_bytes]
    assert whole.model_flops.at(B) == ALL.forward_flops + ALL.backward_flops  # of the calls; a step counts its own


def test_inputs_and_gradients_of_outputs_are_gathered_once():
    """The input of the forward pass is that of the backward pass; the gradient of the outputs is of their shape."""
    assert gathered_bytes(on_whole_batch(STEP, DEVICES), B) == (4 * DEVICES * B * T * N, 4 * DEVICES * B * T * H)


def test_memory_is_that_of_the_buffers_of_all_rows():
    alone, together = (memory(STEP, split(devices), GPUS) for devices in (1, DEVICES))
    assert together.inputs == alone.inputs
    assert together.workspace + together.activations > DEVICES * 4 * ONE.reserve_bytes
    assert largest(STEP, split(DEVICES), GPUS)[0].bytes == 4 * ALL.reserve_bytes


def test_time_has_the_work_of_all_rows_and_the_gathering():
    one, more = (device_time(STEP, split(devices), GPUS) for devices in (1, DEVICES))
    assert more.model_flops == one.model_flops
    assert one.forward.communication == 0
    sent = (4 * DEVICES * B * T * width for width in (N, H))
    seconds = sum(all_gather(size, GPUS, DEVICES).seconds for size in sent)
    assert more.forward.communication == seconds
    assert step_time(STEP, split(DEVICES), GPUS).communication_seconds >= seconds
