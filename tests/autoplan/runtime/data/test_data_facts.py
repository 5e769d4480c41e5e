"""Facts about the data of a fit."""

import re

import keras
import numpy as np
import pytest

from autoplan.runtime.data import data_facts, lookahead

X, Y = np.zeros((100, 3), "float32"), np.zeros((100, 1), "float32")


def facts(**arguments):
    found = data_facts.describe({"x": X, "y": Y, **arguments})
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
    assert data_facts.describe({"x": dataset}).micro_steps == 4
    assert data_facts.describe({"x": dataset.repeat()}).micro_steps is None
    explicit = data_facts.describe({"x": dataset.repeat(), "steps_per_epoch": 7})
    assert (explicit.samples, explicit.micro_steps, explicit.explicit_steps) == (224, 7, True)


def test_a_dataset_that_may_have_a_partial_batch_is_not_exact():
    tf = pytest.importorskip("tensorflow")
    dataset = tf.data.Dataset.from_tensor_slices((X, Y))
    assert not data_facts.describe({"x": dataset.batch(32)}).exact
    assert data_facts.describe({"x": dataset.batch(32, drop_remainder=True)}).exact
    ragged = tf.data.Dataset.from_tensors((tf.ragged.constant([[1.0], [1.0, 2.0]]), [1.0, 2.0]))
    assert data_facts.describe({"x": ragged}).why_fixed == "its batches are not all dense tensors"


class Batches(keras.utils.PyDataset):
    """A PyDataset with batches of these rows and this width."""

    def __init__(self, *sizes, widths=None):
        super().__init__()
        self.sizes, self.widths = sizes, widths or [3] * len(sizes)

    def __len__(self):
        return len(self.sizes)

    def __getitem__(self, index):
        return np.zeros((self.sizes[index], self.widths[index])), np.zeros(self.sizes[index])


def test_a_pydataset_is_counted_by_its_batches():
    found = data_facts.describe({"x": Batches(20, 20, 20, 20, 7)})
    assert (found.kind, found.batch, found.micro_steps, found.samples) == ("PyDataset", 20, 5, 87)
    assert (found.last_rows, found.rebatchable, found.explicit_steps) == (7, True, False)
    explicit = data_facts.describe({"x": Batches(20, 20, 20), "steps_per_epoch": 2})
    assert (explicit.samples, explicit.micro_steps, explicit.explicit_steps) == (40, 2, True)
    assert data_facts.describe({"x": Batches(20)}).samples == 20


@pytest.mark.parametrize(
    ("batches", "why"),
    [
        (Batches(20, 20, 16, 20, 20), r"differ in their number of samples \(20, 16, 20\)"),
        (Batches(20, 20, 30), r"differ in their number of samples \(20, 20, 30\)"),
        (Batches(20, 20, 20, widths=[3, 4, 5]), "differ in shape"),
    ],
)
def test_unequal_batches_cannot_be_rebatched(batches, why):
    found = data_facts.describe({"x": batches})
    assert re.search(why, found.why_fixed)
    assert not found.rebatchable


def test_facts_about_a_generator_come_from_its_first_batch():
    found = data_facts.describe(
        lookahead.buffer_first_batch({"x": ((X[:20], Y[:20]) for _ in range(3)), "steps_per_epoch": 3})
    )
    assert (found.kind, found.batch, found.micro_steps, found.samples) == ("generator", 20, 3, 60)
    assert found.rebatchable
    assert not found.exact
    endless = data_facts.describe(lookahead.buffer_first_batch({"x": ((X, Y) for _ in range(3))}))
    assert (endless.samples, endless.micro_steps) == (None, None)
    assert not data_facts.describe(lookahead.buffer_first_batch({"x": (number for number in range(3))})).rebatchable


def test_data_of_an_unknown_kind_are_other():
    class Loader:
        batch_size = 20

        def __len__(self):
            return 5

    found = data_facts.describe({"x": Loader()})
    assert (found.kind, found.batch, found.micro_steps, found.samples) == ("other", 20, 5, 100)
    assert not found.rebatchable
    assert data_facts.sample_batch({"x": Loader()}, found, 4) is None


def test_a_sample_batch_has_the_requested_number_of_rows():
    arguments = {"x": {"a": X}, "y": Y, "class_weight": {0: 2.0}}
    x, y, weight = data_facts.sample_batch(arguments, data_facts.describe(arguments), 128)
    assert (x["a"].shape, y.shape, weight.shape) == ((128, 3), (128, 1), (128,))
    arguments = {"x": X, "y": None}
    assert data_facts.sample_batch(arguments, data_facts.describe(arguments), 8).shape == (8, 3)


def test_floating_point_arrays_have_the_dtype_that_fit_feeds():
    arguments = {"x": {"a": np.zeros((9, 2)), "b": np.zeros((9, 1), dtype="int64")}, "y": np.zeros((9, 1), "float16")}
    x, y = data_facts.sample_batch(arguments, data_facts.describe(arguments), 4)
    assert (x["a"].dtype, x["b"].dtype, y.dtype) == ("float32", "int64", "float32")


def test_a_sample_batch_has_the_structure_that_train_step_receives():
    """A custom train_step may unpack a batch itself, so the batch has the structure of the data."""
    tf = pytest.importorskip("tensorflow")
    whole = {"images": X[:4], "labels": Y[:4]}
    for x in (tf.data.Dataset.from_tensors(whole), lookahead.buffer_first_batch({"x": (whole for _ in range(3))})["x"]):
        arguments = {"x": x}
        batch = data_facts.sample_batch(arguments, data_facts.describe(arguments), 2)
        assert {name: part.shape for name, part in batch.items()} == {"images": (2, 3), "labels": (2, 1)}
    arguments = {"x": Batches(20, 20), "class_weight": {0: 1.0}}
    assert [part.shape for part in data_facts.sample_batch(arguments, data_facts.describe(arguments), 2)] == [
        (2, 3),
        (2,),
        (2,),
    ]


def test_sparse_data_have_no_sample_batch():
    sparse = pytest.importorskip("scipy.sparse")
    arguments = {"x": sparse.csr_matrix(X), "y": Y}
    facts = data_facts.describe(arguments)
    assert facts.samples == 100
    assert data_facts.sample_batch(arguments, facts, 2) is None
