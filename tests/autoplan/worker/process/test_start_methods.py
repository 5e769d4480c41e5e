"""A job runs in a forked process if that is safe, else in a new interpreter, with the same result."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import psutil
import pytest

from autoplan.errors import WorkerError
from autoplan.jobs.client import Client
from autoplan.jobs.messages import Job, JobKind
from autoplan.plan.records import FailureKind, Measurement
from autoplan.sources import source
from autoplan.worker.process import start_methods

QUICK = {"groups": 3, "group_seconds": 0.05, "max_seconds": 20}
SCRIPT = """
    import os, sys
    import keras, numpy as np
    print("started by", sys.orig_argv[4], flush=True)
    x = np.random.rand(256, 8).astype("float32")
    model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(4), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    {before}
    model.fit(x, x[:, :1], batch_size=32, verbose=0)
"""
ARGUMENT = {"fork": "serve", "spawn": "job"}


@pytest.fixture(scope="module", params=["fork", "spawn"])
def method(request):
    return request.param


@pytest.fixture(scope="module")
def client(method):
    with Client(environment={start_methods.START_METHOD: method}) as one:
        yield one


@pytest.fixture
def script(tmp_path):
    def write(before=""):
        path = tmp_path / "train.py"
        path.write_text(textwrap.dedent(SCRIPT).format(before=before))
        return source.resolve(str(path))

    return write


def test_a_real_job_is_measured(client, method, script, tmp_path):
    log = tmp_path / "log"
    result = client.run(Job(kind=JobKind.MEASURE, source=script(), options=QUICK), time_limit_seconds=120, log=log)
    assert result.failure is None, result.failure
    assert Measurement.model_validate(result.value).groups >= 3
    assert f"started by {ARGUMENT[method]}" in log.read_text()
    assert {"import", "setup", "compile", "measure"} <= set(result.phases)
    assert result.peak_bytes > 0


def test_the_exit_of_a_process_is_reported(client, script):
    job = Job(kind=JobKind.MEASURE, source=script("os._exit(7)"), options=QUICK)
    failure = client.run(job, time_limit_seconds=120).failure
    assert (failure.kind, "exited with code 7 in phase setup" in failure.message) == (FailureKind.CRASH, True)


@pytest.mark.slow
def test_a_limit_ends_a_job_and_its_descendants(client, script, tmp_path):
    pids = tmp_path / "pids"
    spec = script(
        "import subprocess, time; child = subprocess.Popen(['sleep', '600'], start_new_session=True); "
        f"open({str(pids)!r}, 'w').write(f'{{child.pid}} {{os.getpid()}}'); time.sleep(600)"
    )
    started = time.monotonic()
    result = client.run(Job(kind=JobKind.MEASURE, source=spec, options=QUICK), time_limit_seconds=30)
    assert result.failure.kind is FailureKind.TIMEOUT
    assert time.monotonic() - started < 60
    assert not [pid for pid in map(int, pids.read_text().split()) if psutil.pid_exists(pid)]


def test_a_job_ends_with_its_server(method, script, tmp_path):
    pids = tmp_path / "pids"
    spec = script(f"open({str(pids)!r}, 'w').write(str(os.getpid())); import time; time.sleep(600)")
    parent = textwrap.dedent(
        f"""
        from autoplan.jobs.client import Client
        from autoplan.jobs.messages import Job
        from autoplan.sources.source import SourceSpec
        client = Client(environment={{{start_methods.START_METHOD!r}: {method!r}}})
        spec = SourceSpec.model_validate_json({spec.model_dump_json()!r})
        client.run(Job(kind="measure", source=spec), time_limit_seconds=600)
        """
    )
    process = subprocess.Popen(
        [sys.executable, "-c", parent],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    while not (pids.exists() and pids.read_text()) and time.monotonic() < deadline:
        time.sleep(0.1)
    job = psutil.Process(int(pids.read_text()))
    job.parent().send_signal(signal.SIGKILL)
    _, alive = psutil.wait_procs([job], timeout=15)
    assert not alive
    process.kill()
    process.wait()


def said(code):
    """Run code in a new interpreter, and return what it prints."""
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_threads_that_do_not_survive_a_fork_are_found():
    why = """
        from autoplan.worker.process import start_methods
        {before}
        print(start_methods.why_not_fork())
    """
    assert said(why.format(before="")) == "None"
    # NumPy's OpenBLAS starts threads when it is imported, and ends them before a fork.
    product = "import numpy as np; x = np.ones((512, 512)); x @ x"
    assert said(why.format(before=product)) == "None"
    waiting = "import threading, time; threading.Thread(target=time.sleep, args=(9,), daemon=True).start()"
    assert said(why.format(before=waiting)) == "2 threads are running"


def test_an_open_device_file_is_found(tmp_path, monkeypatch):
    device = tmp_path / "nvidia-uvm"
    device.write_text("")
    monkeypatch.delenv(start_methods.START_METHOD, raising=False)
    monkeypatch.setattr(start_methods, "DEVICE_FILES", (str(device),))
    with device.open():
        assert start_methods.why_not_fork() == f"a device is in use ({device})"


def test_an_invalid_start_method_is_an_error(script):
    with (
        Client(environment={start_methods.START_METHOD: "thread"}) as broken,
        pytest.raises(WorkerError, match="AUTOPLAN_START_METHOD is 'thread'; expected fork or spawn"),
    ):
        broken.run(Job(kind=JobKind.OBSERVE, source=script()), time_limit_seconds=60)
