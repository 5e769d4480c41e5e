"""Models train on synthetic batches."""

import keras
import numpy as np
import pytest

from autoplan.worker.synthetic_data import assumptions, synthetic_batch, synthetic_specs
from cost_models.errors import ConfigError, WorkloadError
from tests.builders.slow import slow
from tests.models import zoo


def described(nest):
    return keras.tree.map_structure(lambda leaf: (tuple(leaf.shape), str(leaf.dtype)), nest)


def test_dense_targets_look_like_the_output():
    x, y = synthetic_specs(zoo.mlp(), 5)
    assert described(x) == ((5, 32), "float32")
    assert described(y) == ((5, 4), "float32")


def test_floats_have_the_dtype_to_which_fit_casts_arrays():
    inputs = keras.Input((3,), dtype="bfloat16")
    model = keras.Model(inputs, keras.layers.Dense(2, dtype="mixed_bfloat16")(inputs))
    model.compile("sgd", "mse")
    assert model.outputs[0].dtype == "bfloat16"
    assert described(synthetic_specs(model, 5)) == (((5, 3), "float32"), ((5, 2), "float32"))


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


@pytest.mark.parametrize("build", [zoo.mlp, zoo.recurrent, zoo.two_inputs, *slow(zoo.image_classifier, zoo.decoder)])
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


def images(*shapes):
    """A model whose inputs have these shapes."""
    inputs = [keras.Input(shape, name=f"image{number}") for number, shape in enumerate(shapes)]
    pooled = [keras.layers.GlobalAveragePooling2D()(keras.layers.Conv2D(2, 3)(one)) for one in inputs]
    model = keras.Model(inputs, keras.layers.Dense(1)(pooled[0] if len(pooled) == 1 else sum(pooled)))
    model.compile("sgd", "mse")
    return model


OPEN = (None, None, 3)


def test_sizes_that_the_model_leaves_open_can_be_given():
    x, y = synthetic_specs(images(OPEN), 4, {"": [224, 200, 3]})
    assert described(x) == [((4, 224, 200, 3), "float32")]
    assert described(y) == ((4, 1), "float32")
    x, _ = synthetic_batch(images(OPEN, OPEN), 2, shapes={"image1": [16, 32, 3]})
    assert [leaf.shape for leaf in x] == [(2, 128, 128, 3), (2, 16, 32, 3)]


def test_sizes_are_said_where_they_are_assumed_or_given():
    assert assumptions(images((8, 8, 3))) == []
    told = (
        "the model leaves sizes of its input image0 open (? x ? x 3): 128 is assumed for each, so the figures are of "
        "samples of 128 x 128 x 3; give the sizes of the training with --input-shape SIZE,SIZE,3"
    )
    assert assumptions(images(OPEN)) == [told]
    given, assumed = assumptions(images(OPEN, (8, None, 3)), {"image0": [64, 64, 3]})
    assert given == "the figures are of samples of 64 x 64 x 3 at the input image0 (--input-shape)"
    assert assumed.endswith("--input-shape image1=8,SIZE,3")


@pytest.mark.parametrize(
    ("shapes", "text"),
    [
        ({"": [224, 224]}, "--input-shape 224,224: the input image0 takes samples of ? x ? x 3; expected sizes that"),
        ({"": [224, 224, 4]}, "--input-shape 224,224,4: the input image0 takes samples of ? x ? x 3"),
        ({"image": [8, 8, 3]}, "--input-shape image=8,8,3: the model has no input of this name; its inputs are image0"),
    ],
)
def test_shapes_that_do_not_match_the_input_are_refused(shapes, text):
    with pytest.raises(ConfigError) as refused:
        synthetic_specs(images(OPEN), 4, shapes)
    assert str(refused.value).startswith(text)


def test_several_inputs_need_names():
    with pytest.raises(ConfigError, match="the model has 2 inputs; name one of image0, image1, as NAME="):
        synthetic_specs(images(OPEN, OPEN), 4, {"": [8, 8, 3]})


def test_a_shape_serves_a_model_that_is_not_built():
    model = keras.Sequential([keras.layers.Dense(3), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(WorkloadError, match="give the shape of its input with --input-shape"):
        synthetic_specs(model, 4)
    assert described(synthetic_specs(model, 4, {"": [5]})) == (((4, 5), "float32"), ((4, 1), "float32"))
