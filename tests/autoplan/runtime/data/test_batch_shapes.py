"""Shapes of the batches of an epoch."""

import time

import keras
import numpy as np
import pytest

from autoplan.runtime.data import batch_shapes, data_facts, lookahead, nested_arrays


class Texts(keras.utils.PyDataset):
    """Batches of token sequences; `shapes` are (rows, length)."""

    def __init__(self, *shapes, pause=0.0):
        super().__init__()
        self.shapes, self.pause = shapes, pause

    def __len__(self):
        return len(self.shapes)

    def __getitem__(self, index):
        time.sleep(self.pause)
        rows, length = self.shapes[index]
        return np.zeros((rows, length), "int32"), np.zeros((rows, 1), "float32")


def described(x, **arguments):
    return data_facts.describe({"x": x, **arguments}, look_seconds=batch_shapes.LOOK_SECONDS)


def bucketed(tf, lengths, *, sizes):
    """Rows of these lengths in buckets up to 8 and 16 tokens, with a batch size for each bucket."""

    def rows():
        for length in lengths:
            yield np.ones(length, "int32"), np.float32(0)

    signature = (tf.TensorSpec((None,), tf.int32), tf.TensorSpec((), tf.float32))
    dataset = tf.data.Dataset.from_generator(rows, output_signature=signature)
    return dataset.bucket_by_sequence_length(
        lambda x, y: tf.shape(x)[0], [9, 17], [*sizes, 1], pad_to_bucket_boundary=True, drop_remainder=True
    )


def test_one_long_batch_among_sixty_is_found():
    """It is neither the first, the middle, nor the last batch."""
    found = described(Texts(*[(32, 64)] * 37, (32, 1024), *[(32, 64)] * 22)).shapes
    assert (found.looked, found.batches, found.complete) == (60, 60, True)
    assert (found.largest, found.common) == (((32, 1024), (32, 1)), ((32, 64), (32, 1)))
    assert found.differ_in_shape
    assert not found.differ_in_rows
    assert (found.shown(found.largest), found.shown(found.common)) == ("32 x 1024", "32 x 64")


def test_batches_that_take_long_are_looked_at_for_a_limited_time():
    data = Texts(*[(4, 8)] * 50, pause=0.2)
    found = data_facts.describe({"x": data}, look_seconds=0.5).shapes
    assert 3 <= found.looked < 50
    assert not found.complete
    assert found.progress == f"{found.looked} of 50 batches were looked at"


def test_without_time_only_the_usual_batches_are_read(monkeypatch):
    lengths, as_tuple = [], nested_arrays.as_tuple

    def seen(batch):
        lengths.append(batch[0].shape[1])
        return as_tuple(batch)

    monkeypatch.setattr(nested_arrays, "as_tuple", seen)
    data = Texts(*[(4, 10 + index) for index in range(50)])
    assert data_facts.describe({"x": data}).shapes is None
    assert lengths == [10, 35, 59]


def test_a_smaller_last_batch_is_no_difference():
    found = described(Texts((4, 8), (4, 8), (3, 8)))
    assert not found.shapes.differ_in_rows
    assert (found.why_fixed, found.samples, found.sampled) == ("", 11, None)


@pytest.mark.parametrize(
    ("shapes", "reason", "batch", "samples"),
    [
        ([(4, 8), (2, 16), (4, 8), (4, 8)], "its batches differ in rows and in shape", 4, 14),
        ([(4, 8), (4, 16), (4, 8), (4, 8)], "its batches differ in shape", 4, 16),
        ([(8, 8), (2, 8), (2, 8), (2, 8)], "its batches differ in their number of samples (2 to 8)", 2, 14),
    ],
)
def test_why_batches_of_a_dataset_stay_as_they_are(shapes, reason, batch, samples):
    found = described(Texts(*shapes))
    assert (found.why_fixed, found.batch, found.samples) == (reason, batch, samples)


