"""The platform that Keras sees while a step is traced: every place that asks, what it is answered, and for how long."""

import re
from pathlib import Path

import jax
import keras
import numpy as np
import pytest
from jax._src.cudnn import fused_attention_stablehlo as cudnn
from keras.src.backend.jax import nn, numpy, trainer

from autoplan.worker.synthetic_data import synthetic_specs
from autoplan.worker.trace.target_platform import CUDNN_VERSION, QUESTIONS, seen_as
from autoplan.worker.trace.train_step import trace_train_step
from cost_models.hardware.platform import HOST, TargetPlatform
from cost_models.memory import AHEAD, KEPT_WHILE_VALIDATING
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


class JaxOff:
    """The module `jax`, whose default backend has this name."""

    def __init__(self, backend):
        self.default_backend = lambda: backend

    def __getattr__(self, name):
        return getattr(jax, name)


class Counting(keras.Sequential):
    """A model that counts the batches on the device in each step: (of the training, of the validation)."""

    ROWS, VALIDATED = 5, 3

    def __init__(self):
        super().__init__([keras.Input((7,)), keras.layers.Dense(1)])
        self.training_steps, self.validation_steps = set(), set()

    def train_step(self, state, data):
        self.training_steps.add(self.on_device())
        return super().train_step(state, data)

    def test_step(self, state, data):
        self.validation_steps.add(self.on_device())
        return super().test_step(state, data)

    def on_device(self):
        shapes = [array.shape for array in jax.live_arrays()]
        return shapes.count((self.ROWS, 7)), shapes.count((self.VALIDATED, 7))


@pytest.mark.parametrize(
    ("backend", "training", "validating"),
    [
        ("gpu", (1 + AHEAD, 0), (KEPT_WHILE_VALIDATING, 1 + AHEAD)),
        ("cpu", (0, 0), (0, 0)),  # the step itself copies the batch
    ],
)
def test_fit_holds_as_many_batches_as_are_counted(backend, training, validating, monkeypatch):
    monkeypatch.setattr(trainer, "jax", JaxOff(backend))
    model = Counting()
    model.compile(optimizer="sgd", loss="mse", run_eagerly=True)
    rows, validated = 4 * model.ROWS, 4 * model.VALIDATED
    held_out = np.ones((validated, 7), "float32"), np.ones((validated, 1), "float32")
    model.fit(
        *(np.ones((rows, width), "float32") for width in (7, 1)),
        batch_size=model.ROWS,
        verbose=0,
        validation_data=held_out,
        validation_batch_size=model.VALIDATED,
    )
    assert (model.training_steps, model.validation_steps) == ({training}, {validating})
