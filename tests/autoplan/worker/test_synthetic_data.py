"""Models train on synthetic batches."""

import keras
import numpy as np
import pytest

from autoplan.worker.synthetic_data import synthetic_batch, synthetic_specs
from cost_models.errors import WorkloadError
from tests.models import zoo


def described(nest):
    return keras.tree.map_structure(lambda leaf: (tuple(leaf.shape), str(leaf.dtype)), nest)


def test_dense_targets_look_like_the_output():
    x, y = synthetic_specs(zoo.mlp(), 5)
    assert described(x) == ((5, 32), "float32")
    assert described(y) == ((5, 4), "float32")


def test_sparse_targets_are_classes_without_their_axis():
    _, y = synthetic_specs(zoo.image_classifier(), 5)
    assert described(y) == ((5,), "int32")
    _, tokens = synthetic_specs(zoo.decoder(), 5)
    assert described(tokens) == ((5, 16), "int32")


def test_structures_are_preserved_and_each_output_has_the_target_of_its_loss():
    x, y = synthetic_specs(zoo.two_inputs(), 5)
    assert described(x) == {"words": ((5, 6), "int32"), "numbers": ((5, 3), "float32")}
    assert described(y) == {"kind": ((5,), "int32"), "size": ((5, 1), "float32")}


def test_values_are_within_range():
    x, y = synthetic_batch(zoo.two_inputs(), 200, seed=1)
    assert set(np.unique(x["words"])) <= set(range(50))
    assert set(np.unique(y["kind"])) == set(range(7))
    assert x["numbers"].dtype == np.float32


def test_a_seed_gives_the_same_batch():
    one, two, other = (synthetic_batch(zoo.mlp(), 4, seed=seed)[0] for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, two)
    assert not np.array_equal(one, other)


@pytest.mark.parametrize("build", [zoo.mlp, zoo.image_classifier, zoo.decoder, zoo.recurrent, zoo.two_inputs])
def test_models_train_on_synthetic_batches(build):
    model = build()
    x, y = synthetic_batch(model, 4, seed=0)
    assert np.isfinite(model.train_on_batch(x, y)).all()


def test_an_open_dimension_gets_a_size():
    inputs = keras.Input((None, 3))
    model = keras.Model(inputs, keras.layers.Conv1D(2, 3)(inputs))
    model.compile(optimizer="sgd", loss="mse")
    x, y = synthetic_specs(model, 4)
    assert described(x) == ((4, 128, 3), "float32")
    assert described(y) == ((4, 126, 2), "float32")


def test_a_model_without_a_compiled_loss_has_no_target():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(optimizer="sgd")
    assert synthetic_specs(model, 4)[1] is None
    assert synthetic_batch(model, 4)[1] is None


def test_an_unbuilt_model_is_an_error_with_a_remedy():
    with pytest.raises(WorkloadError, match=r"has not been built.*provide training data"):
        synthetic_specs(zoo.subclassed(), 4)
