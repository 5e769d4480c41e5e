"""Custom training loops are found in the text of a script and of the modules beside it."""

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


def test_functions_of_custom_loops_are_found(script):
    spec = script("for x in data:\n    model.train_on_batch(x)\n    with tf.GradientTape() as tape: pass\n")
    assert custom_loops.custom_loop_functions(spec) == ["train_on_batch", "GradientTape"]
    assert not custom_loops.contains_fit(spec)


def test_modules_beside_the_script_are_searched(script):
    spec = script("import beside\n", "loss.backward()\nmodel.fit(x)\n")
    assert custom_loops.custom_loop_functions(spec) == ["backward"]
    assert custom_loops.contains_fit(spec)


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("model.train_on_batch(x)\n", True),
        ("model.train_on_batch(x)\nmodel.fit(x)\n", False),
        ("x = load()\n", False),
    ],
)
def test_a_loop_is_reported_after_a_while_unless_the_script_contains_fit(script, text, reported):
    heard = threading.Event()
    with custom_loops.LoopWatch(script(text), heard.set, 0.05) as watch:
        watch.timer.join(timeout=10)
    assert heard.is_set() is reported


def test_a_cancelled_watch_reports_nothing(script):
    heard = threading.Event()
    with custom_loops.LoopWatch(script("model.train_on_batch(x)\n"), heard.set, 0.3) as watch:
        watch.cancel()
        time.sleep(0.5)
    assert not heard.is_set()


@pytest.mark.parametrize(
    ("text", "again"),
    [
        ("scaler.fit(x, y)\nmodel.fit(x, y, epochs=3)\n", False),
        ("a.fit(x, y, epochs=3)\nb.fit(x, y, batch_size=8)\n", True),
        ("for fold in folds:\n    build().fit(x, y, verbose=0)\n", True),
        ("def main():\n    model.fit(x, callbacks=[])\nfor x in y: pass\n", False),
    ],
    ids=["another library", "two", "loop", "one"],
)
def test_further_calls_of_fit_are_found(script, text, again):
    assert custom_loops.may_fit_again(script(text)) is again


def test_calls_of_fit_in_modules_beside_the_script_count(script):
    assert custom_loops.may_fit_again(script("a.fit(x, epochs=1)\n", "def more(b):\n    b.fit(x, epochs=2)\n"))
