"""`autoplan train` in a process of its own: the script runs with the plan applied and is otherwise unchanged."""

import json
import subprocess
import sys
import textwrap
from contextlib import ExitStack

import pytest

from autoplan.jobs.client import Client
from autoplan.jobs.messages import Job, JobKind, Observation
from autoplan.plan import file
from autoplan.plan.records import Plan
from autoplan.sources import source
from tests.builders.plans import plain_plan
from tests.builders.slow import slow_among

pytestmark = pytest.mark.usefixtures("programs_are_kept")

SCRIPT = """
    import json, sys
    import keras, numpy as np
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy("float32")
    epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    x = np.random.default_rng(0).standard_normal((200, 8)).astype("float32")
    y = x[:, :1] * 2
    other = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(3)])
    other.compile("sgd", "mse")
    other.fit(x, np.zeros((200, 3)), batch_size=50, verbose=0)
    model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(16, "tanh"), keras.layers.Dense(1)])
    schedule = keras.optimizers.schedules.CosineDecay(0.1, 20)
    model.compile(keras.optimizers.SGD(schedule), "mse")
    history = model.fit(x, y, batch_size=32, epochs=epochs, verbose=0, validation_data=(x[:50], y[:50]))
    print(json.dumps({
        "losses": history.history["loss"], "iterations": int(model.optimizer.iterations),
        "micro_steps": int(model.optimizer._iterations), "policy": model.layers[0].compute_dtype,
        "kernels": len({str(v.value.sharding) for v in model.variables}),
        "devices": len(model.variables[0].value.sharding.device_set),
        "kernel": [int(n) for n in model.variables[0].value.sharding.shard_shape(model.variables[0].shape)],
        "validation": len(history.history["val_loss"]), "predictions": len(model.predict(x[:33], verbose=0)),
    }))
"""


HEAD = """
    import keras, numpy as np, sys
    keras.utils.set_random_seed(0)
    x = np.random.default_rng(0).standard_normal((128, 8)).astype("float32")
    y = x[:, :1] * 2
    def build():
        model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(16, "tanh"), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
        return model
    model = build()
    model.fit(x, y, batch_size=32, epochs=2, verbose=0, shuffle=False)
"""
TAIL = """
    import json
    print(json.dumps({"weights": [float(np.abs(w).sum()) for w in model.get_weights()],
                      "iterations": int(model.optimizer.iterations)}))
"""
LATER = {
    "the same model again": "model.fit(x, y, batch_size=32, epochs=2, verbose=0, shuffle=False)",
    "compiled again": "model.compile(model.optimizer, 'mse'); model.fit(x, y, batch_size=32, verbose=0, shuffle=False)",
    "another batch": "model.fit(x, y, batch_size=30, verbose=0, shuffle=False)",
    "fine-tuned": (
        "model.layers[0].trainable = False; model.compile('sgd', 'mse'); "
        "model.fit(x, y, batch_size=32, verbose=0, shuffle=False)"
    ),
    "another loss": (
        "model.compile(model.optimizer, lambda y, p: keras.ops.abs(keras.ops.max(y) - p)); "
        "model.fit(x, y, batch_size=32, verbose=0, shuffle=False)"
    ),
    "a generator": "model.fit(((x[:32], y[:32]) for _ in range(6)), steps_per_epoch=3, epochs=2, verbose=0)",
    "left by exit": "import atexit",
}
SIMILAR = {"compiled again", "another batch", "left by exit", "fine-tuned", "another loss", "a generator"}
"""Of these, others show the most."""


SAID = {
    "another batch": "fit 2: float32, batch 30, with the script's own batch; 5 updates",
    "fine-tuned": "fit 2: the tuned model with other trainable weights, neither tuned nor compared",
    "another loss": "fit 2 has another loss than the fit that was tuned, so it runs with its own batch",
}
"""What `train` says of a later fit."""

