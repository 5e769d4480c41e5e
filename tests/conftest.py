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
