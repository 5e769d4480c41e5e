"""Worker processes answer, fail as values, keep to their limits, and are gone afterwards."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest

from autoplan.errors import NeverFits, ScriptFailed, WorkerError
from autoplan.jobs.client import Client
from autoplan.jobs.messages import Job, JobKind
from autoplan.plan.records import FailureKind, Measurement
from autoplan.sources import source
from tests.builders.slow import slow

QUICK = {"groups": 3, "group_seconds": 0.05, "max_seconds": 20}

BODY = """
    import keras, numpy as np
    x = np.random.rand(256, 8).astype("float32")
    model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(4), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
"""
EMPTY = """
class Empty(keras.utils.PyDataset):
    def __len__(self): return 0
    def __getitem__(self, index): raise IndexError
model.fit(Empty())
"""
FIT = "model.fit(x, x[:, :1], batch_size=32, epochs=2, verbose=0)\n"


@pytest.fixture(scope="module")
def client():
    with Client() as one:
        yield one


@pytest.fixture
def script(tmp_path):
    def write(before="", body=BODY, after=FIT):
        path = tmp_path / "train.py"
        path.write_text(textwrap.dedent(before) + textwrap.dedent(body) + textwrap.dedent(after))
        return source.resolve(str(path))

    return write


def run(client, spec, kind=JobKind.MEASURE, *, seconds=60, options=QUICK, **more):
    return client.run(Job(kind=kind, source=spec, options=options), time_limit_seconds=seconds, **more)


def descendants():
    return {child.pid for child in psutil.Process().children(recursive=True)}


def test_a_script_is_measured_and_leaves_at_its_fit(client, script, tmp_path):
    marker = tmp_path / "after_fit"
    result = run(client, script(after=FIT + f"open({str(marker)!r}, 'w')\n"))
    found = Measurement.model_validate(result.value)
    assert found.groups >= 3
    assert 0 < found.micro_step_seconds_low <= found.micro_step_seconds <= found.micro_step_seconds_high
    assert found.samples_per_second == pytest.approx(32 / found.micro_step_seconds)
    assert found.first_step_seconds > found.compile_seconds > 0
    assert not marker.exists()
    assert {"setup", "compile", "measure"} <= set(result.phases)


@pytest.mark.slow
def test_a_moving_average_of_weights_can_be_timed_without_input(client, script):
    body = BODY.replace('"sgd"', "keras.optimizers.SGD(0.1, use_ema=True)")
    assert run(client, script(body=body)).value["compute_micro_step_seconds"] > 0


def test_trials_are_told_that_they_are_trials(client, script):
    result = run(client, script(before="import os\nassert os.environ['AUTOPLAN_TRIAL'] == '1'\n"))
    assert result.failure is None


def test_what_keras_writes_in_bold_is_told_plainly(client, script):
    before = """
        import keras
        class Fails(keras.layers.Layer):
            def call(self, inputs):
                raise TypeError("no such input")
        Fails()(keras.Input((3,)))
    """
    with pytest.raises(ScriptFailed, match="Exception encountered when calling") as caught:
        run(client, script(before=before), JobKind.OBSERVE)
    assert "\x1b" not in str(caught.value)


def test_figures_of_trials_open_no_window(client, script):
    result = run(client, script(before="import os\nassert os.environ['MPLBACKEND'] == 'Agg'\n"))
    assert result.failure is None


def test_a_script_that_fails_by_itself_is_told_with_its_own_frames(client, script):
    spec = script(after="def deep():\n    raise ValueError('no such column')\ndeep()\n")
    with pytest.raises(ScriptFailed) as caught:
        run(client, spec, JobKind.OBSERVE)
    message = str(caught.value)
    assert "ValueError: no such column" in message
    assert "train.py" in message
    assert "runpy" not in message
    assert "autoplan/" not in message


def test_a_script_that_ends_itself_is_told_with_what_it_said(client, script, tmp_path):
    arguments = """
    import argparse
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.parse_args()
    """
    with pytest.raises(ScriptFailed, match=r"(?s)exited with code 2 before its fit.*arguments are required: --data"):
        run(client, script(before=arguments), JobKind.OBSERVE, log=tmp_path / "log")
    with pytest.raises(ScriptFailed, match=r"called sys\.exit before its fit: no data here"):
        run(client, script(before="import sys\nsys.exit('no data here')\n"), JobKind.OBSERVE)


def test_a_script_without_fit_is_told_so(client, script):
    with pytest.raises(NeverFits, match=r"ended without calling model\.fit"):
        run(client, script(after=""), JobKind.OBSERVE)
    with pytest.raises(NeverFits, match=r"custom loop \(train_on_batch\).*autoplan\.measure\(step, batch\)"):
        run(client, script(after="for _ in range(3): model.train_on_batch(x, x[:, :1])\n"), JobKind.OBSERVE)


def test_a_loop_that_takes_days_is_told_before_its_end(client, script):
    loop = "import time\nwhile True: model.train_on_batch(x, x[:, :1]); time.sleep(0.1)\n"
    with pytest.raises(NeverFits, match="with a custom loop"):
        run(client, script(after=loop), JobKind.OBSERVE, options={"loop_patience_seconds": 1.0})


@pytest.mark.parametrize(
    ("before", "fit", "message"),
    [
        (
            "model = keras.Sequential([keras.layers.Dense(1)])\n",
            FIT,
            r"fit 1 of .*train\.py trains a model that is not compiled",
        ),
        ("", FIT.replace("=32", "=0"), r"fit 1 of .*train\.py has batch_size=0; expected a whole number of at least 1"),
        ("x = x[:0]\n", FIT, r"fit 1 of .*train\.py has no samples to train on; expected data with at least one"),
        *slow(
            ("x = x[:1]\n", FIT.replace("verbose", "validation_split=0.5, verbose"), "has no samples to train on"),
            (
                "import tensorflow as tf\n",
                "model.fit(tf.data.Dataset.from_tensor_slices((x[:0], x[:0])).batch(4))",
                "no samples",
            ),
            ("", EMPTY, "has no samples to train on"),
        ),
    ],
)
def test_a_fit_that_keras_would_refuse_is_told_in_words(client, script, before, fit, message):
    with pytest.raises(ScriptFailed, match=message):
        run(client, script(after=before + fit), JobKind.OBSERVE)


@pytest.mark.slow
def test_a_script_that_asks_its_user_is_told_what_to_do(client, script):
    with pytest.raises(ScriptFailed, match="The script reads input, but trials have no input"):
        run(client, script(before="name = input('which model? ')\n"), JobKind.OBSERVE)


def test_the_wrong_fit_is_told_with_the_right_ones(client, script):
    spec = script(after=FIT + FIT).model_copy(update={"fit_index": 3})
    with pytest.raises(NeverFits, match="calls fit 2 times, but fit 3 was requested; use --fit 1 to --fit 2"):
        run(client, spec, JobKind.OBSERVE)


def test_an_earlier_fit_runs_one_micro_step(client, script):
    spec = script(
        after="model.fit(x, x[:, :1], epochs=100000)\nn = int(model.optimizer.iterations)\nassert n == 1, n\n" + FIT
    )
    result = run(client, spec.model_copy(update={"fit_index": 2}), JobKind.OBSERVE)
    assert result.value["epochs"] == 2


@pytest.mark.parametrize(
    ("breakage", "kind", "words"),
    [
        ("x[:] = np.nan\n", FailureKind.NAN, "loss is nan"),
        ("import ctypes; ctypes.string_at(0)\n", FailureKind.CRASH, "SIGSEGV"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)\n", FailureKind.CRASH, "SIGKILL in phase setup; it"),
        ("import time; time.sleep(600)\n", FailureKind.TIMEOUT, "not finished after 6 s"),
        *slow(("import os; os._exit(7)\n", FailureKind.CRASH, "exited with code 7")),
    ],
)
def test_what_ends_a_trial_is_a_value(client, script, breakage, kind, words):
    result = run(client, script(after=breakage + FIT), seconds=6 if kind is FailureKind.TIMEOUT else 60)
    assert result.value is None
    assert result.failure.kind is kind
    assert words in result.failure.message


def test_a_trial_that_takes_too_much_memory_is_ended(client, script):
    hungry = "hoard = []\nimport time\nwhile True:\n    hoard.append(np.ones(2**22)); time.sleep(0.01)\n"
    result = run(client, script(after=hungry), memory_limit_bytes=2**30)
    assert result.failure.kind is FailureKind.OOM
    assert "of the allowed 1.00" in result.failure.message
    assert 2**30 < result.peak_bytes < 3 * 2**30


IN_FIT = """
    class At(keras.layers.Layer):
        def call(self, x, training=False):
            if training:
                compiling()
            return x

    class AfterSomeBatches(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch > 3:
                stepping()

    model = keras.Sequential([keras.layers.Input((8,)), At(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
"""
HOARD = "import time, numpy\nh = []\nwhile True: h.append(numpy.ones(2**22)); time.sleep(0.01)\n"
WAIT = "import time\ntime.sleep(600)\n"
LEAVE = "import sys\nsys.exit(3)\n"


@pytest.mark.parametrize(
    ("where", "what", "kind", "words"),
    [
        ("compiling", HOARD, FailureKind.COMPILE_OOM, "of the allowed 1.00 GiB in phase compile"),
        ("stepping", WAIT, FailureKind.TIMEOUT, "it was in phase "),
        *slow(
            ("stepping", HOARD, FailureKind.OOM, "of the allowed 1.00 GiB in phase "),
            ("compiling", WAIT, FailureKind.TIMEOUT, "it was in phase compile"),
        ),
        ("stepping", LEAVE, FailureKind.CRASH, "the training called sys.exit(3) before it was measured"),
    ],
)
def test_what_ends_a_fit_is_a_value_with_its_phase(client, script, where, what, kind, words):
    functions = dict.fromkeys(("compiling", "stepping"), "pass\n") | {where: what}
    before = "".join(f"def {name}():\n{textwrap.indent(body, '    ')}" for name, body in functions.items())
    fit = FIT.replace("verbose=0", "verbose=0, callbacks=[AfterSomeBatches()]")
    body = textwrap.dedent(BODY) + textwrap.dedent(IN_FIT)
    seconds = 15 if what is WAIT else 60
    failed = run(client, script(before, body, fit), seconds=seconds, memory_limit_bytes=2**30).failure
    assert (failed.kind, failed.outside) == (kind, False)
    assert words in failed.message
    phase = failed.message.rpartition("in phase ")[2]
    assert what is LEAVE or phase in (("compile",) if where == "compiling" else ("warm-up", "measure"))
    assert (failed.held_bytes or 0) > (2**30 if what is HOARD else -1)


@pytest.mark.parametrize(
    "closing",
    [
        "os.close(1); os.close(2)",
        *slow("sys.stdout.close(); sys.stderr.close()", "sys.stdout = sys.stderr = None"),
        "folder = tempfile.mkdtemp(); os.chdir(folder); os.rmdir(folder)",
    ],
)
def test_what_a_script_does_to_its_streams_and_its_folder_hides_no_answer(client, script, closing, tmp_path):
    before = f"import os, sys, tempfile\n{closing}\n"
    log = tmp_path / "log"
    failed = run(client, script(before=before, after="x[:] = np.nan\n" + FIT), log=log).failure
    assert failed.kind is FailureKind.NAN
    assert failed.message.startswith("loss is nan by micro-step 1 of the ")
    assert "NonFiniteLoss" in log.read_text()


@pytest.mark.slow
def test_a_script_that_prints_a_gigabyte_is_measured_and_leaves_a_small_log(client, script, tmp_path):
    printing = """
    import os
    print("first words", flush=True)
    for _ in range(1024):
        os.write(1, b"x" * 2**20)
    print("last words")
    """
    log = tmp_path / "log"
    assert run(client, script(before=printing), log=log).failure is None
    text = log.read_text()
    assert text.startswith("first words\nxxx")
    assert "bytes of output are left out here" in text
    assert "last words" in text
    assert log.stat().st_size < 2**22


def test_a_log_that_cannot_be_written_does_not_disturb_its_job(client, script):
    spec = script(before="print('hello')\n", after="x[:] = np.nan\n" + FIT)
    failed = run(client, spec, log=Path("/dev/full")).failure
    assert (failed.kind, failed.log) == (FailureKind.NAN, None)


def test_a_full_disk_says_nothing_of_the_configuration(client, script):
    writing = "with open('/dev/full', 'w') as file: file.write('weights')\n"
    failed = run(client, script(after=writing + FIT)).failure
    assert (failed.kind, failed.outside) == (FailureKind.CRASH, True)
    assert failed.message.startswith("a disk is full")


@pytest.mark.slow
def test_a_clock_that_jumps_changes_nothing(script, tmp_path, monkeypatch):
    """Wall clocks of the planner, the server and the job go back and forth by days; what is measured does not."""
    (tmp_path / "sitecustomize.py").write_text(
        "import random, time\nreal = time.time\ntime.time = lambda: real() + random.choice([-1, 1]) * 86400\n"
    )
    monkeypatch.setattr(time, "time", lambda: 0.0)
    path = os.pathsep.join([str(tmp_path), *sys.path])
    started = time.monotonic()
    jumps = "import time\nassert abs(time.time() - time.clock_gettime(time.CLOCK_REALTIME)) > 80000\n"
    with Client(environment={"PYTHONPATH": path}) as jumping:
        result = run(jumping, script(before=jumps))
    found = Measurement.model_validate(result.value)
    taken = time.monotonic() - started
    assert 0 < found.wall_seconds <= result.wall_seconds <= taken
    assert 0 < found.micro_step_seconds < found.first_step_seconds < taken
    assert all(0 <= seconds <= taken for seconds in result.phases.values())


@pytest.fixture
def held(script, tmp_path):
    """A script that starts a child in a session of its own, takes half a GiB, says so in a file, and hangs."""
    marker = tmp_path / "marker"
    hang = f"""
    import os, subprocess, time
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    kept = np.ones(2**26)
    open({str(tmp_path / "partial")!r}, "w").write(str(child.pid))
    os.rename({str(tmp_path / "partial")!r}, {str(marker)!r})
    time.sleep(600)
    """
    return script(after=textwrap.dedent(hang) + FIT), marker


def wait_for(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def gone(pid):
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("killed", ["server", *slow("worker")])
def test_who_is_killed_from_outside_says_so_and_leaves_no_process(client, script, held, killed):
    spec, marker = held

    def kill():
        wait_for(marker.exists)
        time.sleep(0.5)  # the client looks at a job's processes a few times a second
        server = psutil.Process(client._server.pid)
        (server if killed == "server" else server.children()[0]).kill()

    killing = threading.Thread(target=kill)
    killing.start()
    failed = run(client, spec).failure
    killing.join()
    assert (failed.kind, failed.outside) == (FailureKind.CRASH, True)
    assert ("the worker server ended" if killed == "server" else "ended by SIGKILL") in failed.message
    wait_for(lambda: gone(int(marker.read_text())))
    assert run(client, script(), JobKind.OBSERVE).failure is None


@pytest.mark.parametrize(
    ("free", "kind", "outside"), [(2**32, FailureKind.CRASH, True), (2**29, FailureKind.OOM, False)]
)
def test_a_machine_without_memory_ends_the_job_and_says_who_took_it(client, held, monkeypatch, free, kind, outside):
    """How much the machine has left is made up; what the job holds of it is real."""
    spec, marker = held
    monkeypatch.setattr("autoplan.machine.processes.free_bytes", lambda: 2**20 if marker.exists() else free)
    failed = run(client, spec).failure
    assert (failed.kind, failed.outside) == (kind, outside)
    assert ("other processes used the rest" in failed.message) == outside
    wait_for(lambda: gone(int(marker.read_text())))


@pytest.mark.slow
def test_a_server_that_is_killed_while_it_starts_is_not_a_backend_that_is_missing(script):
    def kill():
        wait_for(lambda: starting._server is not None)
        starting._server.kill()

    with Client() as starting:
        killing = threading.Thread(target=kill)
        killing.start()
        failed = run(starting, script()).failure
        killing.join()
    assert (failed.kind, failed.outside) == (FailureKind.CRASH, True)
    assert failed.message == "the worker server was ended by SIGKILL before the job started"


def test_nothing_that_a_script_starts_outlives_its_trial(client, script, tmp_path):
    pids = tmp_path / "pids"
    spawn = f"""
    import subprocess, sys
    for detached in (False, True):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=detached)
        open({str(pids)!r}, "a").write(f"{{child.pid}}\\n")
    """
    before = descendants()
    assert run(client, script(before=spawn)).failure is None
    started = [int(line) for line in pids.read_text().split()]
    assert len(started) == 2
    deadline = time.monotonic() + 10
    while any(psutil.pid_exists(pid) for pid in started) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not [pid for pid in started if psutil.pid_exists(pid)]
    assert descendants() <= before


def test_a_closed_client_starts_nothing_more(script):
    with Client() as closed:
        pass
    with pytest.raises(WorkerError, match="the workers of the jax backend have been ended"):
        run(closed, script())


def test_a_killed_server_is_replaced(client, script):
    client.run(Job(kind=JobKind.OBSERVE, source=script()), time_limit_seconds=60)
    server = client._server
    server.kill()
    server.wait()
    assert run(client, script()).failure is None


def test_a_log_keeps_what_the_script_printed(client, script, tmp_path):
    log = tmp_path / "trial.log"
    run(client, script(before="print('hello from the script')\n"), log=log)
    assert "hello from the script" in log.read_text()


@pytest.mark.slow
def test_kill_nine_of_the_parent_leaves_no_process(script, tmp_path):
    spec = script(
        after="import subprocess, time\nsubprocess.Popen(['sleep', '600'], start_new_session=True)\ntime.sleep(600)\n"
        + FIT
    )
    parent = textwrap.dedent(
        f"""
        from autoplan.jobs.client import Client
        from autoplan.jobs.messages import Job
        from autoplan.sources.source import SourceSpec
        client = Client()
        spec = SourceSpec.model_validate_json({spec.model_dump_json()!r})
        client.run(Job(kind="measure", source=spec), time_limit_seconds=600)
        """
    )
    process = subprocess.Popen(
        [sys.executable, "-c", parent], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
    deadline = time.monotonic() + 60
    family = []
    while time.monotonic() < deadline and not any("sleep" in p.name() for p in family):
        time.sleep(0.2)
        family = [p for p in psutil.Process(process.pid).children(recursive=True) if p.is_running()]
    assert len(family) >= 3  # the server, the trial, and what the trial started
    process.send_signal(signal.SIGKILL)
    process.wait()
    _, alive = psutil.wait_procs(family, timeout=15)
    assert not alive


@pytest.mark.slow
def test_kill_nine_of_the_parent_ends_a_server_that_still_imports(script, tmp_path):
    (tmp_path / "jax.py").write_text(f"open({str(tmp_path / 'importing')!r}, 'w')\nimport time\ntime.sleep(600)\n")
    spec = script()
    parent = textwrap.dedent(
        f"""
        from autoplan.jobs.client import Client
        from autoplan.jobs.messages import Job
        from autoplan.sources.source import SourceSpec
        client = Client(environment={{"PYTHONPATH": {os.pathsep.join([str(tmp_path), *sys.path])!r}}})
        spec = SourceSpec.model_validate_json({spec.model_dump_json()!r})
        client.run(Job(kind="measure", source=spec), time_limit_seconds=600)
        """
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([sys.executable, "-c", parent], env=environment)
    wait_for((tmp_path / "importing").exists, seconds=60)
    family = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(family, timeout=15)
    assert (len(family), alive) == (1, [])


def test_a_backend_that_is_not_installed_is_told_with_the_extra(script, tmp_path):
    (tmp_path / "jax.py").write_text("raise ModuleNotFoundError(\"No module named 'jax'\")\n")
    with (
        Client(environment={"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}) as broken,
        pytest.raises(WorkerError, match=r"No module named 'jax'.*autoplan\[jax\]"),
    ):
        run(broken, script())
