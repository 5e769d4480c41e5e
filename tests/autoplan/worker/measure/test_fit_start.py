"""Fits that run again from their start: on JAX here, on the other backends in processes of their own."""

import json
import os
import subprocess
import sys

import pytest

PROGRAM = """
import json, sys
import keras, numpy as np
from autoplan.runtime import backends
from autoplan.runtime.live_models.build import ensure_built
from autoplan.runtime.data import data_facts
from autoplan.runtime.intercept import FitCall
from autoplan.worker.measure.fit_start import FitStart, variables_of
from autoplan.worker.measure.trial_fit import TrialFit

class Counting(keras.Model):
    def __init__(self):
        super().__init__()
        self.inner, self.drop = keras.layers.Dense(4), keras.layers.Dropout(0.5)
        self.norm = keras.layers.BatchNormalization()
        self.steps = 0
        self.second = keras.optimizers.Adam()
    def call(self, x, training=None):
        return self.norm(self.drop(self.inner(x), training=training), training=training)

class Kept(keras.callbacks.Callback):
    kept = ()
    def on_train_batch_end(self, batch, logs=None):
        self.model.steps += 1
        self.kept += (float(logs["loss"]),)

keras.utils.set_random_seed(0)
x = np.random.default_rng(0).normal(size=(64, 3)).astype("float32")
model = Counting()
model.compile(keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(1e-3, 5, 0.5)), "mse")
callback = Kept()
arguments = {"x": x, "y": x[:, :1], "batch_size": 8, "epochs": 2, "verbose": 0, "callbacks": [callback]}
call = FitCall(1, model, arguments, keras.Model.fit)
backend = keras.backend.backend()
ensure_built(model, arguments, data_facts.describe(arguments))
fit = TrialFit(call, data_facts.describe(arguments), None, backends.get(backend), {}, lambda _: None)
start = FitStart(fit, longest_seconds=60.0)
runs = []
for _ in range(2):
    before = [np.array(keras.ops.convert_to_numpy(one)).tolist() for one in variables_of(model)]
    model.fit(**arguments)
    runs.append([callback.kept, model.steps, before])
    restored = start.restore()
print(json.dumps({"restored": restored, "runs": runs, "left": [len(callback.kept), model.steps]}))
"""


@pytest.mark.parametrize("backend", ["jax", "tensorflow", "torch"])
def test_a_fit_that_begins_again_repeats_its_losses(backend, root):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    (losses, steps, before), (again, steps_again, before_again) = found["runs"]
    assert found["restored"] is True
    assert found["left"] == [0, 0]
    assert (len(losses), steps, steps_again) == (16, 16, 16)
    assert before_again == before
    assert again == pytest.approx(losses, rel=1e-5)
