import subprocess
import sys
import textwrap
from types import SimpleNamespace

import pytest

import autoplan
import autoplan.errors
import autoplan.plan.file
import autoplan.plan.records
from autoplan import planner
from autoplan.tuning.request import Event
from tests.builders.slow import slow


def test_every_public_name_is_there_and_is_what_its_home_says():
    assert autoplan.Plan is autoplan.plan.records.Plan
    assert autoplan.Measurement is autoplan.plan.records.Measurement
    assert autoplan.Failure is autoplan.plan.records.Failure
    assert autoplan.AutoplanError is autoplan.errors.AutoplanError
    assert autoplan.load_plan is autoplan.plan.file.load_plan
    assert all(
        callable(getattr(autoplan, name)) for name in ("optimize", "compare", "rebuild", "scope", "compile", "fit")
    )


def test_dir_lists_exactly_the_public_names():
    assert dir(autoplan) == sorted(autoplan.__all__)
    assert all(hasattr(autoplan, name) for name in autoplan.__all__)


def test_an_unknown_name_is_told_with_the_known_ones():
    with pytest.raises(AttributeError, match=r"no attribute 'optimise'; it offers .*optimize"):
        _ = autoplan.optimise


def test_asking_for_a_plan_imports_no_framework():
    code = (
        "import sys, autoplan; autoplan.load_plan; autoplan.Plan; print({'keras', 'jax', 'optuna'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "set()\n", done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"builder": 3}, "the builder is a int"),
        ({"builder": "no-such-script.py"}, "there is no file no-such-script.py"),
        ({"builder": dict, "budget": "soon"}, "soon: expected a time with units"),
        ({"builder": dict, "effective_batch": "big"}, "big: expected keep"),
        ({"builder": dict, "hardware": "tpu-v99-8"}, "tpu-v99"),
        ({"builder": dict, "memory_limit": "2"}, "2: expected a size with a unit"),
        ({"builder": dict, "hardware": [1, 2]}, r"the hardware is a list; .* optimize\(model, \(x, y\)\)"),
    ],
)
def test_bad_input_is_an_error_of_the_tree(arguments, message):
    with pytest.raises(autoplan.AutoplanError, match=message):
        autoplan.optimize(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"builder": 3}, "the builder is a int"),
        ({"builder": "no-such-script.py"}, "there is no file no-such-script.py"),
        ({"builder": dict, "hardware": "tpu-v99-8"}, "unknown hardware 'tpu-v99-8'"),
        ({"builder": dict, "hardware": 3.0}, r"not a float. Data are one argument: compare\(model, \(x, y\)\)"),
        ({"builder": dict, "family": ["tpus"]}, "unknown family 'tpus'"),
        ({"builder": dict, "evidence": "measured"}, "evidence measured: expected one of analytic, compiled"),
    ],
)
def test_bad_input_of_compare_is_an_error_of_the_tree(arguments, message):
    with pytest.raises(autoplan.AutoplanError, match=message):
        autoplan.compare(**arguments)


@pytest.fixture
def stages(tmp_path, monkeypatch):
    """Let tuning and comparing tell one stage and return at once; returns a script."""

    def tell(request, watch):
        watch(Event("stage", "inspecting the training"))
        return SimpleNamespace(plan="the plan")

    monkeypatch.setattr(planner, "tune", tell)
    monkeypatch.setattr(planner, "compare", tell)
    script = tmp_path / "train.py"
    script.write_text("import keras\n")
    return str(script)


@pytest.mark.parametrize("call", [autoplan.optimize, autoplan.compare])
def test_stages_are_printed_on_stderr_unless_they_are_watched_or_unwanted(stages, capsys, call):
    call(stages)
    out, err = capsys.readouterr()
    assert (out, err) == ("", "[0 s]  inspecting the training\n")
    seen = []
    call(stages, watch=seen.append)
    call(stages, verbose=0)
    call(stages, watch=seen.append, verbose=0)
    assert capsys.readouterr() == ("", "")
    assert [event.text for event in seen] == ["inspecting the training"] * 2