TWO_MODELS = """
    a = build()
    a.fit(x, y, batch_size=32, verbose=0, shuffle=False)
    b = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(4, "relu"), keras.layers.Dense(1)])
    b.compile("adam", "mse")
    b.fit(x, y, batch_size=32, epochs=2, verbose=0, shuffle=False)
    model = b
    sys.stderr.write(f"of a: {a.layers[0].compute_dtype}, of b: {b(x[:2]).dtype}\\n")
"""
CALLBACKS = """
    class MaxSteps(keras.callbacks.Callback):
        seen = 0
        def on_train_batch_end(self, batch, logs=None):
            self.seen += 1
            self.model.optimizer.learning_rate = 0.1 / self.seen
            if self.seen >= 6:
                self.model.stop_training = True
    counter = MaxSteps()
    model = build()
    model.fit(x, y, batch_size=32, epochs=4, verbose=0, shuffle=False, callbacks=[counter])
    sys.stderr.write(f"calls: {counter.seen}, own hooks: {sorted(vars(counter).keys() & vars(MaxSteps).keys())}\\n")
"""
OWN_OPTIMIZERS = """
    import tensorflow as tf
    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            self.net = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(1)])
        def call(self, x):
            return self.net(x)
        def compile(self, slow, fast):
            super().compile()
            self.slow, self.fast = slow, [fast]
        def train_step(self, data):
            x, y = data
            for optimizer in (*self.fast, *self.fast, self.slow):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((self.net(x, training=True) - y) ** 2)
                w = self.net.trainable_weights
                optimizer.apply_gradients(zip(tape.gradient(loss, w), w))
            return {"loss": loss}
    model = Net()
    model.compile(keras.optimizers.SGD(0.1), keras.optimizers.Adam())
    model.fit(x, y, batch_size=32, epochs=2, verbose=0)
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("training") / "train.py"
    path.write_text(textwrap.dedent(SCRIPT))
    return path


@pytest.fixture(scope="module")
def observed():
    """Observe a fit of a script, in a worker server for each backend."""
    with ExitStack() as clients:
        opened = {}

        def ask(path, backend="jax", fit=1):
            if backend not in opened:
                opened[backend] = clients.enter_context(Client(backend))
            job = Job(kind=JobKind.OBSERVE, source=source.resolve(str(path), fit_index=fit), backend=backend)
            return Observation.model_validate(opened[backend].run(job, time_limit_seconds=120).value)

        yield ask


@pytest.fixture(scope="module")
def observation(script, observed):
    return observed(script, fit=2)


def plan_for(observation, tmp_path, *, simulated_devices=None, structure=None, numerics="exact", **changes):
    plain = plain_plan()
    plain["verification"]["numerics"] = numerics
    plain["source"]["fit"] |= {"index": 2, "structure": structure or observation.structure}
    plain["baseline"]["config"] = observation.config
    plain["config"] = {**observation.config.to_dict(), **changes}
    plain["hardware"] |= {"simulated": simulated_devices is not None, "devices": simulated_devices or 1}
    return file.write(Plan.model_validate(plain), tmp_path / "plan.yaml")


def batch(global_size, accumulation, data=1):
    return {
        "local": global_size // data,
        "global": global_size,
        "accumulation": accumulation,
        "effective": global_size * accumulation,
    }


@pytest.fixture
def train(forked):
    def run(script, plan, *arguments, cwd):
        words = ["-m", "autoplan.runtime", "train", "--plan", str(plan), "--fit", "2", str(script), "--", *arguments]
        return forked(words, cwd)

    return run


def printed(finished):
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def alone(script, forked):
    """Run the script without autoplan."""
    return printed(forked([str(script)], script.parent))


def test_accumulation_trains_the_same_and_says_which_fit(script, observation, alone, tmp_path, train):
    finished = train(script, plan_for(observation, tmp_path, batch=batch(8, 4)), cwd=tmp_path)
    found = printed(finished)
    assert found["iterations"] == alone["iterations"] == 14
    assert found["micro_steps"] == 4 * alone["micro_steps"]
    assert found["losses"] == pytest.approx(alone["losses"], rel=1e-2)  # a padded batch counts whole in Keras's mean
    assert (
        "fit 1: another model, or other trainable weights, neither tuned nor compared; as in the script"
        in finished.stderr
    )
    assert "fit 2: float32, batch 8, accumulation 4; 14 updates" in finished.stderr
    assert "which changes the training" not in finished.stderr
    assert "different results" not in finished.stderr


def test_another_effective_batch_is_logged(script, observation, tmp_path, train):
    plan = plan_for(observation, tmp_path, numerics="outside", batch=batch(100, 1))
    finished = train(script, plan, cwd=tmp_path)
    assert printed(finished)["iterations"] == 4
    first = finished.stderr.partition("autoplan: ")[2].splitlines()[0]
    assert first.startswith("the plan was made with a warning: Training gives different results than with the baseline")
    assert "fit 2: an update has 100 samples instead of 32, which changes the training" in finished.stderr


@pytest.mark.slow
def test_without_the_memory_setting_the_rest_of_the_plan_is_applied(script, observation, tmp_path):
    plan = plan_for(observation, tmp_path, batch=batch(8, 4), keep_freed_memory=True)
    words = ["train", "--plan", str(plan), "--fit", "2", str(script)]
    code = f"""
