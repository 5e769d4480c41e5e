"""A training loop of a script's own is seen in its text, and in that of the modules beside it."""

import sys
import threading
import time

import pytest

from autoplan.sources import source
from autoplan.worker import custom_loops


@pytest.fixture
def script(tmp_path, monkeypatch):
    def write(text, helper=None):
        (tmp_path / "train.py").write_text(text)
        if helper is not None:
            path = tmp_path / "beside.py"
            path.write_text(helper)
            module = type(sys)("beside")
            module.__file__ = str(path)
            monkeypatch.setitem(sys.modules, "beside", module)
        return source.resolve(str(tmp_path / "train.py"))

    return write


def test_loops_are_named(script):
    spec = script("for x in data:\n    model.train_on_batch(x)\n    with tf.GradientTape() as tape: pass\n")
    assert custom_loops.own_loops(spec) == ["train_on_batch", "GradientTape"]
    assert not custom_loops.may_fit(spec)


def test_modules_beside_the_script_count(script):
    spec = script("import beside\n", "loss.backward()\nmodel.fit(x)\n")
    assert custom_loops.own_loops(spec) == ["backward"]
    assert custom_loops.may_fit(spec)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("model.train_on_batch(x)\n", True),
        ("model.train_on_batch(x)\nmodel.fit(x)\n", False),
        ("x = load()\n", False),
    ],
)
def test_a_loop_is_told_after_a_while_unless_a_fit_may_come(script, text, told):
    heard = threading.Event()
    with custom_loops.LoopWatch(script(text), heard.set, 0.05) as watch:
        watch._timer.join(timeout=10)
    assert heard.is_set() is told


def test_a_watch_that_is_cancelled_says_nothing(script):
    heard = threading.Event()
    with custom_loops.LoopWatch(script("model.train_on_batch(x)\n"), heard.set, 0.3) as watch:
        watch.cancel()
        time.sleep(0.5)
    assert not heard.is_set()
