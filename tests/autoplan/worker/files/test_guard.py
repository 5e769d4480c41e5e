"""Callbacks of real fits that write in different ways, in one process that watches them.

An audit hook stays, so all tests share one guard.
"""

import logging
import os
import threading
import time

import h5py
import keras
import numpy as np
import pytest

from autoplan.machine.kept_files import KeptFiles, put_back
from autoplan.worker.files.guard import CallbackWrites, OverwriteRefused, WriteGuard

GUARD = WriteGuard([])
GUARD.install()


class Hook(keras.callbacks.Callback):
    """Runs a function at one of its hooks."""

    def __init__(self, function, hook="on_train_batch_end"):
        super().__init__()
        setattr(self, hook, lambda *_, **__: function(self))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kept.txt").write_text("of the real training")
    time.sleep(0.02)  # so that the clock of the file system has moved
    monkeypatch.setattr(GUARD, "_began", time.time())
    time.sleep(0.02)
    GUARD.before_fit.clear()
    GUARD.during_fit.clear()
    return tmp_path


def fit(*callbacks, data=None):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x, y = (np.zeros((8, 2)), np.zeros((8, 1))) if data is None else (data, None)
    GUARD.forget_refused()
    with GUARD.fit(callbacks):
        model.fit(x, y, batch_size=None if data is not None else 4, verbose=0, callbacks=list(callbacks))
        GUARD.raise_refused()


def handled(self):
    try:
        open("kept.txt", "w").close()
    except Exception:
        pass


WRITERS = {
    "open": lambda self: open("kept.txt", "w").close(),
    "append": lambda self: open("kept.txt", "a").close(),
    "pathlib": lambda self: (self.model and None, __import__("pathlib").Path("kept.txt").write_text("1")),
    "numpy": lambda self: np.save("kept.npy", np.zeros(3)),
    "remove": lambda self: os.remove("kept.txt"),
    "rename": lambda self: os.replace("kept.txt", "other.txt"),
    "folder": lambda self: os.makedirs("logs/a"),
    "hdf5": lambda self: h5py.File("kept.txt", "w"),
    "weights": lambda self: self.model.save_weights("new.weights.h5"),
    "handled": handled,
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_callback_is_stopped_before_it_writes(folder, name):
    with pytest.raises(CallbackWrites) as found:
        fit(keras.callbacks.EarlyStopping("loss"), Hook(WRITERS[name]))
    assert found.value.position == 1
    assert sorted(one.name for one in folder.iterdir()) == ["kept.txt"]
    assert (folder / "kept.txt").read_text() == "of the real training"


@pytest.mark.parametrize("hook", ["on_train_begin", "on_epoch_end", "on_train_end"])
def test_every_hook_is_watched(folder, hook):
    with pytest.raises(CallbackWrites, match=r"callback 0 writes new\.txt"):
        fit(Hook(lambda self: open("new.txt", "w").close(), hook))


def test_a_function_that_a_callback_was_given_is_watched(folder):
    with pytest.raises(CallbackWrites):
        fit(keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: open("new.txt", "w").close()))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_of_a_callback_is_watched(folder):
    class InThread(keras.callbacks.Callback):
        def write(self):
            open("kept.txt", "w").close()

        def on_train_batch_end(self, batch, logs=None):
            thread = threading.Thread(target=self.write)
            thread.start()
            thread.join()

    with pytest.raises(CallbackWrites):
        fit(InThread())
    assert (folder / "kept.txt").read_text() == "of the real training"


@pytest.mark.parametrize(
    "harmless",
    [
        lambda self: None,
        lambda self: open("kept.txt").close(),
        lambda self: open(os.devnull, "w").close(),
        lambda self: os.makedirs(".", exist_ok=True),
    ],
)
def test_a_callback_that_writes_no_file_runs(folder, harmless):
    fit(Hook(harmless))


def test_a_file_that_a_callback_opened_before_the_fit_is_redirected(folder):
    opened = []

    class Early(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.file = open("kept.txt", "a")
            opened.append(self.file)

        def on_train_batch_end(self, batch, logs=None):
            self.file.write("line\n")
            self.file.flush()

    fit(Early())
    opened[0].close()
    assert (folder / "kept.txt").read_text() == "of the real training"
    assert list(GUARD.before_fit) == ["kept.txt"]


def test_a_log_file_of_the_script_is_redirected(folder):
    handler = logging.FileHandler("kept.txt")
    logger = logging.getLogger("test_guard")
    logger.addHandler(handler)
    fit(Hook(lambda self: logger.warning("a line")))
    logger.removeHandler(handler)
    handler.close()
    assert (folder / "kept.txt").read_text() == "of the real training"


class Data(keras.utils.PyDataset):
    def __init__(self, write):
        super().__init__()
        self.write = write

    def __len__(self):
        return 2

    def __getitem__(self, index):
        self.write()
        return np.zeros((4, 2)), np.zeros((4, 1))


def test_data_may_create_a_file_and_write_it_again(folder):
    fit(data=Data(lambda: np.save("cache.npy", np.zeros(2))))
    assert list(GUARD.during_fit) == ["cache.npy"]
    assert (folder / "cache.npy").exists()


def test_data_may_replace_a_file_that_is_put_back(folder, tmp_path_factory, monkeypatch):
    temporary = tmp_path_factory.mktemp("job")
    monkeypatch.setattr(GUARD, "_kept", KeptFiles(temporary))
    fit(data=Data(lambda: open("kept.txt", "w").close()))
    assert GUARD.during_fit == {"kept.txt": True}
    assert (folder / "kept.txt").read_text() == ""
    assert put_back(temporary) == [folder / "kept.txt"]
    assert (folder / "kept.txt").read_text() == "of the real training"


def test_data_may_not_replace_a_file_that_cannot_be_put_back(folder):
    with pytest.raises(OverwriteRefused, match=r"kept\.txt would be replaced"):
        fit(data=Data(lambda: open("kept.txt", "w").close()))
    assert (folder / "kept.txt").read_text() == "of the real training"


def test_what_a_script_writes_before_its_fit_is_recorded_and_allowed(folder):
    (folder / "results").mkdir()
    (folder / "results" / "settings.json").write_text("{}")
    assert list(GUARD.before_fit) == ["results/settings.json"]
