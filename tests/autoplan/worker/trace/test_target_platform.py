"""The platform that Keras sees while a step is traced: every place that asks, what it is answered, and for how long."""

import re
from pathlib import Path

import keras
import pytest
from jax._src.cudnn import fused_attention_stablehlo as cudnn
from keras.src.backend.jax import nn, numpy

from autoplan.worker.synthetic_data import synthetic_specs
from autoplan.worker.trace.target_platform import CUDNN_VERSION, QUESTIONS, seen_as
from autoplan.worker.trace.train_step import trace_train_step
from cost_models.hardware.platform import HOST, TargetPlatform
from cost_models.workload.workload import walk
from tests.models.attending import A100, BATCH, H100, TPU, V100, kept

CPU = "_uses_cpu"
"""The function of Keras's NumPy that asks whether it runs on a CPU."""
SOURCE = Path(keras.__file__).parent / "src"
ASKS = re.compile(
    r"default_backend|jax\.(local_)?devices\(|device_count\(|process_(count|index)\(|jax_device\(|device_kind"
    r"|(?<!def )check_(cudnn_version|compute_capability)\(|\.platform\b|\bplatform *[!=]=|gpu_rnn"
)
OTHER_BACKENDS = ("backend/tensorflow/", "backend/torch/", "backend/numpy/", "backend/openvino/", "testing/")


def test_every_question_of_the_installed_keras_is_known():
    found = {}
    for path in SOURCE.rglob("*.py"):
        name = path.relative_to(SOURCE).as_posix()
        if not name.endswith("_test.py") and not name.startswith(OTHER_BACKENDS):
            lines = (line.strip() for line in path.read_text().splitlines())
            asked = {line for line in lines if ASKS.search(line) and not line.startswith("def ")}
            imported = {line for line in asked if line.startswith("from jax._src.cudnn")}
            if asked - imported:
                found[name] = asked - imported - {"return distribution_lib.get_device_count(device_type=device_type)"}
    assert {name: set(lines) for name, lines in QUESTIONS.items()} == {
        name: asked for name, asked in found.items() if asked
    }


def test_answers_tell_for_which_platforms_a_workload_holds():
    answers = kept(A100, True).answers
    assert A100.gives(answers)
    assert TargetPlatform("gpu", 8.6).gives(answers)
    assert not any(other.gives(answers) for other in (V100, H100, TPU, HOST))


def test_a_step_that_asks_nothing_holds_everywhere():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    with seen_as(A100) as answers:
        trace_train_step(model, synthetic_specs(model, BATCH), local_batch=BATCH)
    assert answers.given == ()


def test_argmax_has_further_operations_on_a_cpu_alone():
    def operations(platform):
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "softmax")])
        model.compile(optimizer="sgd", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
        with seen_as(platform) as answers:
            workload = trace_train_step(model, synthetic_specs(model, BATCH), local_batch=BATCH)
        assert answers.given == (("cpu", platform is HOST),)
        return [op.primitive for op in walk(workload.ops)]

    assert operations(A100) == operations(TPU)
    assert len(operations(HOST)) > len(operations(A100))


def test_names_are_restored_also_after_an_error():
    before = nn.jax, vars(numpy)[CPU], cudnn.check_cudnn_version, cudnn.check_compute_capability
    with pytest.raises(ZeroDivisionError), seen_as(A100):
        raise_where_the_target_is_seen()
    assert before == (nn.jax, vars(numpy)[CPU], cudnn.check_cudnn_version, cudnn.check_compute_capability)


def raise_where_the_target_is_seen():
    assert nn.jax.devices()[0].platform == "gpu"
    assert cudnn.check_cudnn_version() == CUDNN_VERSION
    raise ZeroDivisionError
