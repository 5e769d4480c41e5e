"""What the conformance suite has a backend do, in a worker where only that backend can be imported.

The worker runs this file as a script; what each check saw goes as JSON into the file that its first argument names.
Checks that further arguments name are left out.
"""

import json
import math
import sys
import time
import traceback
from pathlib import Path

import keras
import memory_errors  # beside this file
import numpy as np
import padded_metrics  # beside this file
import unbuilt_model  # beside this file

from autoplan.runtime import backends
from autoplan.runtime.apply import Change, ProcessSettings, apply_to_model
from autoplan.runtime.data import data_facts, lookahead
from autoplan.runtime.fit import arguments_under, script_config
from autoplan.runtime.intercept import SeenCalls
from autoplan.runtime.timing.fit_timer import FitTimer
from autoplan.runtime.timing.timed_groups import TimedGroups
from cost_models.config import Batch, Precision, TrainConfig

del keras.Model.fit  # the worker watches it, and these checks fit for themselves
NAME = keras.backend.backend()
BACKEND = backends.get(NAME)
CHECKS = {}


def check(function):
    CHECKS[function.__name__] = function
    return function


def arrays(rows, width=8):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, width), dtype="float32")
    return x, np.tanh(x[:, :1]) + 0.1


def built(optimizer="sgd", *, kind=keras.Sequential, width=16, depth=1, **compiling):
    keras.utils.set_random_seed(7)
    hidden = [keras.layers.Dense(width, "tanh") for _ in range(depth)]
    model = kind([keras.Input((8,)), *hidden, keras.layers.Dense(1)])
    model.compile(optimizer, "mse", **compiling)
    return model


def config(batch=None, **knobs):
    return TrainConfig(batch=batch or Batch(32), backend=NAME, **{"jit_compile": NAME == "jax", **knobs})


def updates(model):
    return int(model.optimizer.iterations)


def weights(model):
    return np.concatenate([np.ravel(keras.ops.convert_to_numpy(weight)) for weight in model.trainable_variables])


def quiet_fit(model, x, y, batch_size=32, **more):
    return model.fit(x, y, batch_size=batch_size, shuffle=False, verbose=0, **more)


@check
def devices():
    count, kind, memory_bytes = BACKEND.devices()
    return {
        "count": count,
        "kind": kind,
        "memory_bytes": memory_bytes,
        "peak_bytes": BACKEND.peak_bytes(),
        "platform": BACKEND.platform(),
        "version": BACKEND.version(),
    }


@check
def meshes_that_are_not_there():
    try:
        BACKEND.data_parallel(1000)
    except Exception as error:  # noqa: BLE001 -- which one it is, is asked
        return [type(error).__name__, str(error)]


class Telling(keras.layers.Dense):
    """Records the dtypes in which it computes."""

    def call(self, inputs, training=None):
        outputs = super().call(inputs)
        self.seen = [keras.backend.standardize_dtype(tensor.dtype) for tensor in (inputs, outputs)]
        return outputs


@check
def precision():
    found = {}
    for wanted in ("float32", "mixed_bfloat16", "mixed_float16"):
        own = "float32" if wanted != "float32" else "mixed_bfloat16"
        keras.config.set_dtype_policy(own)
        ProcessSettings(Change(config(precision=Precision(own)), config(precision=Precision(wanted))), BACKEND).enter()
        keras.utils.set_random_seed(7)
        layer = Telling(16)
        model = keras.Sequential([keras.Input((8,)), layer, keras.layers.Dense(1, dtype="float32")])
        model.compile("sgd", "mse")
        loss = quiet_fit(model, *arrays(64)).history["loss"][-1]
        layer(keras.ops.ones((2, 8)))
        found[wanted] = {
            "computed": layer.seen,
            "stored": keras.backend.standardize_dtype(layer.kernel.dtype),
            "optimizer": type(model.optimizer).__name__,
            "finite": bool(np.isfinite(loss)),
            "updates": updates(model),
            "read": script_config(model, facts(64), SeenCalls(policies={wanted}), BACKEND).precision.value,
        }
        keras.config.set_dtype_policy("float32")
    return found


def facts(rows, batch_size=32):
    x, y = arrays(rows)
    return data_facts.describe({"x": x, "y": y, "batch_size": batch_size})


class Watched(keras.Sequential):
    """Records how its micro-step is run."""

    compiled_by_backend = None

    def train_step(self, *arguments):
        Watched.compiled_by_backend = is_compiling(arguments)
        return super().train_step(*arguments)


