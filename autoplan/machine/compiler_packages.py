"""Checks which compiler packages are installed, and whether their versions match the installed JAX.

Nothing is imported; the versions come from the metadata of the packages.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement

from autoplan.errors import HardwareError
from cost_models.hardware.compile_targets import EXTRA, CompilerTarget
from cost_models.xla.rules import READ_FROM

_PACKAGES = {
    "tpu": (("libtpu",),),
    "cuda": (("jax-cuda12-plugin", "jax-cuda12-pjrt"), ("jax-cuda13-plugin", "jax-cuda13-pjrt")),
}
"""Groups of packages of a platform's compiler; any one of the groups suffices."""
_ASSEMBLERS = {"tpu": (), "cuda": ("nvidia-cuda-nvcc-cu12", "nvidia-cuda-nvcc")}
"""Packages that assemble a compiler's output; an installed CUDA toolkit does so, too."""
_CALLED = {"tpu": "XLA:TPU", "cuda": "XLA:GPU"}


def versions(target: CompilerTarget) -> dict[str, str]:
    """Return the versions of the packages that compile for a target.

    HardwareError if a package is missing, or does not match the installed JAX.
    """
    found = {name: _installed(name) for name in ("jax", "jaxlib")}
    if found["jax"] is None:
        raise HardwareError(
            f"{target.name} is compiled through JAX, which is not installed; pip install 'autoplan[{EXTRA}]'"
        )
    if target.platform != "cpu":
        found |= _compiler(target)
    return {name: one for name, one in found.items() if one is not None}


def why_missing(target: CompilerTarget) -> str | None:
    """Return why nothing can be compiled for a target with this installation; None if it can."""
    try:
        versions(target)
    except HardwareError as error:
        return str(error)
    return None


def rules_note() -> str | None:
    """Return a note if another jaxlib is installed than the release that the compiler rules were read from."""
    read_from, installed = READ_FROM.split()[-1], _installed("jaxlib")
    if installed is None or installed == read_from:
        return None
    return (
        f"memory is estimated by rules of jaxlib {read_from}; jaxlib {installed} is installed here, "
        "and its compiler may allocate more or less"
    )


def _compiler(target: CompilerTarget) -> dict[str, str | None]:
    groups = _PACKAGES[target.platform]
    installed = next((group for group in groups if all(map(_installed, group))), None)
    if installed is None:
        raise HardwareError(
            f"{target.name} needs {_CALLED[target.platform]}, which is not installed "
            f"({' and '.join(groups[0])}); pip install 'autoplan[{EXTRA}]'"
        )
    for name in installed:
        asker, wanted, there = *_requirement(name, ("jax", *installed)), _installed(name)
        if wanted is not None and there is not None and not wanted.specifier.contains(there, prereleases=True):
            raise HardwareError(
                f"{target.name}: {name} {there} is installed, but {asker} {_installed(asker)} needs "
                f"{name}{wanted.specifier}; pip install --upgrade 'autoplan[{EXTRA}]'"
            )
    return {name: _installed(name) for name in (*installed, *_ASSEMBLERS[target.platform])}


def _requirement(name: str, askers: Sequence[str]) -> tuple[str, Requirement | None]:
    """Return the first package that requires `name`, with its requirement, in any of its extras."""
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