import sys
from autoplan.machine import processes
processes.can_keep_freed_memory = lambda: False
from autoplan.runtime.__main__ import main
sys.exit(main({words!r}))
"""
    finished = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert printed(finished)["iterations"] == 14
    assert finished.stderr.count("autoplan: keep_freed_memory cannot be set to true: this system has a C library ") == 1


def test_a_mesh_trains_the_same_on_simulated_devices(script, observation, alone, tmp_path, train):
    plan = plan_for(
        observation, tmp_path, simulated_devices=4, mesh={"data": 4, "model": 1}, batch=batch(32, 1, data=4)
    )
    found = printed(train(script, plan, cwd=tmp_path))
    assert found["devices"] == 4
    assert found["losses"] == pytest.approx(alone["losses"], rel=1e-5)
    assert (found["validation"], found["predictions"]) == (2, 33)


@pytest.mark.slow
def test_sharded_state_trains_the_same_with_a_share_of_the_weights_on_each_device(
    script, observation, alone, tmp_path, train
):
    plan = plan_for(
        observation,
        tmp_path,
        simulated_devices=4,
        mesh={"data": 4, "model": 1},
        layout={"shard_state": True},
        batch=batch(32, 1, data=4),
    )
    found = printed(train(script, plan, cwd=tmp_path))
    assert (alone["kernel"], found["kernel"]) == ([8, 16], [8, 4])
    assert found["losses"] == pytest.approx(alone["losses"], rel=1e-5)
    assert (found["validation"], found["predictions"]) == (2, 33)


@pytest.mark.slow
def test_the_scripts_own_policy_does_not_undo_the_plan(script, observation, tmp_path, train):
    finished = train(script, plan_for(observation, tmp_path, precision="mixed_bfloat16"), cwd=tmp_path)
    assert printed(finished)["policy"] == "bfloat16"
    assert "the plan overrides the script's own set_dtype_policy('float32')" in finished.stderr


@pytest.mark.slow
def test_arguments_reach_the_script_and_programs_are_cached(script, observation, tmp_path, monkeypatch):
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    words = [
        "-m",
        "autoplan.runtime",
        "train",
        "--plan",
        str(plan_for(observation, tmp_path)),
        "--fit",
        "2",
        str(script),
    ]
    command = [sys.executable, *words, "--", "3"]
    first, second = (
        subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240) for _ in range(2)
    )
    assert len(printed(first)["losses"]) == 3
    assert "compilation cache: 0 hits" in first.stderr
    assert "compilation cache: 0 hits" not in second.stderr


@pytest.fixture(scope="module")
def first_fit(tmp_path_factory, observed):
    """The observation of the fit that all scripts beginning with HEAD have first."""
    path = tmp_path_factory.mktemp("first") / "train.py"
    path.write_text(textwrap.dedent(HEAD))
    return observed(path)


@pytest.fixture
def trained_under(observed, forked):
    """Train a script under a plan with changes to its own settings, which are observed unless given."""

    def run(path, *, own=None, devices=1, backend="jax", fit=1, **changes):
        own = own or observed(path, backend, fit)
        plain = plain_plan()
        plain["source"]["fit"] |= {"index": fit, "structure": own.structure, "losses": own.losses}
        plain["environment"]["python"] = own.environment["python"]
        plain["baseline"]["config"] = own.config
        plain["config"] = {**own.config.to_dict(), **changes}
        plain["hardware"] |= {"simulated": devices > 1, "devices": devices}
        plan = file.write(Plan.model_validate(plain), path.parent / "plan.yaml")
        words = ["-m", "autoplan.runtime", "train", "--plan", str(plan), str(path)]
        if backend == "jax":
            return forked(words, path.parent)
        return subprocess.run([sys.executable, *words], cwd=path.parent, capture_output=True, text=True, timeout=240)

    return run


@pytest.mark.parametrize("later", slow_among(LATER, SIMILAR))
@pytest.mark.parametrize("devices", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_later_fits_train_with_the_scripts_own_batch(first_fit, tmp_path, later, devices, trained_under, forked):
    """Under accumulation and on a mesh, later fits of a script give the same weights as without a plan."""
    ending = "\n    sys.exit(0)\n" if later == "left by exit" else ""
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(HEAD + f"    {LATER[later]}\n" + TAIL + ending))
    alone = printed(forked([str(path)], path.parent))
    mesh = {"data": devices, "model": 1}
    finished = trained_under(path, own=first_fit, devices=devices, mesh=mesh, batch=batch(8, 4, data=devices))
    found = printed(finished)
    assert found["iterations"] == alone["iterations"]
    assert found["weights"] == pytest.approx(alone["weights"], rel=1e-5)
    assert "fit 1: float32, batch 8, accumulation 4" in finished.stderr
    if later in SAID:
        assert SAID[later] in finished.stderr


BEFORE = """
    model = build()
    model.compile(keras.optimizers.SGD(0.1), lambda y, p: keras.ops.abs(keras.ops.max(y) - p))
    model.fit(x, y, batch_size=32, verbose=0, shuffle=False)
    model.compile(keras.optimizers.SGD(0.1), "mse")
    model.fit(x, y, batch_size=32, verbose=0, shuffle=False)
