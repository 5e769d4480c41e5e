"""Worker processes answer, fail as values, keep to their limits, and are gone afterwards."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import psutil
import pytest

from autoplan import source
from autoplan.errors import NeverFits, ScriptFailed, WorkerError
from autoplan.jobs import Client, Job, JobKind
from autoplan.plan import FailureKind, Measurement

QUICK = {"groups": 3, "group_seconds": 0.05, "max_seconds": 20}

BODY = """
    import keras, numpy as np
    x = np.random.rand(256, 8).astype("float32")
    model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(4), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
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


def test_a_moving_average_of_weights_can_be_timed_without_input(client, script):
    body = BODY.replace('"sgd"', "keras.optimizers.SGD(0.1, use_ema=True)")
    assert run(client, script(body=body)).value["compute_micro_step_seconds"] > 0


def test_trials_are_told_that_they_are_trials(client, script):
    result = run(client, script(before="import os\nassert os.environ['AUTOPLAN_TRIAL'] == '1'\n"))
    assert result.failure is None


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
    with pytest.raises(ScriptFailed, match=r"(?s)exit code 2 before its fit.*arguments are required: --data"):
        run(client, script(before=arguments), JobKind.OBSERVE, log=tmp_path / "log")
    with pytest.raises(ScriptFailed, match="ended itself before its fit: no data here"):
        run(client, script(before="import sys\nsys.exit('no data here')\n"), JobKind.OBSERVE)


def test_a_script_without_fit_is_told_so(client, script):
    with pytest.raises(NeverFits, match=r"ended without calling model\.fit"):
        run(client, script(after=""), JobKind.OBSERVE)
    with pytest.raises(NeverFits, match=r"loop of its own \(train_on_batch\).*autoplan\.measure\(step, batch\)"):
        run(client, script(after="for _ in range(3): model.train_on_batch(x, x[:, :1])\n"), JobKind.OBSERVE)


def test_a_loop_that_takes_days_is_told_before_its_end(client, script):
    loop = "import time\nwhile True: model.train_on_batch(x, x[:, :1]); time.sleep(0.1)\n"
    with pytest.raises(NeverFits, match="loop of its own"):
        run(client, script(after=loop), JobKind.OBSERVE, options={"loop_patience_seconds": 1.0})


def test_a_script_that_asks_its_user_is_told_what_to_do(client, script):
    with pytest.raises(ScriptFailed, match="Nobody types in a trial"):
        run(client, script(before="name = input('which model? ')\n"), JobKind.OBSERVE)


def test_the_wrong_fit_is_told_with_the_right_ones(client, script):
    spec = script(after=FIT + FIT).model_copy(update={"fit_index": 3})
    with pytest.raises(NeverFits, match="calls fit 2 times, and fit 3 was asked for; use --fit 1 to --fit 2"):
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
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)\n", FailureKind.CRASH, "out-of-memory killer"),
        ("import os; os._exit(7)\n", FailureKind.CRASH, "exit code 7"),
        ("import time; time.sleep(600)\n", FailureKind.TIMEOUT, "not done after 6 s"),
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
    assert "of 1.00" in result.failure.message
    assert 2**30 < result.peak_bytes < 3 * 2**30


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


def test_kill_nine_of_the_parent_leaves_no_process(script, tmp_path):
    spec = script(
        after="import subprocess, time\nsubprocess.Popen(['sleep', '600'], start_new_session=True)\ntime.sleep(600)\n"
        + FIT
    )
    parent = textwrap.dedent(
        f"""
        from autoplan.jobs import Client, Job, SourceSpec
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


def test_a_backend_that_is_not_installed_is_told_with_the_extra(script, tmp_path):
    (tmp_path / "jax.py").write_text("raise ModuleNotFoundError(\"No module named 'jax'\")\n")
    with (
        Client(environment={"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}) as broken,
        pytest.raises(WorkerError, match=r"No module named 'jax'.*autoplan\[jax\]"),
    ):
        run(broken, script())
