"""Installed compiler packages: installed versions are simulated, requirements are those of the real packages."""

from importlib.metadata import PackageNotFoundError

import pytest

from autoplan.errors import HardwareError
from autoplan.machine import compiler_packages
from cost_models.hardware.compile_targets import compiler_target
from cost_models.hardware.lookup import cluster

TPU, GPU = (compiler_target(cluster(name)) for name in ("tpu-v5e-4", "gpu-a100-80gb"))


@pytest.fixture
def installed(monkeypatch):
    """Replace the versions of some installed packages; None means not installed."""
    real = compiler_packages.version

    def but(**others):
        def version(name):
            found = others.get(name.replace("-", "_"), real)
            if found is None:
                raise PackageNotFoundError(name)
            return real(name) if found is real else found

        monkeypatch.setattr(compiler_packages, "version", version)

    return but


def test_versions_of_a_compiler_are_returned():
    assert compiler_packages.versions(TPU).keys() == {"jax", "jaxlib", "libtpu"}
    assert compiler_packages.versions(GPU).keys() >= {"jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda12-pjrt"}


@pytest.mark.parametrize(("target", "package"), [(TPU, "libtpu"), (GPU, "jax_cuda12_plugin"), (GPU, "jax_cuda12_pjrt")])
def test_a_missing_package_is_named_with_the_extra_that_installs_it(installed, target, package):
    installed(**{package: None, "jax_cuda13_plugin": None})
    with pytest.raises(HardwareError, match=r"is not installed .*pip install 'autoplan\[compilers\]'"):
        compiler_packages.versions(target)


@pytest.mark.parametrize(
    ("target", "package", "asker"),
    [
        (TPU, "libtpu", "jax"),
        (GPU, "jax_cuda12_plugin", "jax"),
        (GPU, "jax_cuda12_pjrt", "jax-cuda12-plugin"),
    ],
)
def test_a_compiler_of_the_wrong_version_is_rejected_with_both_versions(installed, target, package, asker):
    installed(**{package: "0.0.1"})
    with pytest.raises(HardwareError, match=rf"{package.replace('_', '-')} 0.0.1 is installed, but {asker} \S+ needs"):
        compiler_packages.versions(target)


@pytest.mark.parametrize("version", ["0.10.2", None])
def test_rules_of_the_installed_jaxlib_need_no_note(version, installed):
    installed(jaxlib=version)
    assert compiler_packages.rules_note() is None


def test_rules_of_another_jaxlib_are_named_with_both_versions(installed):
    installed(jaxlib="0.9.0")
    assert compiler_packages.rules_note() == (
        "memory is estimated by rules of jaxlib 0.10.2; jaxlib 0.9.0 is installed here, "
        "and its compiler may allocate more or less"
    )
