import pytest

from cost_models.errors import HardwareError
from cost_models.hardware.cluster import CHIP_KINDS
from cost_models.xla.target import target_of


@pytest.mark.parametrize("kind", CHIP_KINDS)
def test_every_kind_of_chip_has_a_compiler_and_shares_that_are_shares(kind):
    target = target_of(kind)
    for share in target.uncertainty:
        assert 0 < share <= 1
    assert target.fusible


def test_without_a_compiler_nothing_is_fused():
    eager = target_of("tpu", jit_compile=False)
    assert not eager.fusible
    assert not eager.absorbing
    assert not eager.epilogues


def test_an_undescribed_kind_is_an_error_that_lists_the_known():
    with pytest.raises(HardwareError, match="'npu' device; known kinds are gpu, tpu, cpu"):
        target_of("npu")


def test_what_compiles_for_a_gpu_depends_on_what_the_chip_can_do():
    volta, ampere, hopper = (target_of("gpu", compute_capability=version) for version in (7.0, 8.6, 9.0))
    assert not volta.products_compute
    assert ampere == target_of("gpu")
    assert "add" in hopper.native - ampere.native
    assert {target.name for target in (volta, ampere, hopper)} == {"gpu volta", "gpu", "gpu hopper"}


def test_a_chip_that_is_not_told_apart_is_the_usual_one_of_its_kind():
    v4 = target_of("tpu", chip="tpu-v4")
    assert v4.arithmetic
    assert v4.name == "tpu v4"
    assert target_of("tpu", chip="tpu-v5e") == target_of("tpu") != v4
    assert not target_of("tpu", chip="tpu-v4", jit_compile=False).fusible


def test_newer_tpus_keep_the_factor_of_exact_gelu_and_those_with_wider_products_leave_float32_to_these():
    v5p, v6e, v7x = (target_of("tpu", chip=f"tpu-{name}") for name in ("v5p", "v6e", "v7x"))
    assert [dict(target.arithmetic) for target in (v5p, v6e, v7x)] == [{"erfc": 12.0}] * 3
    assert [target.wide_products_apart for target in (v5p, v6e, v7x)] == [False, True, True]
    assert target_of("tpu", chip="tpu-v3") == target_of("tpu", chip="tpu-v5e")
