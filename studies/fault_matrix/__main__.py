"""Does every fault end in a plan or in one clear message, with nothing lost and no process left?

python -m studies.fault_matrix [CASE ...]
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autoplan.errors import PlanError
from autoplan.plan import file
from studies import harness
from studies.running_command import EndedCommand, RunningCommand, records_in, restore_signal_handlers

HERE = Path(__file__).resolve().parent
COLUMNS = ("case", "exit code", "seconds", "processes left", "trials", "plan", "message", "passes")
TUNE = ("--only", "precision", "--trials", "2", "--study", "study", "--output", "plan.yaml")
"""Two trials: the baseline, and a 16-bit precision, in which most faults happen. The plan is then the baseline."""
SMALL = ("--memory-limit", "1500MiB")
SHORT = ("--budget", "45s")
SLOW = ("--slow",)
TWO_KNOBS = ("--only", "jit_compile,precision", "--trials", "6")
"""For a script that does not compile: every compiled configuration is faster, so that there is a winner to verify."""
PLAN, INTERRUPTED, BAD_INPUT, NOTHING_MEASURED = 0, 130, 2, 3


@dataclass(frozen=True)
class Case:
    """A fault and how `autoplan tune` has to end.

    code         the expected exit code
    message      a pattern that the output has to match
    faults       arguments of train.py
    options      further options of `autoplan tune`
    act          called with the running command
    plan         whether a plan file is expected
    prepare      called before the command is started
    environment  variables to add to the environment
    within       a context manager that makes the place where the command runs
    """

    code: int
    message: str
    faults: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    act: Callable[[RunningCommand], None] | None = None
    plan: bool = True
    prepare: Callable[[harness.Lab], None] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    within: Callable[[harness.Lab, Case], contextlib.AbstractContextManager[Place]] | None = None


@dataclass(frozen=True)
class Place:
    """Where a command runs, and the command that starts it."""

    folder: Path
    before: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    act: Callable[[RunningCommand], None] | None = None


def faults(at: str, by: str, when: str = "16-bit") -> tuple[str, ...]:
    return ("--at", at, "--by", by, "--when", when)


# Actions on a running command


def sent(number: signal.Signals, *, to: str = "parent") -> Callable[[RunningCommand], None]:
    """Return an action that sends a signal after the start of the second trial."""

    def act(tune: RunningCommand) -> None:
        tune.wait_for(r"trial 1 starts")
        find: dict[str, Callable[[], Any]] = {
            "parent": lambda: tune.process, "server": tune.server, "worker": tune.worker
        }  # fmt: skip
        find[to]().send_signal(number)

    return act


def sent_twice(number: signal.Signals) -> Callable[[RunningCommand], None]:
    """Return an action that sends a signal during the third trial, and again during verification."""

    def act(tune: RunningCommand) -> None:
        tune.wait_for(r"trial 2 starts")
        tune.process.send_signal(number)
        tune.wait_for(r"losses of \d+ updates|pair 1 of")
        tune.process.send_signal(number)

    return act


# Preparations


def tuned_before(lab: harness.Lab) -> None:
    """Leave the study of a tuning that was killed after its first trial."""
    before = RunningCommand(lab, "tune", str(HERE / "train.py"), *TUNE)
    before.wait_for(r"trial 0 measured")
    before.end()


def damaged(lab: harness.Lab) -> None:
    """Leave a study whose database is overwritten in part."""
    tuned_before(lab)
    database = lab.folder / "study" / "study.db"
    content = bytearray(database.read_bytes())
    content[:4096] = os.urandom(4096)
    database.write_bytes(content)
    # SQLite would repair the first page from the journal of the killed process.
    database.with_name("study.db-journal").unlink(missing_ok=True)


def of_another_version(lab: harness.Lab) -> None:
    """Leave a study that was made with another version of Keras."""
    tuned_before(lab)
    with contextlib.closing(sqlite3.connect(lab.folder / "study" / "study.db")) as database, database:
        database.execute(
            "update study_user_attributes set value_json = json_set(value_json, '$.keras', '3.0.0') "
            "where key = 'identity'"
        )


def of_another_source(lab: harness.Lab) -> None:
    """Leave a study of a script, and change the script."""
    tuned_before(lab)
    (lab.folder / "train.py").write_text((HERE / "train.py").read_text() + "\n# another line\n")


@contextlib.contextmanager
def in_use(lab: harness.Lab, case: Case) -> Iterator[Place]:
    """Run another tuning that uses the same study."""
    other = RunningCommand(lab, "tune", str(HERE / "train.py"), *TUNE)
    other.wait_for(r"trial 0 starts")
    try:
        yield Place(lab.folder)
    finally:
        other.end()


# Places


@contextlib.contextmanager
def on_a_small_disk(lab: harness.Lab, case: Case) -> Iterator[Place]:
    """Run on a small disk, temporary files included, that becomes full after the start of the second trial."""
    disk = lab.folder / "disk"
    disk.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(disk)]
    mounted = subprocess.run(mounting, capture_output=True, check=False)
    if mounted.returncode != 0:
        raise harness.StudyFailed("a small disk cannot be mounted without the right to mount")

    def fill(tune: RunningCommand) -> None:
        tune.wait_for(r"trial 1 starts")
        with (disk / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
            while True:
                filler.write(bytes(2**16))

    try:
        yield Place(disk, environment={"TMPDIR": str(disk)}, act=fill)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@contextlib.contextmanager
def beside_a_hoarder(lab: harness.Lab, case: Case) -> Iterator[Place]:
    """Run in a memory cgroup of 3 GiB in which another process allocates all free memory and later frees it."""
    group = _own_memory_group() / f"autoplan-study-{os.getpid()}"
    limit, size = ("memory.max" if (group.parent / "memory.max").exists() else "memory.limit_in_bytes"), 3 * 2**30
    try:
        group.mkdir()
        (group / limit).write_text(str(size))
    except OSError:
        raise harness.StudyFailed("a memory cgroup cannot be created without the right to do so") from None
    enter = f'echo $$ > "{group}/cgroup.procs" && exec "$@"'
    hoard = """
