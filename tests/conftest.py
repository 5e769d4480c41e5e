"""What every test may rely on: one backend, no accelerator, and the small training scripts in tests/models/scripts."""

import os
from pathlib import Path

import pytest

from tests.builders.fork_server import ForkServer

# Before anything imports Keras: a backend is fixed at import, and the tests are about the CPU.
os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def pytest_xdist_auto_num_workers() -> int:
    """Run one process more than there are cores: much of the time, a test waits for a process of its own."""
    return (os.cpu_count() or 1) + 1


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def scripts(root) -> Path:
    """Training scripts as users write them; each runs by itself."""
    return root / "tests/models/scripts"


@pytest.fixture(scope="session")
def cache_environment(tmp_path_factory):
    """Environment variables with which processes share compiled programs, in a folder that no training runs in."""
    return {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path_factory.getbasetemp() / "programs"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
    }


@pytest.fixture
def programs_are_kept(cache_environment, monkeypatch):
    """Processes that train share their compiled programs.

    A program from this cache does not state its memory, so it is not for tests that measure memory.
    """
    for name, value in cache_environment.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="session")
def forked(cache_environment):
    """Run `python WORDS` on JAX in a fork of a process that has imported Keras; compiled programs are kept."""
    server = ForkServer({**os.environ, **cache_environment})
    yield server.run
    server.close()
