from cost_models.xla.profiles.choice import compiler_profile


def test_what_compiles_for_a_gpu_depends_on_what_the_chip_can_do():
    volta, ampere, hopper = (compiler_profile("gpu", compute_capability=version) for version in (7.0, 8.6, 9.0))
    assert "dot-workspace" in volta
    assert "costly-pooling-operands" in hopper
    assert ampere == compiler_profile("gpu")
    assert "add" in hopper.native - ampere.native
    assert [profile.name for profile in (volta, ampere, hopper)] == ["gpu volta", "gpu", "gpu hopper"]