import time
from autoplan.machine import cgroups
hoard = []
while cgroups.free_bytes()[0] > 100 * 2**20:
    hoard.append(bytearray(2**24)); hoard[-1][::4096] = b"x" * 4096
print("full", flush=True)
time.sleep(600)
"""

    def act(tune: RunningCommand) -> None:
        tune.wait_for(r"trial 1 starts")
        time.sleep(1)
        hoarder = subprocess.Popen(
            ["sh", "-c", enter, "sh", sys.executable, "-c", hoard],
            env={**os.environ, "PYTHONPATH": harness.python_path()},
        )
        try:
            tune.wait_for(r"it is tried once more|trial 2 starts", seconds=120)
        finally:
            hoarder.kill()
            hoarder.wait()

    try:
        yield Place(lab.folder, before=("sh", "-c", enter, "sh"), act=act)
    finally:
        time.sleep(1)
        group.rmdir()


def _own_memory_group() -> Path:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, name = line.split(":", 2)
        if controllers in ("", "memory"):
            base = Path("/sys/fs/cgroup") / controllers
            if (base / "cgroup.procs").exists() and (controllers or (base / "cgroup.controllers").exists()):
                own = base / name.lstrip("/")
                return own if own.is_dir() else base
    raise harness.StudyFailed("this system has no memory cgroups")


@contextlib.contextmanager
def with_a_clock_that_jumps(lab: harness.Lab, case: Case) -> Iterator[Place]:
    """Make the clock of every Python process jump back and forth by a day."""
    (lab.folder / "clock").mkdir()
    (lab.folder / "clock" / "sitecustomize.py").write_text(
        "import random, time\n"
        "def jumping(real, day):\n"
        "    return lambda: real() + random.choice([-1, 1]) * day\n"
        "time.time, time.time_ns = jumping(time.time, 86400), jumping(time.time_ns, 86400 * 10**9)\n"
    )
    yield Place(lab.folder, environment={"PYTHONPATH": harness.python_path(lab.folder / "clock")})


CASES = {
    "memory at build": Case(
        PLAN, r"trial \d failed \(out of memory\): used 1\.\d+ GiB", faults("build", "memory"), SMALL
    ),
    "memory at compilation": Case(
        PLAN, r"trial \d failed \(out of memory.*phase compile", faults("compile", "memory"), SMALL
    ),
    "memory in a micro-step": Case(PLAN, r"trial \d failed \(out of memory", faults("step", "memory"), SMALL),
    "memory in every configuration": Case(
        3, r"error: .*memory", faults("step", "memory", "always"), SMALL, plan=False
    ),
    "hang in the script": Case(
        NOTHING_MEASURED, r"error: the budget of .* ended while the training was inspected",
        faults("script", "hang", "always"), SHORT, plan=False,
    ),
    "hang in compilation": Case(PLAN, r"trial \d failed \(.*it was in phase compile", faults("compile", "hang")),
    "hang in a micro-step": Case(PLAN, r"trial \d failed \(.*it was in phase (warm-up|measure)",
        faults("step", "hang")),
    "NaN": Case(PLAN, r"trial \d failed \(.*loss is nan", faults("script", "nan")),
    "NaN in the script itself": Case(
        BAD_INPUT, r"error: the training fails as it is \(nan: loss is nan\)", faults("script", "nan", "always"),
        plan=False,
    ),
    "native crash": Case(PLAN, r"trial \d failed \(.*ended by SIGSEGV in phase", faults("step", "crash")),
    "native crash of the script itself": Case(
        BAD_INPUT, r"error: the training fails as it is \(crash: ended by SIGSEGV",
        faults("step", "crash", "always"), plan=False,
    ),
    "full disk for the script": Case(
        PLAN, r"a disk is full.*it is tried once more", faults("step", "disk")
    ),
    "full disk": Case(
        BAD_INPUT, r"(?s)trials end here, and the plan uses the measurements so far.*error: the plan could not be "
        r"written.*this is the plan:\n\n# An autoplan plan", plan=False, within=on_a_small_disk,
    ),
    "study in use": Case(
        BAD_INPUT, r"error: the study at .*study\.db is in use by another process \(\d+\)", plan=False, within=in_use
    ),
    "damaged study": Case(BAD_INPUT, r"error: the study at .*study\.db is damaged", plan=False, prepare=damaged),
    "study of another version": Case(
        BAD_INPUT, r"error: the study at .* was made under other conditions: keras: 3\.0\.0 -> 3\.", plan=False,
        prepare=of_another_version,
    ),
    "study of another source": Case(
        BAD_INPUT, r"error: the study at .* was made under other conditions: source: sha256 \w+ -> sha256 \w+",
        plan=False,
        prepare=of_another_source,
    ),
    "Ctrl-C": Case(INTERRUPTED, r"Interrupted: this is the best plan so far", act=sent(signal.SIGINT)),
    "Ctrl-C twice": Case(
        INTERRUPTED, r"interrupted before a winner was verified", SLOW, TWO_KNOBS, act=sent_twice(signal.SIGINT)
    ),
    "SIGTERM": Case(INTERRUPTED, r"Interrupted: this is the best plan so far", act=sent(signal.SIGTERM)),
    "SIGTERM twice": Case(
        INTERRUPTED, r"interrupted before a winner was verified", SLOW, TWO_KNOBS, act=sent_twice(signal.SIGTERM)
    ),
    "hang-up": Case(INTERRUPTED, r"Interrupted: this is the best plan so far", act=sent(signal.SIGHUP)),
    "kill -9 of the parent": Case(-signal.SIGKILL, r"trial 1 starts", act=sent(signal.SIGKILL), plan=False),
    "kill -9 of the server": Case(
        PLAN, r"the worker server ended in phase .*it is tried once more", act=sent(signal.SIGKILL, to="server")
    ),
    "kill -9 of the worker": Case(
        PLAN, r"ended by SIGKILL in phase .*it is tried once more", act=sent(signal.SIGKILL, to="worker")
    ),
    "another process takes the memory": Case(
        PLAN, r"other processes used.*it is tried once more", within=beside_a_hoarder
    ),
    "script that spawns children": Case(PLAN, r"The plan is in", faults("script", "children", "always")),
    "script that changes its folder": Case(PLAN, r"The plan is in", faults("script", "folder", "always")),
    "script that closes stdout": Case(PLAN, r"The plan is in", faults("script", "streams", "always")),
    "script that calls sys.exit(3)": Case(
        BAD_INPUT, r"error: .*exited with code 3 before its fit", faults("script", "leave", "always"), plan=False
    ),
    "script that calls sys.exit(0)": Case(
        BAD_INPUT, r"error: .*ended without calling model\.fit", faults("script", "leave_well", "always"), plan=False
    ),
    "callback that calls sys.exit": Case(PLAN, r"trial \d failed \(.*called sys\.exit\(3\)", faults("step", "leave")),
    "script that prints a gigabyte": Case(PLAN, r"The plan is in", faults("script", "print_much", "always")),
    "clock that jumps": Case(PLAN, r"The plan is in", within=with_a_clock_that_jumps),
}  # fmt: skip
NAMES = {re.sub(r"\W+", "-", name).strip("-").lower(): name for name in CASES}


@contextlib.contextmanager
def plainly(lab: harness.Lab, case: Case) -> Iterator[Place]:
    yield Place(lab.folder)


def study(name: str) -> dict[str, Any]:
    """Run one case and return its row."""
    case, origin = CASES[name], harness.provenance()
    with harness.lab() as lab:
        if case.prepare is not None:
            case.prepare(lab)
        copy = lab.folder / "train.py"
        script = str(copy if copy.exists() else HERE / "train.py")
        arguments = ("--", *case.faults) if case.faults else ()
        with (case.within or plainly)(lab, case) as place:
            tune = RunningCommand(
                lab, "tune", script, *TUNE, *case.options, *arguments,
                folder=place.folder, before=place.before, environment={**case.environment, **place.environment},
            )  # fmt: skip
            act = case.act or place.act
            if act is not None:
                act(tune)
            ended = tune.wait()
            state = state_of(place.folder)
        logs = max((log.stat().st_size for log in lab.folder.glob("study/*.log")), default=0)
    return {"case": name, **row(case, ended, state, logs), **origin}


def state_of(folder: Path) -> dict[str, Any]:
    """Return the evidence of the plan file, or "none", and the trials in the study."""
    try:
        plan = file.read(folder / "plan.yaml").evidence.value
    except PlanError:
        plan = "none"
    return {"plan": plan, "trials": trials_in(folder / "study" / "study.db")}


def trials_in(database: Path) -> str:
    """Count the measured and failed trials in a study."""
    try:
        outcomes = [json.loads(record)["outcome"] for _, record in records_in(database)]
    except sqlite3.Error:
        return "not readable"
    return f"{outcomes.count('measured')} measured, {outcomes.count('failed')} failed"


def row(case: Case, ended: EndedCommand, state: Mapping[str, Any], largest_log: int) -> dict[str, Any]:
    found = re.search(case.message, ended.output)
    traceback = "Traceback (most recent call last)" in ended.output
    passes = (
        ended.code == case.code
        and ended.left == 0
        and found is not None
        and not traceback
        and (state["plan"] == "measured") == case.plan
        and largest_log < 2**22
    )
    message = found[0] if found else ended.output.strip()[-300:]
    return {
        "exit code": ended.code,
        "seconds": round(ended.seconds, 1),
        "processes left": ended.left,
        "largest log": largest_log,
        **state,
        "message": " ".join(message.split())[:160],
        "passes": passes,
        "output": "" if passes else ended.output[-2000:],
    }


def main() -> None:
    parser = harness.parser("studies.fault_matrix", __doc__)
    parser.add_argument("cases", nargs="*", help=", ".join(NAMES))
    arguments = parser.parse_args()
    restore_signal_handlers()
    harness.header("Does every fault end in a plan or in one clear message, with nothing lost and no process left?")
    rows = []
    for name in harness.chosen(NAMES, arguments.cases):
        try:
            rows.append(study(NAMES[name]))
        except harness.StudyFailed as failed:
            rows.append({"case": NAMES[name], "passes": False, "output": str(failed), **harness.provenance()})
        harness.write_rows(HERE / "results.csv", rows[-1:], key="case")
        print(f"{NAMES[name]}: {'passes' if rows[-1]['passes'] else 'FAILS'} {rows[-1]['output']}", flush=True)
    harness.print_table(rows, COLUMNS)
    print(f"\n{sum(row['passes'] for row in rows)} of {len(rows)} faults end as expected")


if __name__ == "__main__":
    main()