BY_MAIN = """
    import autoplan
    import keras
    import numpy as np

    class Scale(keras.layers.Layer):
        def build(self, shape):
            self.factor = self.add_weight(shape=(shape[-1],), initializer="ones")
        def call(self, x):
            return x * self.factor

    def build_model():
        model = keras.Sequential([keras.Input((16,)), Scale(), keras.layers.Dense(1)])
        model.compile(optimizer="adam", loss="mse")
        return model

    x = np.ones((1024, 16), "float32")
    plan = autoplan.optimize(build_model, (x, x[:, :1]), hardware="tpu-v4-8", headroom=0.1)
    print(plan.evidence.value, plan.source.kind, plan.source.fit.samples, plan.hardware.name)
    found = autoplan.compare(build_model, (x, x[:, :1]), ["gpu-t4", "tpu-v4-8"])
    print(sorted((row.hardware, row.verdict.value, row.config.batch.effective) for row in found.rows))
"""


@pytest.mark.slow
def test_a_builder_of_main_with_a_layer_of_its_own_is_planned(tmp_path):
    """Nothing is measured for hardware that is not here; a worker rebuilds the model, and XLA:TPU compiles it."""
    (tmp_path / "notebook.py").write_text(textwrap.dedent(BY_MAIN))
    done = subprocess.run([sys.executable, "notebook.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "compiled callable 1024 tpu-v4-8",
        "[('gpu-t4', 'trains', 32), ('tpu-v4-8', 'trains', 32)]",
    ], done.stderr


LIVE = """
    import sys
    print("the script runs")
    import keras, numpy as np
    import autoplan
    from autoplan.tuning.trials import runner
    from autoplan.tuning.verification import verifier

    runner.MEASURED = verifier.LONGER = verifier.BRIEF = {"groups": 3, "group_seconds": 0.05}

    class Scale(keras.layers.Layer):
        def __init__(self, power):
            super().__init__()
            self.power = power
        def build(self, shape):
            self.factor = self.add_weight(shape=(shape[-1],), initializer="ones")
        def call(self, x):
            return GAIN * x * self.factor**self.power

    GAIN = 0.5

    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            self.scale, self.head = Scale(2), keras.layers.Dense(1)
        def call(self, x):
            return self.head(self.scale(x))

    inputs = keras.Input((8,))
    functional = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Dense(8)(Scale(2)(inputs))))
    sequential = keras.Sequential([keras.Input((8,)), Scale(2), keras.layers.Dense(8), keras.layers.Dense(1)])
    x = np.random.default_rng(0).normal(size=(256, 8)).astype("float32")
    models = {"functional": functional, "sequential": sequential, "subclassed": Net()}
    for model in [models[sys.argv[1]]]:
        model.compile("adam", "mse")
        model.fit(x, x[:, :1], verbose=0)
        own = model.predict(x, verbose=0)
        plan = autoplan.optimize(model, (x, x[:, :1]), trials=2, only=["batch"])
        rebuilt = autoplan.rebuild(plan, model)
        equal = np.array_equal(rebuilt.predict(x, verbose=0), own)
        autoplan.fit(plan, rebuilt, x, x[:, :1], verbose=0)
        measured = sum(trial.outcome == "measured" for trial in plan.trials)
        updates = int(rebuilt.optimizer.iterations)
        print(plan.evidence.value, plan.source.kind, measured, equal, rebuilt is model, updates)
"""


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("kind", "is_the_same"), [("functional", False), *slow(("sequential", False), ("subclassed", True))]
)
def test_live_models_with_a_layer_of_main_are_tuned_and_rebuilt(tmp_path, kind, is_the_same):
    (tmp_path / "notebook.py").write_text(textwrap.dedent(LIVE))
    done = subprocess.run([sys.executable, "notebook.py", kind], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["the script runs", f"measured instance 2 True {is_the_same} 16"], done.stderr
