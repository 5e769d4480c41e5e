from __future__ import annotations

import ast
import json
import os
import subprocess
import sys

import pytest

from autoplan import export
from autoplan.errors import ConfigError, PlanError
from autoplan.machine import processes
from autoplan.plan import knobs, schema
from tests.builders import plans

# Trains a small model with an exported plan as its comments say, and prints what Keras then did.
TRAINING = """
import json
import numpy as np

seen = []

class Sizes(keras.layers.Layer):
    def call(self, x):
        seen.append(x.shape[0])
        return x

class Rates(keras.callbacks.Callback):
    def __init__(self):
        self.seen = []
    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(float(self.model.optimizer.learning_rate))

with planned_model():
    hidden = keras.layers.Dense(8, activation="relu")
    model = keras.Sequential([keras.Input((4,)), Sizes(), hidden, keras.layers.Dense(1)])
schedule = keras.optimizers.schedules.PiecewiseConstantDecay([15], [0.1, 0.01])
optimizer = accumulating(keras.optimizers.SGD(ScheduleForNewBatch(schedule)))
model.compile(optimizer=optimizer, loss="mse", **COMPILE)
rates = Rates()
# Small values: a loss that overflows under its scale would be skipped, and no update be made of it.
x = 0.1 * np.random.default_rng(0).normal(size=(SAMPLES, 4)).astype("float32")
model.fit(x, x.sum(1), epochs=2, verbose=0, callbacks=[rates], **FIT)
inner = model.optimizer
while isinstance(inner, keras.optimizers.LossScaleOptimizer):
    inner = inner.inner_optimizer
print(json.dumps({
    "policy": model.layers[-1].dtype_policy.name,
    "updates": int(inner.iterations),
    "micro_steps": int(inner._iterations),
    "batches": sorted({size for size in seen if isinstance(size, int)}),
    "loss_scaled": inner is not model.optimizer,
    "jit_compile": model.jit_compile,
    "steps_per_execution": model.steps_per_execution,
    "devices": len(model.layers[-1].kernel.value.sharding.device_set),
    "first_rate": rates.seen[0],
    "last_rate": rates.seen[-1],
    "old_rate_lasts": sum(rate > 0.05 for rate in rates.seen),
    "remat": hidden._remat_mode.mode if hidden._remat_mode else "none",
}))
"""


def exported(**config):
    return export.exported(plans.plan(config=plans.config(**config)))


def trained(tmp_path, module: str, samples: int) -> dict:
    script = tmp_path / "exported.py"
    script.write_text(module + f"\nSAMPLES = {samples}\n" + TRAINING)
    flags = "--xla_force_host_platform_device_count=4"
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, script], env=environment, text=True, capture_output=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_an_exported_plan_trains_with_its_precision_accumulation_remat_and_schedule(tmp_path):
    # The baseline makes 4 micro-steps of 32 an update; the plan 2 of 64 samples: as many samples an update.
    module = exported(batch=(64, 2), precision="mixed_float16", remat={"mode": "activations"})
    did = trained(tmp_path, module, samples=1024)
    assert did == {
        "policy": "mixed_float16",
        "updates": 16,
        "micro_steps": 32,
        "batches": [64],
        "loss_scaled": True,
        "jit_compile": True,
        "steps_per_execution": 1,
        "devices": 1,
        "first_rate": pytest.approx(0.1),
        "last_rate": pytest.approx(0.01),
        # The schedule changes after the baseline's 15th micro-step, which belongs to update 3; the update reads the
        # schedule where its last micro-step stood, 4u + 3 <= 15, so updates 0 to 3 have the old rate: 8 micro-steps
        # of the plan, and the callback sees the rate of the one that follows.
        "old_rate_lasts": 7,
        "remat": "activations",
    }


# Asks for 64 MiB more than all free pieces together, so that no free piece is large enough, and gives it back.
# Prints how many pieces were mapped by themselves, and by how many MiB the heap grew and then shrank.
HEAP = """
class Info(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Info
libc.malloc.argtypes, libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
before = libc.mallinfo2()
piece = libc.malloc(before.fordblks + 2**26)
during = libc.mallinfo2()
libc.free(piece)
after = libc.mallinfo2()
print(during.hblks - before.hblks, (during.arena - before.arena) // 2**20, (during.arena - after.arena) // 2**20)
"""


@pytest.mark.skipif(not processes.can_keep_freed_memory(), reason="this system's C library has no mallopt")
def test_an_exported_plan_keeps_freed_memory(tmp_path):
    """With the setting the heap grows and does not shrink; without it glibc maps a large piece by itself."""

    def heap(module: str) -> list[int]:
        (tmp_path / "exported.py").write_text(module + "\nimport ctypes\n" + HEAP)
        command = [sys.executable, tmp_path / "exported.py"]
        done = subprocess.run(command, env=os.environ, text=True, capture_output=True)
        assert done.returncode == 0, done.stderr
        return [int(figure) for figure in done.stdout.splitlines()[-1].split()]

    mapped, grown, shrunk = heap(exported(keep_freed_memory=True))
    assert (mapped, shrunk) == (0, 0)
    assert grown >= 64
    mapped, grown, _ = heap(exported())
    assert (mapped, grown) == (1, 0)


