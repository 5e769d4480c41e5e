"""LSTMs of real layers, as Keras computes them on devices that are not here: cuDNN's call, or a loop."""

import importlib

import jax
import keras
import numpy as np
import pytest

from autoplan.worker.aot_compile import compile_train_step
from autoplan.worker.synthetic_data import synthetic_specs
from autoplan.worker.trace.target_platform import seen_as
from autoplan.worker.trace.train_step import build_for, resized_specs, state_of, stored_dtype
from cost_models.config import Batch, Mesh, TrainConfig
from cost_models.errors import WorkloadError
from cost_models.estimate import estimate
from cost_models.hardware.compile_targets import compiler_target
from cost_models.hardware.lookup import cluster
from cost_models.hardware.platform import HOST
from cost_models.hlo.reader import workload_of
from cost_models.memory import program_memory
from cost_models.parallel.whole_batch import on_whole_batch
from cost_models.workload.lstm import Lstm, buffers_of
from cost_models.workload.workload import Kind, Phase, walk
from tests.models.attending import A100, TPU, V100
from tests.models.recurrent import BATCH, INPUTS, LAYERS, LENGTH, UNITS, recurrent_model, traced

ONE = Lstm(BATCH, LENGTH, INPUTS, UNITS)


def lstms(workload):
    return [op for op in walk(workload.ops) if op.kind is Kind.LSTM]


def loops(workload):
    return [op for op in walk(workload.ops) if op.kind is Kind.LOOP]


def dims(workload, tensor):
    return tuple(round(dim.at(BATCH)) for dim in workload.tensors[tensor].shape)


@pytest.mark.parametrize("platform", [A100, V100])
def test_a_layer_is_one_call_of_cudnn_in_each_pass_on_gpus(platform):
    workload = traced(platform, LAYERS.LSTM(UNITS, name="memory"))
    forward, backward = lstms(workload)
    assert not loops(workload)
    assert (forward.primitive, backward.primitive) == ("lstm_forward", "lstm_backward")
    assert (forward.phase, backward.phase) == (Phase.FORWARD, Phase.BACKWARD)
    assert (forward.layer, backward.layer) == ("memory", "memory")
    assert forward.flops.at(BATCH) == ONE.forward_flops
    assert backward.flops.at(2 * BATCH) == 2 * ONE.backward_flops
    assert tuple(size.at(BATCH) for size in forward.gemm) == (1, BATCH, 4 * UNITS, UNITS)
    assert workload.answers == (("gpu", True),)
    assert workload.unknown_ops == ()


def test_the_reserve_space_lives_until_the_backward_pass_and_the_workspace_within_each():
    """JAX allocates float32 numbers of as many as cuDNN asks for bytes."""
    workload = traced(A100, LAYERS.LSTM(UNITS, return_sequences=True))
    forward, backward = lstms(workload)
    (reserve, workspace), (read, own) = buffers_of(forward), buffers_of(backward)
    assert (read, reserve in backward.reads, own != workspace) == (reserve, True, True)
    assert dims(workload, reserve) == (ONE.reserve_bytes,)
    assert dims(workload, workspace) == dims(workload, own) == (ONE.workspace_bytes,)
    assert {workload.tensors[end].dtype for end in (reserve, workspace)} == {"float32"}
    assert dims(workload, forward.writes[0]) == (BATCH, LENGTH, UNITS)


def test_both_directions_are_one_call():
    workload = traced(A100, LAYERS.Bidirectional(LAYERS.LSTM(UNITS)))
    forward, backward = lstms(workload)
    both = Lstm(BATCH, LENGTH, INPUTS, UNITS, directions=2)
    assert (forward.flops.at(BATCH), backward.flops.at(BATCH)) == (both.forward_flops, both.backward_flops)
    assert dims(workload, buffers_of(forward)[0]) == (both.reserve_bytes,)


@pytest.mark.parametrize(
    ("layers", "how", "calls"),
    [
        ((LAYERS.LSTM(UNITS, return_sequences=True), LAYERS.LSTM(UNITS)), {}, 4),
        ((LAYERS.LSTM(UNITS, stateful=True),), {"batch": BATCH}, 2),
        ((LAYERS.LSTM(UNITS, go_backwards=True),), {}, 2),
        ((LAYERS.LSTM(UNITS, dropout=0.5),), {}, 2),
        ((LAYERS.Bidirectional(LAYERS.LSTM(UNITS, dropout=0.5)),), {}, 4),
        ((LAYERS.RNN([LAYERS.LSTMCell(UNITS), LAYERS.LSTMCell(UNITS)]),), {}, 0),
        ((LAYERS.LSTM(UNITS, recurrent_dropout=0.5),), {}, 0),
        ((LAYERS.LSTM(UNITS),), {"masks": True}, 0),
        ((LAYERS.LSTM(UNITS, activation="relu"),), {}, 0),
        ((LAYERS.LSTM(UNITS, use_bias=False),), {}, 0),
        ((LAYERS.LSTM(UNITS, use_cudnn=False),), {}, 0),
        ((LAYERS.LSTM(UNITS, unroll=True),), {}, 0),
        ((LAYERS.GRU(UNITS),), {}, 0),
    ],
)
def test_cudnn_takes_what_keras_gives_it(layers, how, calls):
    workload = traced(A100, *layers, **how)
    assert len(lstms(workload)) == calls
    assert bool(loops(workload)) == (calls == 0 and not getattr(layers[0], "unroll", False))


