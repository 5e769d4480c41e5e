import pytest

from cost_models.errors import HardwareError
from cost_models.hardware.cluster import CHIP_KINDS
from cost_models.xla.profiles.choice import compiler_profile


@pytest.mark.parametrize("kind", CHIP_KINDS)
def test_every_kind_of_chip_has_a_profile_with_shares_that_are_shares(kind):
    profile = compiler_profile(kind)
    uncertainty = profile.uncertainty
    for interval in (uncertainty.convolutions, uncertainty.plain, uncertainty.loops):
        assert interval is None or all(0 < share <= 1 for share in interval)
    assert profile.fusible


def test_a_kind_without_a_profile_is_an_error_that_lists_the_known():
    with pytest.raises(HardwareError, match="'npu' device; known kinds are gpu, tpu, cpu"):
        compiler_profile("npu")


def test_other_backends_have_a_wider_interval_and_the_same_rules():
    jax, torch = compiler_profile("gpu"), compiler_profile("gpu", backend="torch")
    assert torch.uncertainty.convolutions > jax.uncertainty.convolutions
    assert torch.uncertainty.plain is None
    assert torch.rules == jax.rules


def test_a_chip_without_a_profile_of_its_own_has_that_of_its_kind():
    v4 = compiler_profile("tpu", chip="tpu-v4")
    assert v4.name == "tpu v4"
    assert (
        compiler_profile("tpu", chip="tpu-v5e")
        == compiler_profile("tpu", chip="tpu-v3")
        == compiler_profile("tpu")
        != v4
    )
    assert not compiler_profile("tpu", chip="tpu-v4", jit_compile=False).fusible
