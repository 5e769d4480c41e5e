"""Which compilers this installation has, in which versions, and what to say where one is missing or does not match.

Nothing is imported: what is installed is read off its metadata.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement

from autoplan.errors import HardwareError
from cost_models.hardware.compile_targets import EXTRA, CompilerTarget

_PACKAGES = {
    "tpu": (("libtpu",),),
    "cuda": (("jax-cuda12-plugin", "jax-cuda12-pjrt"), ("jax-cuda13-plugin", "jax-cuda13-pjrt")),
}
"""What brings a platform's compiler: any one of these groups."""
_ASSEMBLERS = {"tpu": (), "cuda": ("nvidia-cuda-nvcc-cu12", "nvidia-cuda-nvcc")}
"""What turns a compiler's output into machine code; a CUDA toolkit of the machine's own does too."""
_CALLED = {"tpu": "XLA:TPU", "cuda": "XLA:GPU"}


def versions(target: CompilerTarget) -> dict[str, str]:
    """The packages that compile for a target, with their versions; the key of evidence.

    HardwareError where they are missing, or are not those that the installed JAX works with.
    """
    found = {name: _installed(name) for name in ("jax", "jaxlib")}
    if found["jax"] is None:
        raise HardwareError(
            f"{target.name} is asked through JAX, which is not installed; pip install 'autoplan[{EXTRA}]'"
        )
    if target.platform != "cpu":
        found |= _compiler(target)
    return {name: one for name, one in found.items() if one is not None}


def missing(target: CompilerTarget) -> str | None:
    """Why nothing can be compiled for a target here; None where it can."""
    try:
        versions(target)
    except HardwareError as error:
        return str(error)
    return None


def _compiler(target: CompilerTarget) -> dict[str, str | None]:
    groups = _PACKAGES[target.platform]
    installed = next((group for group in groups if all(map(_installed, group))), None)
    if installed is None:
        raise HardwareError(
            f"{target.name} needs {_CALLED[target.platform]}, which is not installed here "
            f"({' and '.join(groups[0])}); pip install 'autoplan[{EXTRA}]'"
        )
    for name in installed:
        asker, wanted, there = *_wanted(name, ("jax", *installed)), _installed(name)
        if wanted is not None and there is not None and not wanted.specifier.contains(there, prereleases=True):
            raise HardwareError(
                f"{target.name}: {name} {there} is installed, and {asker} {_installed(asker)} works with "
                f"{name}{wanted.specifier}; pip install --upgrade 'autoplan[{EXTRA}]'"
            )
    return {name: _installed(name) for name in (*installed, *_ASSEMBLERS[target.platform])}


def _wanted(name: str, askers: Sequence[str]) -> tuple[str, Requirement | None]:
    """The first of the installed packages that asks for `name` and what it asks, in whichever of its extras."""
    for asker in askers:
        wanted = (Requirement(line) for line in requires(asker) or ())
        if found := next((one for one in wanted if one.name == name), None):
            return asker, found
    return askers[0], None


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