@pytest.mark.parametrize("platform", [TPU, HOST])
def test_elsewhere_it_is_a_loop_and_says_nothing_about_gpus(platform):
    workload = traced(platform, LAYERS.LSTM(UNITS))
    assert not lstms(workload)
    assert workload.answers == (("gpu", False),)
    with pytest.raises(WorkloadError, match="traced for a device with gpu: no"):
        estimate(workload, TrainConfig(Batch(BATCH)), cluster("gpu-a100-80gb"))


def test_names_of_jax_and_keras_are_restored():
    rnn, keras_rnn = (importlib.import_module(name) for name in ("jax.experimental.rnn", "keras.src.backend.jax.rnn"))
    usual = keras.activations.tanh, keras.activations.sigmoid, False
    before = rnn.gpu_rnn
    with seen_as(A100):
        assert keras_rnn.cudnn_ok(*usual)
        assert rnn.gpu_rnn is not before
    assert not keras_rnn.cudnn_ok(*usual)
    assert rnn.gpu_rnn is before


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_in_16_bits_the_step_of_a_gpu_cannot_be_lowered(dtype):
    """Keras does not fall back to a loop: the call is traced, and JAX refuses it afterwards (a known issue)."""
    model = recurrent_model(LAYERS.LSTM(UNITS, dtype=dtype))
    batch = resized_specs(synthetic_specs(model, BATCH), BATCH)
    build_for(model, batch)
    state = tuple([jax.ShapeDtypeStruct(v.shape, stored_dtype(v)) for v in group] for group in state_of(model))
    with seen_as(A100), pytest.raises(ValueError, match=f"Unknown output type {dtype.removeprefix('mixed_')}"):
        jax.jit(model.train_step).trace(state, batch).lower(lowering_platforms=("cuda",))


def test_shapes_that_the_trace_has_are_those_that_jax_computes_with():
    """The reference of JAX gives outputs and states of the same shapes."""
    rnn = importlib.import_module("jax.experimental.rnn")
    workload = traced(A100, LAYERS.LSTM(UNITS))
    forward = lstms(workload)[0]
    x, h, c, weights, lengths = (np.zeros(dims(workload, end), workload.tensors[end].dtype) for end in forward.reads)
    parts = rnn.unpack_lstm_weights(weights, INPUTS, UNITS, 1, False)
    sizes = {"input_size": INPUTS, "hidden_size": UNITS, "num_layers": 1, "dropout": 0.0, "bidirectional": False}
    made = jax.eval_shape(lambda: rnn.lstm_ref(x, h, c, *parts, lengths + LENGTH, **sizes))
    assert [one.shape for one in made] == [dims(workload, end) for end in forward.writes[:3]]


def test_a_compiled_program_needs_what_is_estimated():
    """XLA:GPU compiles the call without a GPU. On two devices each computes the LSTM of the batches of both."""
    devices = 2
    hardware = cluster("gpu-a100-80gb-x2")
    config = TrainConfig(Batch(16, devices), mesh=Mesh(devices))
    layers = LAYERS.LSTM(64, return_sequences=True), LAYERS.Bidirectional(LAYERS.LSTM(48))
    model = recurrent_model(*layers)
    batch = synthetic_specs(model, BATCH)
    compiled = compile_train_step(model, batch, config, compiler_target(hardware), A100, {})
    read = workload_of(compiled.text, axes={"data": devices}, local_batch=16, precision="float32", remat="none")
    assert read.unknown_ops == ()
    estimated = program_memory(traced(A100, *layers), config, hardware)
    assert estimated.total == pytest.approx(compiled.evidence.memory.must_fit_bytes, rel=0.03)
    calls = lstms(read)
    whole = [op.flops.at(16) for op in lstms(on_whole_batch(traced(A100, *layers), devices))]
    assert sorted(op.flops.at(16) for op in calls) == sorted(whole)