def is_compiling(arguments):
    """Return whether the calling code is being compiled by XLA or torch.compile."""
    if NAME == "jax":
        import jax

        return isinstance(keras.tree.flatten(arguments)[0], jax.core.Tracer)
    if NAME == "tensorflow":
        import tensorflow as tf
        from tensorflow.python.ops import control_flow_util

        return bool(control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()))
    import torch

    return torch.compiler.is_compiling()


@check
def compilation():
    """Compilation switched off and on, and the number of compilations: first, repeated, and for another batch."""
    found = {}
    for wanted in (False, True):
        Watched.compiled_by_backend = None
        # One layer where torch.compile calls a C++ compiler for each kernel of it.
        model = built(kind=Watched, depth=0 if NAME == "torch" else 1, jit_compile=not wanted)
        apply_to_model(model, Change(config(jit_compile=not wanted), config(jit_compile=wanted)))
        watch, counts = BACKEND.watch_compilation(), []
        for rows, batch_size in ((64, 32), (64, 32), (72, 24)) if wanted else ((64, 32),):
            quiet_fit(model, *arrays(rows), batch_size=batch_size)
            counts.append(watch.compilations)
        found[str(wanted)] = {
            "compiled": Watched.compiled_by_backend,
            "read": script_config(model, facts(64), SeenCalls(), BACKEND).jit_compile,
            "updates": updates(model),
            "compilations": counts,
        }
    return found


@check
def compilation_where_the_script_says_nothing():
    return script_config(built(), facts(64), SeenCalls(), BACKEND).jit_compile


class Calls(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.count = 0

    def on_train_batch_end(self, batch, logs=None):
        self.count += 1


@check
def executions():
    """8 micro-steps per epoch, 4 per execution."""
    model, calls = built(), Calls()
    apply_to_model(model, Change(config(), config(steps_per_execution=4)))
    try:
        quiet_fit(model, *arrays(256), callbacks=[calls])
    except ValueError as error:
        return {"refused": str(error)}
    alone = built()
    quiet_fit(alone, *arrays(256))
    return {
        "calls": calls.count,
        "updates": updates(model),
        "difference": float(np.abs(weights(model) - weights(alone)).max()),
    }


OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "adamw": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1, global_clipnorm=0.5),
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(OPTIMIZERS["adamw"](), initial_scale=4.0),
    "schedule": lambda: keras.optimizers.Adam(
        keras.optimizers.schedules.CosineDecay(0.05, 4, warmup_target=0.1, warmup_steps=2)
    ),
}


def trained(make_optimizer, wanted, rows, script=None, *, shuffle=False, **knobs):
    """A model after two epochs with 32 samples per update."""
    script = script or Batch(32)
    change = Change(config(script), config(wanted, **knobs))
    optimizer = make_optimizer()
    optimizer.gradient_accumulation_steps = script.accumulation if script.accumulation > 1 else None
    model = built(optimizer)
    x, y = arrays(rows)
    arguments = {"x": x, "y": y, "batch_size": script.global_size, "epochs": 2, "shuffle": shuffle, "verbose": 0}
    apply_to_model(model, change)
    model.fit(**arguments_under(model, arguments, data_facts.describe(arguments), change))
    return model


@check
def accumulation():
    """The same training in micro-batches: with a remainder that divides, with padding, and without a remainder."""
    found = {}
    for name, rows in (("adamw", 80), ("schedule", 70)):
        make, shuffle = OPTIMIZERS[name], rows == 70
        own = trained(make, Batch(32), rows, shuffle=shuffle)
        cut = trained(make, Batch(8, accumulation=4), rows, shuffle=shuffle)
        difference = float(np.abs(weights(own) - weights(cut)).max())
        found[f"{name}, {rows} rows"] = {"updates": [updates(own), updates(cut)], "difference": difference}
    if NAME != "torch":  # where a C++ compiler is called for each kernel
        own, cut = trained(make, Batch(32), 64), trained(make, Batch(8, accumulation=4), 64, jit_compile=True)
        difference = float(np.abs(weights(own) - weights(cut)).max())
        found["compiled"] = {"updates": [updates(own), updates(cut)], "difference": difference}
    script = Batch(8, accumulation=4)
    own, whole = trained(OPTIMIZERS["sgd"], script, 64, script), trained(OPTIMIZERS["sgd"], Batch(32), 64, script)
    difference = float(np.abs(weights(own) - weights(whole)).max())
    found["undone"] = {"updates": [updates(own), updates(whole)], "difference": difference}
    return found


@check
def metrics_beside_padding():
    return padded_metrics.found(built(), *arrays(70))


