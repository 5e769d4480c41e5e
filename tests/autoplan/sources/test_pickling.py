import base64
import functools
import pickletools
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

from autoplan.errors import SourceError
from autoplan.sources.pickling import SPILL_BYTES, pack, unpack

RECEIVER = """
import sys
from autoplan.sources.pickling import unpack
builder, data = unpack(sys.stdin.read())
print(builder())
print(data() if callable(data) else data)
"""


def send(script: str, folder, *, name: str = "main.py") -> tuple[str, str, str]:
    """Run `script` as `__main__` in a process that prints a payload, and unpack it in another process."""
    (folder / name).write_text(textwrap.dedent(script))
    sent = subprocess.run([sys.executable, name], cwd=folder, capture_output=True, text=True)
    assert sent.returncode == 0, sent.stderr
    payload, sha256 = sent.stdout.split()
    received = subprocess.run([sys.executable, "-c", RECEIVER], input=payload, capture_output=True, text=True)
    assert received.returncode == 0, received.stderr
    built, data = received.stdout.splitlines()
    return built, data, sha256


FROM_MAIN = """
    from autoplan.sources.pickling import pack
    WIDTH = 3
    class Layer:
        def __init__(self, width): self.width = width
        def __repr__(self): return f"Layer {self.width}"
    def twice(n): return 2 * n
    def build_model(): return Layer(twice(WIDTH))
    def train_data(): return [WIDTH, twice(WIDTH)]
    parcel = pack(build_model, train_data)
    print(parcel.payload, parcel.sha256)
"""


def test_functions_and_classes_of_main_are_pickled_by_value(tmp_path):
    built, data, _ = send(FROM_MAIN, tmp_path)
    assert (built, data) == ("Layer 6", "[3, 6]")


def test_the_hash_is_the_same_in_every_process_and_changes_with_the_file(tmp_path):
    first, again = send(FROM_MAIN, tmp_path)[2], send(FROM_MAIN, tmp_path)[2]
    other = send(FROM_MAIN.replace("WIDTH = 3", "WIDTH = 4"), tmp_path)[2]
    assert first == again != other


def test_modules_beside_the_script_are_pickled_by_value(tmp_path):
    (tmp_path / "layers.py").write_text("def width(): return 5\n")
    (tmp_path / "nets.py").write_text("import layers\ndef build_model(): return layers.width()\n")
    script = """
        from autoplan.sources.pickling import pack
        from nets import build_model
        parcel = pack(build_model, (1, 2))
        print(parcel.payload, parcel.sha256)
    """
    assert send(script, tmp_path)[:2] == ("5", "(1, 2)")


def test_a_function_from_an_interpreter_is_pickled(tmp_path):
    """Code of a notebook, which is in no file."""
    typed = "def build_model(): return SIZE + 1\nSIZE = 1\nparcel = pack(build_model)\n"
    typed += "print(parcel.payload, parcel.sha256)\n"
    script = f"from autoplan.sources.pickling import pack\nexec(compile({typed!r}, '<cell 1>', 'exec'), globals())\n"
    assert send(script, tmp_path)[:2] == ("2", "None")


def test_installed_modules_are_pickled_by_name():
    def build_model():
        return np.zeros(3)

    opcodes = {argument for _, argument, _ in pickletools.genops(base64.b64decode(pack(build_model).payload))}
    assert not any("site-packages/numpy" in str(argument) for argument in opcodes)


def test_large_arrays_are_mapped_from_a_file_and_small_arrays_are_in_the_pickle():
    large = np.arange(SPILL_BYTES, dtype=np.float32).reshape(4, -1)
    small = np.arange(8)
    parcel = pack(dict, (large, small))
    assert len(parcel.payload) < 4096
    _, (large_again, small_again) = unpack(parcel.payload)
    assert isinstance(large_again, np.memmap)
    assert not isinstance(small_again, np.memmap)
    np.testing.assert_array_equal(large_again, large)
    np.testing.assert_array_equal(small_again, small)


def test_changes_of_an_array_in_a_worker_are_private():
    parcel = pack(dict, np.zeros(SPILL_BYTES, dtype=np.uint8))
    mine, other = unpack(parcel.payload)[1], unpack(parcel.payload)[1]
    mine[:] = 1
    assert not other.any()


def test_arrays_that_a_file_would_change_are_in_the_pickle():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    half = np.zeros(SPILL_BYTES, dtype=ml_dtypes.bfloat16)
    assert unpack(pack(dict, half).payload)[1].dtype == half.dtype


def test_the_hash_covers_what_is_in_the_arrays():
    zeros, ones = np.zeros(SPILL_BYTES), np.ones(SPILL_BYTES)
    assert pack(dict, zeros).sha256 == pack(dict, zeros.copy()).sha256 != pack(dict, ones).sha256
    assert pack(dict, zeros).sha256 != pack(dict, zeros.reshape(2, -1)).sha256


def test_arguments_of_a_partial_are_part_of_it():
    def build_model(width):
        return width

    narrow, wide = (pack(functools.partial(build_model, width)) for width in (1, 2))
    assert unpack(wide.payload)[0]() == 2
    assert narrow.sha256 != wide.sha256


def test_an_object_that_cannot_be_pickled_is_named():
    lock = threading.Lock()

    def build_model():
        return lock

    with pytest.raises(SourceError) as caught:
        pack(build_model)
    assert "build_model uses 'lock', a lock that cannot be sent to worker processes" in str(caught.value)
    assert "create it inside the function" in str(caught.value)


def test_data_that_cannot_be_pickled_are_named_by_their_type():
    with pytest.raises(
        SourceError, match=r"the data \(builtins.generator\) cannot be sent .* pass arrays, or a function"
    ):
        pack(dict, (number for number in range(3)))


class LiveModel:
    def fit(self):
        """Part of the interface of a Keras model."""

    def compile(self):
        """Part of the interface of a Keras model."""

    def __call__(self):
        """Part of the interface of a Keras model."""


@pytest.mark.parametrize(
    ("builder", "message"),
    [
        (LiveModel(), r"the builder is a live model \(LiveModel\).* pass the function that builds and compiles it"),
        (3, "the builder is a int; expected a function without arguments"),
        (lambda width: width, "cannot be called without arguments .*width.* functools.partial or a lambda"),
    ],
)
def test_a_builder_of_the_wrong_kind_is_an_error(builder, message):
    with pytest.raises(SourceError, match=message):
        pack(builder)


def test_the_class_of_a_model_is_a_builder():
    assert unpack(pack(LiveModel).payload)[0]().fit() is None
