import pytest

from cost_models.xla.profiles.choice import compiler_profile


@pytest.mark.parametrize("kind", ["gpu", "tpu", "cpu"])
def test_without_a_compiler_nothing_is_fused_or_moved(kind):
    eager = compiler_profile(kind, jit_compile=False)
    assert not eager.fusible | eager.absorbing | eager.free_moves
    assert eager.fusion.name == "priority-fusion"
    assert not eager.materialized + eager.fusion_rules


def test_a_librarys_scratch_is_needed_without_a_compiler_too():
    assert "dot-workspace" in compiler_profile("gpu", jit_compile=False, compute_capability=7.0)
    assert "dot-workspace" not in compiler_profile("gpu", jit_compile=False)
