"""Writers of libraries that report no audit event; each backend's in a process of its own."""

import subprocess
import sys

import pytest

PROGRAM = """
import os, sys
from autoplan.worker.files import native_writers
from autoplan.worker.files.events import shown
{imports}
class Refused(BaseException): pass
seen = []
def consider(action):
    seen.append(shown(action.target))
    raise Refused
native_writers.patch(consider)
native_writers.patch(consider)
for write in {writes}:
    try: write()
    except Refused: pass
print(seen)
print(sorted(os.listdir()))
"""
CASES = {
    "torch": (
        "import torch, io",
        "(lambda: torch.save({'a': 1}, 'model.pt'), lambda: torch.save({'a': 1}, io.BytesIO()))",
        ["model.pt"],
    ),
    "tensorflow": (
        "import tensorflow as tf",
        (
            "(lambda: tf.io.gfile.GFile('a.txt', 'w').write('1'), lambda: tf.io.write_file('b.txt', '1'),"
            " lambda: tf.io.gfile.makedirs('c'), lambda: tf.summary.create_file_writer('logs').init(),"
            " lambda: tf.train.Checkpoint(v=tf.Variable(1.0)).write('d'))"
        ),
        ["a.txt", "b.txt", "c", "logs", "d"],
    ),
    "h5py": (
        "import h5py, io",
        "(lambda: h5py.File('a.h5', 'w'), lambda: h5py.File('b.h5', 'a'), lambda: h5py.File(io.BytesIO(), 'w'))",
        ["a.h5", "b.h5"],
    ),
}


@pytest.mark.parametrize("library", CASES)
def test_native_writers_are_reported_before_they_write(library, tmp_path, root):
    imports, writes, expected = CASES[library]
    program = PROGRAM.format(imports=imports, writes=writes)
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**__import__("os").environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    seen, there = map(eval, done.stdout.splitlines())
    assert seen == expected
    assert there == []
