"""What every test may rely on: one backend, no accelerator, and the small training scripts in tests/models/scripts."""

import os
from pathlib import Path

import pytest

# Before anything imports Keras: a backend is fixed at import, and the tests are about the CPU.
os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def scripts(root) -> Path:
    """Training scripts as users write them; each runs by itself."""
    return root / "tests/models/scripts"


@pytest.fixture(scope="module")
def programs_are_kept(tmp_path_factory):
    """Processes of a module share their compiled programs, outside of the folders that they train in."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path_factory.mktemp("programs")))
        patch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        patch.setenv("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "0")
        yield
