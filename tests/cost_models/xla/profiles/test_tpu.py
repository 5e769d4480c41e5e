from cost_models.xla.profiles.choice import compiler_profile


def test_newer_tpus_keep_the_factor_of_exact_gelu():
    newer = [compiler_profile("tpu", chip=f"tpu-{name}") for name in ("v5p", "v6e", "v7x")]
    assert [one.setting("recompute-cost", "costs") for one in newer] == [(("erfc", 12.0),)] * 3
    assert "recompute-cost" not in compiler_profile("tpu", chip="tpu-v5e")
