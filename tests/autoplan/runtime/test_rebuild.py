"""A live model rebuilt under a plan."""

import keras
import numpy as np
import pytest

import autoplan
from autoplan.errors import PlanError
from autoplan.plan.records import Plan
from autoplan.runtime import model_facts
from tests.builders.plans import config, plain_plan
from tests.models import live


def plan_for(model, **changes):
    plain = plain_plan()
    plain["source"]["fit"]["structure"] = model_facts.structure(model)
    plain["baseline"]["config"] = config(batch=(32, 1))
    plain["config"] = config(**{"batch": (32, 1), **changes})
    return Plan.model_validate(plain)


@pytest.mark.parametrize("kind", live.KINDS)
def test_predictions_in_float32_are_equal(kind):
    model, x, _ = live.trained(kind)
    own = model.predict(x, verbose=0)
    rebuilt = autoplan.rebuild(plan_for(model, batch=(8, 4), steps_per_execution=2), model)
    np.testing.assert_array_equal(rebuilt.predict(x, verbose=0), own)
    assert (rebuilt is model) == (kind == "subclassed")
    assert rebuilt.steps_per_execution == 2
    assert rebuilt.optimizer.gradient_accumulation_steps == 4


def test_training_continues_from_the_models_state():
    model, x, y = live.trained("sequential")
    plan = plan_for(model, batch=(8, 4))
    rebuilt = autoplan.rebuild(plan, model)
    model.fit(x, y, batch_size=32, epochs=2, shuffle=False, verbose=0)
    autoplan.fit(plan, rebuilt, x, y, epochs=2, shuffle=False, verbose=0)
    assert int(rebuilt.optimizer.iterations) == int(model.optimizer.iterations) == 9
    for ours, theirs in zip(model.get_weights(), rebuilt.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_settings_of_the_build_are_applied():
    model, x, y = live.trained("functional")
    plan = plan_for(model, precision="mixed_bfloat16", remat={"mode": "activations"})
    rebuilt = autoplan.rebuild(plan, model)
    block = rebuilt.get_layer("block")
    assert (block.inner.compute_dtype, block.inner._remat_mode.mode) == ("bfloat16", "activations")
    assert model.get_layer("block").inner.compute_dtype == "float32"
    assert keras.config.dtype_policy().name == "float32"
    np.testing.assert_allclose(rebuilt.predict(x, verbose=0), model.predict(x, verbose=0), atol=0.05)
    history = autoplan.fit(plan, rebuilt, x, y, epochs=2, verbose=0)
    assert np.isfinite(history.history["loss"]).all()


def test_the_live_model_does_not_change():
    model, x, y = live.trained("functional")
    weights, iterations = model.get_weights(), int(model.optimizer.iterations)
    rebuilt = autoplan.rebuild(plan_for(model, precision="mixed_float16", batch=(8, 4)), model)
    autoplan.fit(plan_for(model, precision="mixed_float16", batch=(8, 4)), rebuilt, x, y, verbose=0)
    assert int(model.optimizer.iterations) == iterations
    assert model.optimizer.gradient_accumulation_steps is None
    for ours, kept in zip(model.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(ours, kept)


def test_a_model_that_was_never_called_is_rebuilt_and_checked_when_it_is_trained():
    trained, x, y = live.trained("subclassed")
    plan = plan_for(trained, batch=(8, 4))
    fresh = live.subclassed()
    assert autoplan.rebuild(plan, fresh) is fresh
    autoplan.fit(plan, fresh, x, y, verbose=0)
    assert int(fresh.optimizer.iterations) == 3
    wide = autoplan.rebuild(plan, _compiled(live.Subclassed([live.Block(8), live.Block(8)])))
    with pytest.raises(PlanError, match="differ in shape"):
        autoplan.fit(plan, wide, x, y)


def _compiled(model):
    model.compile("sgd", "mse")
    return model


def test_a_remat_mode_without_a_name_in_plans_is_preserved():
    with keras.RematScope(mode="larger_than", output_size_threshold=1):
        model = live.sequential()
    plain = plan_for(model, batch=(8, 4)).model_dump(mode="json", by_alias=True)
    for part in (plain["config"], plain["baseline"]["config"]):
        part["remat"] = {"mode": "full"}
    rebuilt = autoplan.rebuild(Plan.model_validate(plain), model)
    assert {layer._remat_mode[:2] for layer in rebuilt.layers} == {("larger_than", 1)}


def test_another_model_is_an_error():
    with pytest.raises(PlanError, match="differ in shape"):
        autoplan.rebuild(plan_for(live.functional()), live.sequential())


def test_a_model_that_is_not_compiled_is_an_error():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    with pytest.raises(PlanError, match="not compiled"):
        autoplan.rebuild(plan_for(model), model)


def test_a_subclassed_model_cannot_change_settings_of_the_build():
    model, _, _ = live.trained("subclassed")
    before = model.jit_compile
    with pytest.raises(PlanError, match=r"the plan changes precision and remat, .* Subclassed is a subclassed model"):
        autoplan.rebuild(
            plan_for(model, precision="mixed_bfloat16", remat={"mode": "activations"}, jit_compile=False), model
        )
    assert model.jit_compile is before


def test_a_plan_for_another_backend_is_an_error():
    model = live.sequential()
    with pytest.raises(PlanError, match="for the torch backend, but Keras runs on jax"):
        autoplan.rebuild(plan_for(model, backend="torch"), model)
