"""Lets Keras's JAX backend see the platform of a device that is not here, while a training step is traced or lowered.

Keras 3.15 asks for the platform, for cuDNN and for the compute capability in its Python code, and chooses operations by
the answers. In the context of `seen_as` the names by which it asks are replaced; nothing of JAX's own state changes.
`QUESTIONS` lists every place of Keras that asks, and a test compares the list with the installed Keras.

The sizes of the buffers of cuDNN's LSTM, which JAX asks cuDNN for while it traces, are calculated.

Only the JAX backend asks so. Training steps of TensorFlow and PyTorch are traced on JAX as on a CPU (`HOST`): which
kernels these backends choose on a GPU is not described by such a trace.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from cost_models.hardware.platform import CUDNN, TargetPlatform, at_least, exactly
from cost_models.workload.lstm import buffer_sizes

CUDNN_VERSION = 91000
"""The version of cuDNN that GPUs that are not here are taken to have (9.10.0): jax 0.10 requires 9.8 or later, and
Keras's choices differ only for multi-head latent attention (9.10) and compute capability 10.3 (9.11)."""
_SIZES = "compute_rnn_workspace_reserve_space_sizes"
"""The function of jaxlib that asks cuDNN for the sizes of an LSTM's buffers, which needs a GPU."""
_CUDNN_ATTENTION = "jax._src.cudnn.fused_attention_stablehlo"

_SEEN, _OUTSIDE = "answered for the target", "not asked while a step is traced"
QUESTIONS: Mapping[str, Mapping[str, str]] = {
    "backend/jax/nn.py": {
        'if jax.devices()[0].platform == "tpu":': _SEEN,
        "platform = jax.devices()[0].platform": _SEEN,
        'is_tpu = platform == "tpu"': _SEEN,
        "cudnn_version = check_cudnn_version()": _SEEN,
        'if not check_compute_capability("8.0"):': _SEEN,
    },
    "backend/jax/numpy.py": {
        'return device.platform == "cpu"': _SEEN,
        'return jax.default_backend() == "cpu"': _SEEN,
    },
    "backend/jax/rnn.py": {
        'return jax.default_backend() == "gpu"': _SEEN,
    },
    "ops/nn.py": {
        'if jax.devices()[0].platform != "tpu":': "not answered: only refuses attn_logits_soft_cap",
    },
    "backend/jax/trainer.py": {
        'if jax.default_backend() == "cpu":': "not answered: `cost_models.memory` counts the next batch",
    },
    "backend/jax/export.py": {
        "from jax import default_backend as jax_device": _OUTSIDE,
        'jax_device() == "gpu"': _OUTSIDE,
    },
    "backend/jax/distribution_lib.py": {
        "jax_devices = jax.devices(backend=device_type)": _OUTSIDE,
        'return [f"{device.platform}:{device.id}" for device in jax_devices]': _OUTSIDE,
        "return jax.device_count(device_type)": _OUTSIDE,
        'cpu_devices = jax.devices("cpu")': _OUTSIDE,
        'num_local_cpu_devices = jax.local_device_count("cpu")': _OUTSIDE,
        "return jax.process_count()": _OUTSIDE,
        "return jax.process_index()": _OUTSIDE,
        "devices = jax.devices(backend=device_type)": _OUTSIDE,
        "if device.platform == device_type and device.id == int(device_id):": _OUTSIDE,
    },
    "trainers/data_adapters/data_adapter_utils.py": {
        'with jax.default_device(jax.local_devices(backend="cpu")[0]):': _OUTSIDE,
    },
}
"""Each place of the installed Keras that asks JAX for its devices, by file and line, and how it is answered."""


class Answers:
    """The answers of a platform, and a record of the questions that were asked."""

    def __init__(self, platform: TargetPlatform) -> None:
        self.platform = platform
        self._asked: dict[str, bool] = {}

    def to(self, question: str) -> bool:
        """Answer a question and record it."""
        self._asked[question] = self.platform.answer(question)
        return self._asked[question]

    @property
    def given(self) -> tuple[tuple[str, bool], ...]:
        """The questions that were asked, in alphabetical order, with their answers."""
        return tuple(sorted(self._asked.items()))


@contextmanager
def seen_as(platform: TargetPlatform) -> Iterator[Answers]:
    """Let Keras see a platform in this context. Yields the answers that it gets."""
    answers = Answers(platform)
    outer: list[tuple[Any, str, Any]] = []
    for module, names in _replacements(answers).items():
        there = _module(module)
        for name in names.keys() & vars(there).keys():  # other versions of Keras ask less
            outer.append((there, name, getattr(there, name)))
            setattr(there, name, names[name])
    try:
        yield answers
    finally:
        for there, name, value in outer:
            setattr(there, name, value)


def _module(name: str) -> Any:
    """Return a module of Keras or JAX, or an empty one where this version has none of this name."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return SimpleNamespace()


def _replacements(answers: Answers) -> dict[str, dict[str, Any]]:
    """Return the names to replace, by module."""

    def cudnn_version() -> int:
        if not answers.to(CUDNN):
            raise RuntimeError("cuDNN is not detected.")  # as JAX says it, and Keras expects it
        return CUDNN_VERSION

    def has_capability(capability: str) -> bool:
        return answers.to(at_least(capability))

    def is_capability(capability: str) -> bool:
        return answers.to(exactly(capability))

    return {
        "keras.src.backend.jax.nn": {"jax": _JaxSeen(answers)},
        "keras.src.backend.jax.numpy": {"_uses_cpu": lambda x: answers.to("cpu")},
        "keras.src.backend.jax.rnn": {"_is_gpu_available": lambda: answers.to("gpu")},
        # Both names are of one module, which has no function where no plug-in for GPUs is installed.
        "jax.experimental.rnn": {"gpu_rnn": SimpleNamespace(**{_SIZES: buffer_sizes})},
        "jaxlib.gpu_rnn": {_SIZES: buffer_sizes},
        _CUDNN_ATTENTION: {
            "check_cudnn_version": cudnn_version,
            "check_compute_capability": has_capability,
            "is_cuda_compute_capability_equal": is_capability,
        },
    }


class _JaxSeen:
    """The module `jax`, but for its devices."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers

    def __getattr__(self, name: str) -> Any:
        import jax

        return getattr(jax, name)

    def devices(self) -> list[_DeviceSeen]:
        """Return one device, of which Keras only asks the platform."""
        return [_DeviceSeen(self._answers)]


class _DeviceSeen:
    """A device of the platform."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers

    @property
    def platform(self) -> str:
        """The platform. Keras's attention only asks whether it is a TPU."""
        self._answers.to("tpu")
        return self._answers.platform.kind