def test_buckets_of_tf_data_differ_in_rows_and_in_shape():
    tf = pytest.importorskip("tensorflow")
    found = described(bucketed(tf, [5] * 24 + [12] * 4, sizes=[8, 2]))
    assert found.why_fixed == "its batches differ in rows and in shape"
    # Three batches of 8 rows and two of 2 rows.
    assert (found.batch, found.samples, found.micro_steps) == (8, 28, 5)
    assert found.shapes.largest == ((8, 8), (8,))


def test_a_bucketed_pipeline_with_one_batch_size_can_be_split_but_not_joined():
    tf = pytest.importorskip("tensorflow")
    found = described(bucketed(tf, [5] * 8 + [12] * 4, sizes=[4, 4]))
    assert (found.why_fixed, found.why_not_joined) == ("", "its batches differ in shape")
    assert found.rebatchable


def test_an_endless_pipeline_with_an_open_dimension_may_differ_in_shape():
    tf = pytest.importorskip("tensorflow")
    dataset = bucketed(tf, [5] * 8, sizes=[4, 4]).repeat()
    found = described(dataset, steps_per_epoch=3, epochs=4)
    assert (found.shapes.looked, found.shapes.batches) == (12, 12)
    endless = data_facts.describe({"x": dataset}, look_seconds=0.05)
    assert endless.why_not_joined.startswith("its batches may differ in shape (")
    assert "of an unknown number" in endless.shapes.progress


def test_a_pipeline_with_fixed_shapes_can_be_joined():
    tf = pytest.importorskip("tensorflow")
    dataset = tf.data.Dataset.from_tensor_slices((np.zeros((10, 3), "float32"), np.zeros(10))).batch(4)
    found = described(dataset)
    assert (found.why_fixed, found.why_not_joined, found.shapes.last[0]) == ("", "", (2, 3))


def test_a_pipeline_that_writes_its_cache_to_a_file_is_not_looked_through(tmp_path):
    tf = pytest.importorskip("tensorflow")
    dataset = tf.data.Dataset.from_tensor_slices(np.zeros((8, 3))).batch(4, drop_remainder=True)
    assert described(dataset.cache().prefetch(1)).shapes is not None
    assert described(dataset.cache(str(tmp_path / "cache")).prefetch(1)).shapes is None
    assert not list(tmp_path.iterdir())


def test_of_a_generator_only_the_first_batch_is_known():
    arguments = lookahead.buffer_first_batch({"x": (np.zeros((4, 5)) for _ in range(3)), "steps_per_epoch": 3})
    found = data_facts.describe(arguments, look_seconds=1.0)
    assert (found.shapes.looked, found.shapes.batches) == (1, 3)
    assert len(list(arguments["x"])) == 3


def test_a_loader_is_looked_through_without_advancing_its_random_numbers():
    torch = pytest.importorskip("torch")

    def padded(rows):
        length = max(map(len, rows))
        return torch.stack([torch.nn.functional.pad(row, (0, length - len(row))) for row in rows])

    rows = [torch.zeros(3 + 4 * (index == 9)) for index in range(12)]
    loader = torch.utils.data.DataLoader(rows, batch_size=4, shuffle=True, collate_fn=padded)
    before = torch.get_rng_state()
    found = described(loader).shapes
    assert torch.equal(torch.get_rng_state(), before)
    assert (found.looked, found.largest, found.common) == (3, ((4, 7),), ((4, 3),))


def test_an_array_of_text_has_a_size():
    tf = pytest.importorskip("tensorflow")
    dataset = tf.data.Dataset.from_tensor_slices((["a", "b"], [0.0, 1.0])).batch(2)
    assert described(dataset).shapes.common == ((2,), (2,))


def test_a_sample_batch_has_the_usual_shapes():
    """The first batch is longer than all the others."""
    arguments = {"x": Texts((4, 32), (4, 8), (4, 8))}
    facts = data_facts.describe(arguments, look_seconds=1.0)
    assert data_facts.sample_batch(arguments, facts, 2)[0].shape == (2, 8)
    again = data_facts.with_usual_batch(data_facts.describe(arguments), [[4, 32], [4, 1]])
    assert data_facts.sample_batch(arguments, again, 2)[0].shape == (2, 32)