@check
def unbuilt():
    """A model that `fit` would build: its weights, and the order of the rows, with and without a plan."""
    (one, own), (two, changed) = (unbuilt_model.trained(wanted) for wanted in (None, Batch(8, accumulation=4)))
    return {"updates": [own, changed], "difference": float(np.abs(one - two).max())}


class Rows(keras.utils.PyDataset):
    """Batches of 32 of the arrays, the last one smaller, loaded by two threads."""

    def __init__(self, rows):
        super().__init__(workers=2)
        self.x, self.y = arrays(rows)

    def __len__(self):
        return math.ceil(len(self.x) / 32)

    def __getitem__(self, index):
        return {"a": self.x[32 * index : 32 * index + 32]}, self.y[32 * index : 32 * index + 32]


@check
def streams():
    """A PyDataset and an endless generator under two batches; autoplan reads both."""
    found = {}
    for kind, rows in (("PyDataset", 120), ("PyDataset", 90), ("generator", 90)):
        ended = []
        for wanted in (Batch(16, accumulation=2), Batch(8, accumulation=4)):
            data_set = Rows(rows)
            x = data_set if kind == "PyDataset" else (data_set[step % 3] for step in range(100))
            arguments = {"x": x, "epochs": 2, "shuffle": False, "verbose": 0}
            arguments |= {"steps_per_epoch": 3} if kind == "generator" else {}
            arguments = lookahead.buffer_first_batch(arguments)
            model = of_a_dictionary()
            change = Change(config(), config(wanted))
            apply_to_model(model, change)
            model.fit(**arguments_under(model, arguments, data_facts.describe(arguments), change))
            ended.append((weights(model), updates(model)))
        (one, own), (two, changed) = ended
        found[f"{kind}, {rows} rows"] = {"updates": [own, changed], "difference": float(np.abs(one - two).max())}
    return found


def of_a_dictionary():
    keras.utils.set_random_seed(7)
    given = keras.Input((8,), name="a")
    model = keras.Model({"a": given}, keras.layers.Dense(1)(keras.layers.Dense(16, "tanh")(given)))
    model.compile("sgd", "mse")
    return model


@check
def a_second_fit():
    """An optimizer that has already trained is given another accumulation and keeps its slots."""
    make, wanted = OPTIMIZERS["scaled"], Batch(8, accumulation=4)
    own, changed = trained(make, Batch(32), 64), trained(make, Batch(32), 64)
    change = Change(config(), config(wanted))
    apply_to_model(changed, change)
    x, y = arrays(64)
    quiet_fit(own, x, y)
    quiet_fit(changed, x, y, batch_size=8)
    difference = float(np.abs(weights(own) - weights(changed)).max())
    return {"updates": [updates(own), updates(changed)], "difference": difference}


@check
def loss_scaling():
    """float16 with accumulation, which Keras rejects on the outer optimizer."""
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = trained(OPTIMIZERS["adamw"], Batch(8, accumulation=4), 64)
        return {"optimizer": type(model.optimizer).__name__, "updates": updates(model)}
    finally:
        keras.config.set_dtype_policy("float32")


def timed_fit(model, *, steps_per_execution=1, **arguments):
    model.steps_per_execution = steps_per_execution
    model.train_function = None
    series = TimedGroups(groups=3, group_seconds=0.03, max_seconds=20)
    timer = FitTimer(model, BACKEND, BACKEND.watch_compilation(), series, on_phase=lambda phase: None)
    model.fit(**arguments, epochs=10_000, verbose=0, callbacks=[timer])
    timer.detach()
    return {
        "counted": timer.total_micro_steps,
        "done": int(model.optimizer.iterations),
        "groups": len(timer.series.group_seconds),
        "first_call_seconds": timer.first_call_seconds,
        "compile_seconds": timer.compile_seconds,
        "recompilations": timer.recompilations,
    }


@check
def timing():
    x, y = arrays(300)  # ten micro-steps of 32 an epoch, the last one partial
    found = {"1": timed_fit(built(), x=x, y=y, batch_size=32)}
    if NAME != "torch":
        found["4"] = timed_fit(built(), steps_per_execution=4, x=x, y=y, batch_size=32)
        found["64"] = timed_fit(built(), steps_per_execution=64, x=x, y=y, batch_size=32)
    if NAME == "tensorflow":
        found["open"] = timed_fit(built(), steps_per_execution=4, x=open_ended(x, y))
    return found


def open_ended(x, y):
    """A pipeline of unknown length with ten batches."""
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices((x, y)).filter(lambda *_: True).batch(32)


