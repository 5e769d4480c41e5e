"""Selects the compiler profile of a device by its chip, the backend, and whether the step is compiled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cost_models.errors import HardwareError
from cost_models.xla.profile import Profile, Uncertainty
from cost_models.xla.profiles import cpu, gpu, tpu
from cost_models.xla.profiles.eager import eager

_BY_KIND: Mapping[str, Profile] = {"gpu": gpu.AMPERE, "tpu": tpu.V5E, "cpu": cpu.CPU}
_ON_ANOTHER_BACKEND = Uncertainty((0.5, 1.0))
"""Workloads are traced on JAX and were never compared with another backend's compiler: half as much or twice as much
of the temporaries is possible."""


def compiler_profile(
    chip_kind: str,
    jit_compile: bool = True,
    backend: str = "jax",
    compute_capability: float | None = None,
    chip: str = "",
) -> Profile:
    """Return what compiles for a device; without a compiler every operation is a kernel that writes its result.

    compute_capability  of an NVIDIA chip (None: as an A100)
    chip                its name in the catalogue; chips without a profile of their own have that of their kind

    HardwareError for a kind that has no profile.
    """
    if chip_kind not in _BY_KIND:
        known = ", ".join(_BY_KIND)
        raise HardwareError(f"no compiler rules for a {chip_kind!r} device; known kinds are {known}")
    profile = tpu.BY_CHIP.get(chip, _BY_KIND[chip_kind])
    if chip_kind == "gpu" and compute_capability is not None:
        profile = next(made for least, made in gpu.BY_CAPABILITY if compute_capability >= least)
    if backend != "jax":
        profile = replace(profile, name=f"{profile.name} {backend}", uncertainty=_ON_ANOTHER_BACKEND)
    return profile if jit_compile else eager(profile)
