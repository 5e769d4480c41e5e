"""What a fit's data say of themselves."""

import keras
import numpy as np
import pytest

from autoplan.runtime import data

X, Y = np.zeros((100, 3), "float32"), np.zeros((100, 1), "float32")


def facts(**arguments):
    found = data.describe({"x": X, "y": Y, **arguments})
    return found.kind, found.samples, found.batch, found.micro_steps, found.explicit_steps


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, ("arrays", 100, 32, 4, False)),
        ({"batch_size": 30}, ("arrays", 100, 30, 4, False)),
        ({"batch_size": 30, "validation_split": 0.25}, ("arrays", 75, 30, 3, False)),
        ({"validation_split": 0.25, "validation_data": (X, Y)}, ("arrays", 100, 32, 4, False)),
        ({"steps_per_epoch": 5}, ("arrays", 100, 20, 5, True)),
        ({"batch_size": 10, "steps_per_epoch": 3}, ("arrays", 100, 10, 3, True)),
    ],
)
def test_arrays_are_counted_as_fit_counts_them(arguments, expected):
    assert facts(**arguments) == expected


def test_nests_of_arrays_are_arrays():
    assert facts(x={"a": X, "b": X})[:3] == ("arrays", 100, 32)
    assert facts(x=[X, X])[:3] == ("arrays", 100, 32)


def test_datasets_are_counted_in_batches():
    tf = pytest.importorskip("tensorflow")
    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(32)
    assert data.describe({"x": dataset}).micro_steps == 4
    assert data.describe({"x": dataset.repeat()}).micro_steps is None
    explicit = data.describe({"x": dataset.repeat(), "steps_per_epoch": 7})
    assert (explicit.samples, explicit.micro_steps, explicit.explicit_steps) == (224, 7, True)


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 5

    def __getitem__(self, index):
        return X[:20], Y[:20]


def test_what_cannot_be_cut_anew_is_other():
    found = data.describe({"x": Batches()})
    assert (found.kind, found.batch, found.micro_steps, found.samples) == ("other", 20, 5, 100)
    assert not found.rebatchable
    generated = data.describe({"x": ((X, Y) for _ in range(3)), "steps_per_epoch": 3})
    assert (generated.kind, generated.micro_steps) == ("other", 3)


def test_a_sample_batch_has_the_rows_that_were_asked_for():
    arguments = {"x": {"a": X}, "y": Y, "class_weight": {0: 2.0}}
    x, y, weight = data.sample_batch(arguments, data.describe(arguments), 128)
    assert (x["a"].shape, y.shape, weight.shape) == ((128, 3), (128, 1), (128,))
    arguments = {"x": X, "y": None}
    assert data.sample_batch(arguments, data.describe(arguments), 8)[1] is None


def test_a_generator_is_not_consumed_by_looking():
    batches = iter([(X, Y)] * 2)
    arguments = {"x": batches}
    assert data.sample_batch(arguments, data.describe(arguments), 8) is None
    assert len(list(batches)) == 2
