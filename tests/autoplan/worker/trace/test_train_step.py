"""Keras's training step as a Workload: FLOPs by hand, state by role, sizes for every batch."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import jax
import keras
import numpy as np
import pytest

from autoplan.worker.synthetic_data import synthetic_specs
from autoplan.worker.trace.abstract_variables import abstract_variables
from autoplan.worker.trace.train_step import trace_train_step
from cost_models import Batch, Mesh, TrainConfig, estimate, memory
from cost_models.errors import WorkloadError
from cost_models.hardware.lookup import cluster as catalogued
from cost_models.workload.affine import Affine
from cost_models.workload.serialization import workload_digest, workload_from_dict, workload_to_dict
from cost_models.workload.workload import Kind, Phase, Role, walk
from cost_models.xla.buffers import liveness, schedule
from cost_models.xla.profiles.choice import compiler_profile
from tests.builders.slow import slow
from tests.builders.workloads import cluster
from tests.models import zoo
from tests.models.megatron import megatron

BATCH = 6
ROOT = Path(__file__).resolve().parents[4]


def trace(model, batch=BATCH, **how):
    return trace_train_step(model, synthetic_specs(model, batch), local_batch=batch, **how)


@cache
def traced(build, batch=BATCH):
    return trace(build(), batch)


def contrastive(y_true, y_pred):
    return keras.ops.mean(keras.ops.matmul(y_pred, keras.ops.transpose(y_pred)))


def flops_of(ops, kind):
    """Return the FLOPs of one kind of operation; bodies of loops count once per iteration."""
    own = Affine.sum(op.flops for op in ops if op.kind is kind)
    return own + Affine.sum(flops_of(op.body, kind) * op.repeat for op in ops if op.body)


def product_flops(workload, kind):
    return flops_of(workload.ops, kind)


def test_a_dense_layer_costs_2mkn_forward_and_2mkn_for_the_gradient_of_its_kernel():
    k, n = 24, 16
    assert product_flops(trace(zoo.dense(k, n)), Kind.DOT) == Affine(0, 2 * (2 * k * n))


def test_a_dense_layer_behind_another_costs_6mkn():
    """Forward, gradient of the input, gradient of the kernel; the first layer's input needs no gradient."""
    first, second, last = 32 * 64, 64 * 64, 64 * 4
    expected = 4 * first + 6 * second + 6 * last
    assert product_flops(traced(zoo.mlp), Kind.DOT) == Affine(0, expected)


@pytest.mark.parametrize(
    ("groups", "strides", "kernel"),
    [(1, 1, 3), (2, 1, 3), (4, 1, 1), (1, 2, 3)],
    ids=["plain", "two", "four", "stride"],
)
def test_a_convolution_costs_two_operations_a_multiply_add(groups, strides, kernel):
    side, channels, filters = 16, 4, 8
    model = zoo.convolution(
        filters=filters, groups=groups, strides=strides, kernel=kernel, side=side, channels=channels
    )
    out = side // strides
    forward = 2 * out * out * filters * kernel * kernel * channels // groups
    assert product_flops(trace(model), Kind.CONV) == Affine(0, 2 * forward)  # and the gradient of the kernel


def test_the_gradient_of_a_strided_convolutions_input_excludes_zeros():
    inputs = keras.Input((16, 16, 4))
    x = keras.layers.Conv2D(4, 1, use_bias=False)(inputs)
    model = keras.Model(inputs, keras.layers.Conv2D(8, 3, strides=2, padding="same", use_bias=False)(x))
    model.compile(optimizer="sgd", loss="mse")
    first = 2 * 16 * 16 * 4 * 4
    second = 2 * 8 * 8 * 8 * 9 * 4
    assert product_flops(trace(model), Kind.CONV) == Affine(0, 2 * first + 3 * second)


def test_attention_by_hand():
    """Three projections and the output (8 s d^2), scores and weighted sum (4 s^2 d): forward; twice that backward."""
    s, d = 12, 32
    projections, mixing = 8 * s * d * d, 4 * s * s * d
    to_input = 6 * s * d * d  # the model's input needs no gradient through queries, keys and values
    workload = trace(zoo.attention(width=d, heads=4, length=s))
    assert product_flops(workload, Kind.DOT) == Affine(0, 3 * (projections + mixing) - to_input)