"""
"""The first fit has a loss that another split of an update would change."""


@pytest.fixture
def written(tmp_path):
    """Write a script with the data and `build` of HEAD, but with other fits."""

    def write(code, ending=""):
        head = HEAD.partition("    model = build()")[0]
        (tmp_path / "train.py").write_text(textwrap.dedent(head + code + ending))
        return tmp_path / "train.py"

    return write


def test_a_fit_before_the_tuned_one_keeps_its_batch_if_its_loss_is_another(written, trained_under, forked):
    path = written(BEFORE, TAIL)
    alone = printed(forked([str(path)], path.parent))
    finished = trained_under(path, fit=2, batch=batch(8, 4))
    assert printed(finished)["weights"] == pytest.approx(alone["weights"], rel=1e-5)
    assert "fit 1 has another loss than the fit that was tuned, so it runs with its own batch" in finished.stderr
    assert "fit 2: float32, batch 8, accumulation 4" in finished.stderr


def test_a_second_model_trains_in_its_own_precision(written, trained_under, forked):
    path = written(TWO_MODELS, TAIL)
    alone = printed(forked([str(path)], path.parent))
    finished = trained_under(path, precision="mixed_bfloat16")
    assert printed(finished) == alone
    assert "of a: bfloat16, of b: float32" in finished.stderr
    assert "fit 1: mixed_bfloat16, batch 32" in finished.stderr
    assert "fit 2: another model, or other trainable weights, neither tuned nor compared; as in the script" in (
        finished.stderr
    )


@pytest.mark.slow
def test_a_mesh_holds_for_a_second_model_and_train_says_so(written, trained_under):
    mesh = {"data": 2, "model": 1}
    finished = trained_under(written(TWO_MODELS), devices=2, mesh=mesh, batch=batch(32, 1, data=2))
    assert finished.returncode == 0, finished.stderr
    assert "neither tuned nor compared; mesh data 2 holds for it too" in finished.stderr


def test_a_callback_that_stops_after_a_number_of_batches_stops_at_the_same_update(written, trained_under, forked):
    path = written(CALLBACKS, TAIL)
    alone = printed(forked([str(path)], path.parent))
    finished = trained_under(path, batch=batch(8, 4))
    found = printed(finished)
    assert found["iterations"] == alone["iterations"] == 6
    assert found["weights"] == pytest.approx(alone["weights"], rel=1e-5)
    assert "calls: 6, own hooks: ['seen']" in finished.stderr
    assert "batch hooks of MaxSteps" not in finished.stderr


@pytest.mark.slow
def test_fewer_calls_of_a_callback_are_logged(written, trained_under):
    finished = trained_under(written(CALLBACKS), steps_per_execution=4)
    assert (
        "fit 1: batch hooks of MaxSteps (changes the training: learning_rate, stop_training) are called 1 times per"
        in (finished.stderr)
    )


@pytest.mark.slow
def test_updates_of_a_models_own_optimizers_are_counted(written, trained_under):
    finished = trained_under(written(OWN_OPTIMIZERS), backend="tensorflow", jit_compile=False)
    assert finished.returncode == 0, finished.stderr
    assert "fit 1: tensorflow, float32, batch 32, jit_compile off; 8 updates by slow and 16 updates by fast[0]" in (
        finished.stderr
    )


def test_a_plan_for_another_model_is_rejected(script, observation, tmp_path, train):
    finished = train(script, plan_for(observation, tmp_path, structure="ab" * 32), cwd=tmp_path)
    assert finished.returncode == 2
    assert "the plan is for another model, from train.py: fit 2 of" in finished.stderr
    assert "Traceback" not in finished.stderr


def test_a_mesh_that_is_larger_than_the_machine_is_rejected(script, observation, tmp_path, train):
    plan = plan_for(observation, tmp_path, mesh={"data": 16, "model": 1}, batch=batch(32, 1, data=16))
    finished = train(script, plan, cwd=tmp_path)
    assert finished.returncode == 2
    assert "needs 16 devices" in finished.stderr