@check
def pipelines():
    """A tf.data pipeline under another batch, only on TensorFlow."""
    if NAME != "tensorflow":
        return None
    import tensorflow as tf

    script, wanted = Batch(32), Batch(8, accumulation=4)
    x, y = arrays(80)
    found = {}
    for name, dataset in {
        "counted": tf.data.Dataset.from_tensor_slices((x, y)).batch(32),
        "open": tf.data.Dataset.from_tensor_slices((x, y)).filter(lambda *_: True).batch(32),
    }.items():
        models = []
        for batch in (script, wanted):
            change = Change(config(script), config(batch))
            model = built(OPTIMIZERS["sgd"]())
            apply_to_model(model, change)
            arguments = {"x": dataset, "epochs": 2, "verbose": 0}
            model.fit(**arguments_under(model, arguments, data_facts.describe(arguments), change))
            models.append(model)
        difference = float(np.abs(weights(models[0]) - weights(models[1])).max())
        found[name] = {"updates": [updates(model) for model in models], "difference": difference}
    return found


@check
def synchronizing():
    """Seconds to start a long computation, to wait for it, and then to read it."""

    def chain(x):
        for _ in range(6):
            x = keras.ops.matmul(x, x)
        return x

    program, operand = BACKEND.compiled(chain), keras.ops.full((1024, 1024), 1e-3)
    BACKEND.synchronize(program(operand))
    started = time.perf_counter()
    result = program(operand)
    dispatched = time.perf_counter()
    BACKEND.synchronize(result)
    waited = time.perf_counter()
    keras.ops.convert_to_numpy(result)
    return {
        "dispatch": dispatched - started,
        "done": waited - started,
        "read": time.perf_counter() - waited,
    }


@check
def eager():
    """Compilations of a model that runs eagerly."""
    watch = BACKEND.watch_compilation()
    model = built(run_eagerly=True)
    quiet_fit(model, *arrays(96))
    return {
        "compilations": watch.compilations,
        "read": script_config(model, facts(96), SeenCalls(), BACKEND).jit_compile,
    }


@check
def running_out_of_memory():
    """Allocations larger than any address space, by the backend and by NumPy, and other errors."""
    found = {}
    try:
        BACKEND.synchronize(keras.ops.ones((2**24, 2**24)))
    except Exception as error:  # noqa: BLE001 -- each backend raises its own
        found["real"] = [type(error).__name__, str(error)[:200], BACKEND.is_out_of_memory(error)]
    try:
        np.ones((2**24, 2**24))
    except MemoryError as error:
        found["numpy"] = BACKEND.is_out_of_memory(error)
    try:
        keras.ops.matmul(keras.ops.ones((2, 3)), keras.ops.ones((2, 3)))
    except Exception as error:  # noqa: BLE001 -- each backend raises its own
        found["shapes"] = BACKEND.is_out_of_memory(error)
    found["interrupt"] = BACKEND.is_out_of_memory(KeyboardInterrupt())
    for group, raising in memory_errors.GROUPS.items():
        found[group] = [BACKEND.is_out_of_memory(memory_errors.caught(one)) for one in raising]
    return found


@check
def compute_only():
    """A runner runs the requested micro-steps in whole executions, with the model's own function."""
    found = {}
    for executions in (1, 4) if NAME != "torch" else (1,):
        model = built(steps_per_execution=executions)
        x, y = arrays(128)
        quiet_fit(model, x, y)
        calls, function = [], model.train_function
        watch = BACKEND.watch_compilation()
        run = BACKEND.fixed_batch_runner(model, (x[:32], y[:32]))
        model.train_function = lambda *inputs, calls=calls, function=function: calls.append(1) or function(*inputs)
        run(8)
        found[str(executions)] = {"calls": len(calls), "compilations": watch.compilations}
    return found


@check
def program_memory():
    x, y = arrays(32)
    model = built()
    quiet_fit(model, x, y)
    return BACKEND.compiled_bytes(model, (x, y))


@check
def imported():
    return [name for name in ("jax", "tensorflow", "torch") if name in sys.modules]


def seen(function):
    started = time.perf_counter()
    try:
        return {"value": function(), "seconds": time.perf_counter() - started}
    except Exception:  # noqa: BLE001 -- the suite shows it
        return {"error": traceback.format_exc()}


FOUND = {}
for name, function in CHECKS.items():
    if name in sys.argv[2:]:
        continue
    FOUND[name] = seen(function)
    Path(sys.argv[1]).write_text(json.dumps(FOUND))  # each at once: a limit may end this process