def test_a_loop_counts_every_iteration():
    """A GRU step: three gates on input and state forward; state and both kernels backward (the input needs none)."""
    length, width, features = 20, 16, 8
    on_input, on_state = 2 * features * 3 * width, 2 * width * 3 * width
    head = 3 * 2 * width
    expected = length * (2 * on_input + 3 * on_state) + head
    assert product_flops(traced(zoo.recurrent), Kind.DOT).per_sample == expected


def resnet_50():
    model = keras.applications.ResNet50(weights=None)
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    model.compile(optimizer=optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


@pytest.fixture(scope="module")
def resnet():
    with abstract_variables():
        model = resnet_50()
        workload = trace(model, 32)
    assert not any(v._value is not None for v in model.trainable_variables)
    return workload


@pytest.mark.slow
def test_resnet_50_has_its_published_parameters_and_work(resnet):
    assert resnet.parameters == 25_583_592
    assert resnet.variable_bytes(Role.TRAINABLE) == 25_583_592 * 4
    gmacs = 3.86e9  # He et al. 2015, table 1: 3.8e9 multiply-adds forward
    assert resnet.model_flops.per_sample == pytest.approx(3 * 2 * gmacs, rel=0.02)
    assert not resnet.batch_exact


@pytest.mark.parametrize(("batch", "compiled_bytes"), [(32, 2_914_675_248), (128, 10_868_225_456)])
def test_resnet_50_needs_the_flops_that_xla_counts(resnet, batch, compiled_bytes):
    """Argument + output - alias + temp of the whole float32 training step, compiled with jax 0.10.2 for one A100."""
    cost = memory(resnet, TrainConfig(Batch(batch)), cluster("gpu"))
    assert cost.total == pytest.approx(compiled_bytes, rel=0.03)


@pytest.mark.parametrize("build", [zoo.mlp, zoo.recurrent, *slow(zoo.image_classifier, zoo.decoder, zoo.two_inputs)])
def test_sizes_fitted_at_two_batches_are_valid_for_a_third(build):
    line, far = traced(build), traced(build, 64)
    assert not line.batch_exact
    assert [t.bytes.at(64) for t in line.tensors] == [t.bytes.at(64) for t in far.tensors]
    assert line.flops.at(64) == pytest.approx(far.flops.at(64))
    assert [op.primitive for op in line.ops] == [op.primitive for op in far.ops]


def test_a_batch_of_one_uses_the_fit_at_two_and_four():
    """At one sample some operations differ (squeezes, broadcasts) from those of larger batches."""
    line, two = traced(zoo.attention, 1), traced(zoo.attention, 2)
    assert not line.batch_exact
    assert line.tensors == two.tensors
    assert [op.primitive for op in line.ops] == [op.primitive for op in two.ops]


def test_a_model_of_one_sample_is_only_valid_for_one_sample():
    inputs = keras.Input(batch_shape=(1, 10))
    model = keras.Model(inputs, keras.layers.Reshape((10,))(keras.ops.reshape(inputs, (1, 10))))
    model.compile(optimizer="sgd", loss="mse")
    workload = trace_train_step(model, synthetic_specs(model, 1), local_batch=1)
    assert workload.batch_exact
    assert workload.local_batch == 1


@pytest.mark.parametrize("build", [zoo.mlp, zoo.image_classifier, zoo.decoder, zoo.recurrent, zoo.two_inputs])
def test_every_operation_is_known(build):
    assert traced(build).unknown_ops == ()


def test_values_do_not_matter():
    """Abstract and concrete variables give the same workload."""
    concrete = traced(zoo.image_classifier)
    with abstract_variables():
        abstract = trace(zoo.image_classifier())
    assert [op.primitive for op in abstract.ops] == [op.primitive for op in concrete.ops]
    assert abstract.tensors == concrete.tensors


def test_a_subclassed_model_is_built_by_the_trace():
    model = zoo.subclassed()
    batch = (np.zeros((3, 12), "float32"), np.zeros((3, 1), "float32"))
    workload = trace_train_step(model, batch, local_batch=8)
    assert workload.parameters == 12 * 12 + 12 + 12 + 1
    assert any("residual" in op.layer for op in workload.ops)


def test_phases_follow_one_another():
    phases = [op.phase for op in traced(zoo.mlp).ops]
    order = [Phase.FORWARD, Phase.BACKWARD, Phase.UPDATE]
    assert phases == sorted(phases, key=order.index)
    assert set(phases) == set(order)


def test_sample_weights_are_inputs():
    model = zoo.dense()
    x, y = synthetic_specs(model, BATCH)
    weight = jax.ShapeDtypeStruct((BATCH,), "float32")
    weighted = trace_train_step(model, (x, y, weight), local_batch=BATCH)
    assert len(weighted.inputs) == len(traced(zoo.dense).inputs) + 1


class Custom(keras.Model):
    """A custom train_step that unpacks exactly two parts."""

    def train_step(self, state, data):
        x, y = data
        return super().train_step(state, (x, y))


def test_a_custom_train_step_receives_the_batch_of_fit():
    inputs = keras.Input((8,))
    model = Custom(inputs, keras.layers.Dense(2)(inputs))
    model.compile(optimizer="sgd", loss="mse")
    x, y = synthetic_specs(model, BATCH)
    workload = trace_train_step(model, (x, y, None), local_batch=BATCH)
    assert workload.parameters == 8 * 2 + 2


SLOTS = {
    "SGD": 0,
    "SGD momentum": 1,
    "RMSprop": 1,
    "RMSprop centered": 2,
    "RMSprop momentum": 2,
    "Adam": 2,
    "Adam amsgrad": 3,
    "AdamW": 2,
    "Adadelta": 2,
    "Adagrad": 1,
    "Adamax": 2,
    "Nadam": 2,
    "Ftrl": 2,
    "Lion": 1,
    "Lamb": 2,
    "Adafactor": None,
    "Muon": None,
    "LossScaleOptimizer": 2,
    "MultiOptimizer": 1,
    "ScheduleFreeAdamW": 2,
}
"""Of each trainable parameter; None where they depend on the shape of the variable."""


def made(name):
    kind, _, option = name.partition(" ")
    arguments = {option: 0.9 if option == "momentum" else True} if option else {}
    if kind == "LossScaleOptimizer":
        arguments = {"inner_optimizer": keras.optimizers.Adam()}
    if kind == "MultiOptimizer":
        return several(momentum=0.9)
    return getattr(keras.optimizers, kind)(**arguments)


def several(**of_most):
    """SGD for layers with "dense" in their name; Adam for other layers, of which the model has none."""
    most = {"dense.*": keras.optimizers.SGD(**of_most)}
    return keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(keras.optimizers.Adam(), most))