def test_an_exported_plan_runs_where_freed_memory_cannot_be_kept(tmp_path):
    """Other systems have another C library, or none that answers to this name."""
    script = tmp_path / "exported.py"
    head = "import sys\nsys.platform = 'darwin'\nimport ctypes\ndel ctypes.CDLL\n"
    text = exported(keep_freed_memory=True)
    before_keras = text[: text.index("import keras")]
    script.write_text(head + before_keras)
    done = subprocess.run([sys.executable, script], env=os.environ, text=True, capture_output=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_plans_own_words_stay_words():
    """Nobody who exports a plan that came from elsewhere runs what its texts say."""
    words = '"""\nimport os; os.abort()\n"""\\ \0'
    document = plans.plain_plan(notes=[f"first {words} last"])
    document["hardware"] |= {"name": words}
    document["environment"] |= {"keras": words}
    text = export.exported(schema.plan_from(document))
    statements = [type(one).__name__ for one in ast.parse(text).body]
    assert statements == [type(one).__name__ for one in ast.parse(export.exported(plans.plan())).body]
    assert "\nimport os; os.abort()" not in text


@pytest.mark.slow
def test_an_exported_plan_trains_on_its_mesh(tmp_path):
    did = trained(tmp_path, exported(batch=(64, 1), mesh={"data": 4, "model": 1}), samples=512)
    assert did["devices"] == 4
    assert (did["updates"], did["batches"], did["policy"]) == (16, [64], "float32")


def test_too_few_devices_are_told(tmp_path):
    script = tmp_path / "exported.py"
    script.write_text(exported(mesh={"data": 4, "model": 1}))
    environment = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"} | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, script], env=environment, text=True, capture_output=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "the plan needs 4 devices; found 1"


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"precision": "other"},
        {"backend": "torch"},
        {"batch": (30, 3)},
        {"remat": {"mode": "full"}, "steps_per_execution": 8, "jit_compile": False},
    ],
)
def test_every_export_is_python(config):
    module = exported(**config)
    compile(module, "exported.py", "exec")
    assert all(len(line) <= 120 for line in module.splitlines())


def test_only_what_the_plan_says_is_set():
    baseline = plans.plain_plan()["baseline"]["config"]
    same_batch = export.exported(plans.plan(config=baseline | {"jit_compile": True}))
    assert "ScheduleForNewBatch" not in same_batch
    assert "OLD_" not in same_batch
    assert 'COMPILE = {"jit_compile": True, "steps_per_execution": 1}' in same_batch
    assert "set_distribution" not in same_batch
    assert "set_dtype_policy" not in exported(precision="other")


def test_what_the_baseline_had_is_taken_back():
    plain = plans.plain_plan()
    old = plain["baseline"] | {"config": plans.config(mesh={"data": 4, "model": 1}, remat={"mode": "full"})}
    module = export.exported(plans.plan(baseline=old))
    assert "keras.distribution.set_distribution(None)" in module
    assert "keras.RematScope(mode=None)" in module


def test_notes_say_what_plain_calls_cannot_do():
    module = exported(batch=(96, 2))
    assert "# An update sees 1.5 times as many samples as before: choose a new learning rate." in module
    assert "# The last 128 of 8192 samples do not fill an update: drop them, or pad them with weight zero." in module
    assert "# Note: BatchNorm's statistics are per micro-batch" in module


def test_the_first_line_of_an_analytic_plan_says_that_nothing_was_measured():
    module = export.exported(plans.plan(evidence="analytic", measured=None, verification=None))
    assert module.startswith('"""Nothing was measured for this plan: its figures are analytic, for cpu (1 device).')


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"mesh": {"data": 2, "model": 2}}, "splits weights over devices"),
        ({"mesh": {"data": 2, "model": 1}, "layout": {"shard_state": True}}, "splits weights over devices"),
        ({"mesh": {"data": 2, "model": 1}, "backend": "torch"}, "uses 2 devices on torch"),
    ],
)
def test_what_plain_calls_cannot_express_is_refused(config, message):
    with pytest.raises(PlanError) as caught:
        exported(**config)
    assert message in str(caught.value)
    assert str(caught.value).endswith("run it with `autoplan train`")


def test_an_unknown_target():
    with pytest.raises(ConfigError, match="--to yaml: unknown export target; choose from python"):
        export.exported(plans.plan(), "yaml")


OTHERS = {
    "precision": {"precision": "mixed_bfloat16"},
    "batch": {"batch": (64, 2)},
    "mesh": {"batch": (128, 1), "mesh": {"data": 2, "model": 1}},
    "remat": {"remat": {"mode": "activations"}},
    "attention": {"attention": "unfused"},
    "steps_per_execution": {"steps_per_execution": 4},
    "jit_compile": {"jit_compile": False},
    "keep_freed_memory": {"keep_freed_memory": True},
}


@pytest.mark.parametrize("name", knobs.tunable_fields())
def test_every_knob_that_is_tuned_is_in_the_code_of_an_export(name):
    """The first text names the configuration in any case; the code has to differ too."""
    code = [ast.dump(ast.Module(ast.parse(exported(**changes)).body[1:], [])) for changes in ({}, OTHERS[name])]
    assert code[0] != code[1]
