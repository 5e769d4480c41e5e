"""A small training script that comes to grief where and when it is told to.

--at    where: script (before its fit), build, compile (of the fit), step (after some micro-steps)
--by    how: memory, hang, nan, crash, leave, leave_well, disk; or what it does besides: children, folder, streams,
        print_much
--slow  without compiling its training step
--when  always, or only under the bfloat16 policy: then its own configuration is sound, and a candidate is not
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
parser.add_argument("--when", choices=["always", "bfloat16"], default="always")
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


strikes = (memory, hang, nan, crash, leave, leave_well, disk, children, folder, streams, print_much, nothing)
strike = {one.__name__: one for one in strikes}[args.by]


def reached(place):
    under_bfloat16 = keras.config.dtype_policy().compute_dtype == "bfloat16"
    if place == args.at and (args.when == "always" or under_bfloat16):
        strike()


class Place(keras.layers.Layer):
    """Strikes while it is built for real, not while its training step is only looked at."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(), initializer="ones")
        if self.scale._value is not None:  # there is a value, and not only a shape
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