def test_accumulators_and_averages_of_several_optimizers_are_not_slots():
    optimizer = several(use_ema=True, gradient_accumulation_steps=2)
    workload, plain = trace(zoo.mlp(optimizer=optimizer)), trace(zoo.mlp(optimizer=several(use_ema=True)))
    assert [op.primitive for op in workload.ops] == [op.primitive for op in plain.ops]
    assert workload.variable_bytes(Role.EMA) == workload.variable_bytes(Role.TRAINABLE)
    assert workload.variable_bytes(Role.SLOT) < 64
    assert workload.variable_bytes(Role.ACCUMULATOR) == 0
    assert optimizer.optimizers[0].gradient_accumulation_steps == 2


def test_every_optimizer_of_keras_is_among_those_whose_slots_are_checked():
    of_keras = {
        name
        for name, kind in vars(keras.optimizers).items()
        if isinstance(kind, type) and issubclass(kind, keras.Optimizer) and kind is not keras.Optimizer
    }
    assert of_keras == {name.partition(" ")[0] for name in SLOTS}


@pytest.mark.parametrize(("name", "slots"), SLOTS.items())
def test_slots_of_every_optimizer_are_its_variables(name, slots):
    model = zoo.mlp(optimizer=made(name))
    workload = trace(model)
    state = workload.variable_bytes(Role.SLOT, Role.LOSS_SCALE)
    assert state == sum(int(np.prod(v.shape)) * np.dtype(v.dtype).itemsize for v in model.optimizer.variables)
    assert {v.path for v in workload.variables if v.role in (Role.SLOT, Role.LOSS_SCALE)} == {
        v.path for v in model.optimizer.variables
    }
    if slots is not None:
        parameters = workload.variable_bytes(Role.TRAINABLE)
        beside = 64  # iterations, learning rate and a few other scalars
        assert slots * parameters <= state <= slots * parameters + beside


def test_adam_in_float32_takes_16_bytes_a_parameter():
    """Weight, gradient and two slots; with data parallelism all gradients exist at once for the all-reduce."""
    workload = traced(zoo.mlp)
    config = TrainConfig(Batch(1, data=2), mesh=Mesh(2))
    cost = memory(workload, config, cluster("cpu", devices=2))
    scalars = 8  # iterations and learning rate
    assert cost.parameters + cost.gradients + cost.optimizer == 16 * workload.parameters + scalars


