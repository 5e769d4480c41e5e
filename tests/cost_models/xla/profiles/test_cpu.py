from cost_models.xla.profiles.choice import compiler_profile


def test_a_cpu_computes_narrow_products_in_float32_and_rounds_after_every_operation():
    cpu = compiler_profile("cpu")
    assert cpu.setting("float-normalization", "products")
    assert cpu.setting("float-normalization", "rounds")
    assert not compiler_profile("gpu").setting("float-normalization", "rounds", False)
