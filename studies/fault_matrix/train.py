"""A small training script with a fault that its arguments choose.

--at    where the fault happens: script (before its fit), build, compile (of the fit), step (after some micro-steps)
--by    the fault: memory, hang, nan, crash, leave, leave_well, disk; or an odd behaviour: children, folder, streams,
        print_much
--slow  do not compile the training step
--when  always, or only with a 16-bit precision, so that the script's own configuration works
"""

import argparse
import ctypes
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--at", choices=["script", "build", "compile", "step"], default="script")
parser.add_argument("--by", default="nothing")
parser.add_argument("--when", choices=["always", "16-bit"], default="always")
parser.add_argument("--slow", action="store_true")
args = parser.parse_args()
in_fit = False


def memory():
    hoard = []
    while True:
        hoard.append(np.ones(2**22))  # 32 MiB
        time.sleep(0.01)


def hang():
    time.sleep(86_400)


def crash():
    ctypes.string_at(0)


def leave():
    sys.exit(3)


def leave_well():
    sys.exit(0)


def disk():
    Path("/dev/full").write_text("no room")


def children():
    for detached in (False, True):
        subprocess.Popen(["sleep", "600"], start_new_session=detached)


def folder():
    gone = Path(tempfile.mkdtemp())
    os.chdir(gone)
    gone.rmdir()


def streams():
    sys.stdout.close()
    os.close(1)


def print_much():
    for _ in range(1024):
        os.write(1, b"x" * 2**20)


def nan():
    x[:] = np.nan


def nothing():
    pass


faults = (memory, hang, nan, crash, leave, leave_well, disk, children, folder, streams, print_much, nothing)
fault = {one.__name__: one for one in faults}[args.by]


def reached(place):
    in_16_bits = keras.config.dtype_policy().compute_dtype in ("bfloat16", "float16")
    if place == args.at and (args.when == "always" or in_16_bits):
        fault()


class Place(keras.layers.Layer):
    """A layer whose fault happens when its weights get values, not when the training step is only traced."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(), initializer="ones")
        if self.scale._value is not None:  # None while the model is traced with abstract variables
            reached("build")

    def call(self, x, training=False):
        if training and in_fit:
            reached("compile")
        return x * self.scale


class Steps(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        global in_fit
        in_fit = True

    def on_train_batch_end(self, batch, logs=None):
        if batch > 3:
            reached("step")


keras.utils.set_random_seed(1)
x = np.random.default_rng(1).normal(size=(4096, 16)).astype("float32")
y = x[:, :1].copy()
reached("script")
model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(32), Place(), keras.layers.Dense(1)])
model.compile(optimizer="sgd", loss="mse", jit_compile=not args.slow)
model.fit(x, y, batch_size=64, epochs=20, verbose=0, callbacks=[Steps()])