def test_a_transformer_layer_without_fusion_stores_the_activations_of_korthikanti():
    """s b h (34 + 5 a s / h) bytes (2205.05198, equation 1), and the row sums of the softmax, which they leave out:
    what a second layer adds to the bytes alive where the forward pass ends."""
    length, width, heads = 64, 128, 4
    alive = []
    for count in (1, 2):
        workload = trace(megatron(count, length=length, width=width, heads=heads))
        plan = liveness.schedule(workload, compiler_profile("gpu", jit_compile=False), schedule.Updates.TOGETHER)
        last = max(place for place, kernel in enumerate(plan.kernels) if kernel.op.phase is Phase.FORWARD)
        alive.append(plan.lines[1][last])
    row_sums = 2 * 2 * heads / width
    assert (alive[1] - alive[0]) / (length * width) == 34 + 5 * heads * length / width + row_sums


def test_averages_of_weights_are_not_slots():
    workload = trace(zoo.mlp(optimizer=keras.optimizers.SGD(use_ema=True)))
    assert workload.variable_bytes(Role.EMA) == workload.variable_bytes(Role.TRAINABLE)


def test_one_trace_serves_every_accumulation():
    """The optimizer's accumulators and setting do not change; the workload is that of a plain micro-step."""
    optimizer = keras.optimizers.Adam(gradient_accumulation_steps=4)
    accumulating, plain = trace(zoo.mlp(optimizer=optimizer)), traced(zoo.mlp)
    assert [op.primitive for op in accumulating.ops] == [op.primitive for op in plain.ops]
    assert [v.role for v in accumulating.variables] == [v.role for v in plain.variables]
    assert optimizer.gradient_accumulation_steps == 4
    assert len(optimizer._accumulated_gradients) == 6


def test_loss_scaling_variables_have_their_own_role():
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        workload = trace(zoo.mlp())
    finally:
        keras.config.set_dtype_policy(policy)
    assert workload.precision == "mixed_float16"
    assert workload.variable_bytes(Role.LOSS_SCALE) == 8
    assert any(op.kind is Kind.BRANCH for op in workload.ops)  # non-finite gradients skip the update
    products = [op for op in walk(workload.ops) if op.kind is Kind.DOT]
    assert {workload.tensors[op.reads[0]].dtype for op in products} == {"float16"}


def test_the_recomputation_of_a_rematerialized_region_does_not_count_as_model_flops():
    with keras.RematScope(mode="full"):
        recomputing = zoo.mlp()
    workload, plain = trace(recomputing), traced(zoo.mlp)
    assert workload.remat == "full"
    fences = [op for op in workload.ops if op.kind is Kind.BARRIER]
    assert fences
    assert all(op.region for op in fences)
    assert workload.flops.per_sample > plain.flops.per_sample
    assert workload.model_flops == plain.model_flops


def test_the_products_of_muons_update_do_not_count_as_model_flops():
    """Newton-Schulz iterations on the gradients: many products per matrix, independent of the batch."""
    with_muon, with_sgd = zoo.mlp(), zoo.mlp()
    with_muon.compile(keras.optimizers.Muon(0.01), with_sgd.loss)
    workload, plain = trace(with_muon), trace(with_sgd)
    assert product_flops(workload, Kind.DOT).fixed > 0
    assert workload.model_flops == plain.model_flops


def test_the_products_of_muons_update_do_not_count_for_a_model_with_a_fixed_batch():
    plain = trace(zoo.mlp(loss=contrastive))
    for optimizer in (keras.optimizers.Muon(0.01), keras.optimizers.LossScaleOptimizer(keras.optimizers.Muon(0.01))):
        workload = trace(zoo.mlp(loss=contrastive, optimizer=optimizer))
        assert workload.batch_exact
        assert workload.model_flops == plain.model_flops


def test_a_model_with_a_fixed_batch_is_only_valid_for_that_batch():
    inputs = keras.Input(batch_shape=(BATCH, 10))
    model = keras.Model(inputs, keras.layers.Reshape((2, 5))(keras.layers.Dense(10)(inputs)))
    model.compile(optimizer="sgd", loss="mse")

    def pinned(x, y=None, y_pred=None, sample_weight=None, training=True):
        return keras.ops.mean(keras.ops.reshape(y_pred, (BATCH, 10)))

    model.compute_loss = pinned
    workload = trace(model)
    assert workload.batch_exact
    assert "only valid for a local batch of 6: " in workload.notes[0]
    with pytest.raises(WorkloadError, match="trace it again"):
        workload.check_batch(12)


