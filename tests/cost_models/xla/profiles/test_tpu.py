from cost_models.xla.profiles.choice import compiler_profile


def test_newer_tpus_keep_the_factor_of_exact_gelu_and_those_with_wider_products_leave_float32_to_these():
    newer = [compiler_profile("tpu", chip=f"tpu-{name}") for name in ("v5p", "v6e", "v7x")]
    assert [one.setting("recompute-cost", "always") for one in newer] == [(("erfc", 12.0),)] * 3
    assert [one.setting("gemm-epilogue", "leaves_to_products", False) for one in newer] == [False, True, True]
    assert ["relu-mask-packing" in one for one in newer] == [True, False, False]