def test_a_loss_over_pairs_of_samples_is_only_valid_for_one_batch():
    workload = trace(zoo.mlp(loss=contrastive))
    assert workload.batch_exact
    assert "square of the batch" in workload.notes[0]


def test_names_can_be_given_by_the_configuration():
    workload = trace(zoo.dense(), precision="mixed_bfloat16", remat="activations")
    assert (workload.precision, workload.remat, workload.backend) == ("mixed_bfloat16", "activations", "jax")


def test_layers_with_policies_of_their_own_have_no_common_name():
    model = keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(8, dtype="mixed_bfloat16"), keras.layers.Dense(1, dtype="float32")]
    )
    model.compile(optimizer="sgd", loss="mse")
    assert trace(model).precision == "other"


def test_a_model_without_an_optimizer_has_no_training_step():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    with pytest.raises(WorkloadError, match=r"no optimizer.*call model.compile"):
        trace_train_step(model, (jax.ShapeDtypeStruct((2, 8), "float32"),), local_batch=2)


def test_a_workload_is_equal_after_serialization():
    workload = traced(zoo.decoder)
    assert workload_from_dict(workload_to_dict(workload)) == workload


def test_a_stored_workload_is_estimated_where_no_framework_can_be_imported(tmp_path):
    workload = traced(zoo.decoder)
    (stored := tmp_path / "workload.json").write_text(json.dumps(workload_to_dict(workload)))
    code = f"""
import json, sys
sys.modules.update(dict.fromkeys(("keras", "jax", "jaxlib", "tensorflow", "torch", "optuna", "pydantic", "psutil")))
from cost_models import Batch, TrainConfig, estimate
from cost_models.hardware.lookup import cluster
from cost_models.workload.serialization import workload_digest, workload_from_dict
workload = workload_from_dict(json.load(open({str(stored)!r})))
found = estimate(workload, TrainConfig(Batch(32)), cluster("gpu-a100-80gb"))
print(json.dumps([workload_digest(workload), found.memory.total, found.time.micro_step_seconds]))
"""
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT, check=True)
    here = estimate(workload, TrainConfig(Batch(32)), catalogued("gpu-a100-80gb"))
    assert json.loads(done.stdout) == [workload_digest(workload), here.memory.total, here.time.micro_step_seconds]


TRACE = """
import keras
from autoplan.worker.synthetic_data import synthetic_specs
from autoplan.worker.trace.train_step import trace_train_step
from cost_models.workload.serialization import workload_digest
from tests.models import zoo
model = zoo.image_classifier()
print(workload_digest(trace_train_step(model, synthetic_specs(model, 4), local_batch=4)))
"""


@pytest.mark.slow
def test_two_processes_trace_the_same_workload():
    running = [
        subprocess.Popen(
            [sys.executable, "-c", TRACE],
            env={**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        for seed in ("1", "2")
    ]
    first, second = (one.communicate()[0].split() for one in running)
    assert first == second
    assert len(first) == 1


COMPILED = [(zoo.mlp, 512), (zoo.image_classifier, 64), (zoo.recurrent, 128), (zoo.two_inputs, 256)]


@pytest.mark.parametrize(
    ("build", "batch"),
    [*COMPILED, pytest.param(zoo.decoder, 32, marks=pytest.mark.slow)],
    ids=[*(build.__name__ for build, _ in COMPILED), "decoder"],
)
def test_the_estimate_covers_the_memory_of_this_machines_compiler(build, batch):
    """State and inputs are exact (XLA drops unused scalars); the rest is inside the stated interval."""
    model = build()
    specs = synthetic_specs(model, batch)
    workload = trace_train_step(model, specs, local_batch=batch)
    groups = (model.trainable_variables, model.non_trainable_variables, model.optimizer.variables)
    state = tuple(
        [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in group] for group in (*groups, model.metrics_variables)
    )
    batch_structs = jax.tree.map(lambda spec: jax.ShapeDtypeStruct(spec.shape, spec.dtype), specs)
    compiled = jax.jit(model.train_step, donate_argnums=0).lower(state, batch_structs).compile().memory_analysis()
    resident = compiled.argument_size_in_bytes
    total = resident + compiled.output_size_in_bytes - compiled.alias_size_in_bytes + compiled.temp_size_in_bytes
    cost = memory(workload, TrainConfig(Batch(batch)), cluster("cpu"))
    assert 0 <= cost.parameters + cost.non_trainable + cost.optimizer + cost.inputs - resident <= 32
    assert cost.total_low <= total <= cost.total_high
