"""Padding to tiles against rounding up by hand."""

import numpy as np
import pytest

from cost_models.workload.workload import ITEM_BYTES, Kind
from cost_models.xla.profiles.choice import compiler_profile
from cost_models.xla.tiling import Storage, storage
from tests.builders.workloads import B, Step, dense

GPU, TPU = compiler_profile("gpu"), compiler_profile("tpu")


def stored(step, tensor, batch, target=TPU):
    return storage(step.workload(), target).at(batch)[tensor]


@pytest.mark.parametrize(
    ("dtype", "shape", "expected"),
    [
        ("float32", (8, 128), 8 * 128 * 4),
        ("float32", (5, 100), 8 * 128 * 4),
        ("float32", (3, 100), 4 * 128 * 4),  # a tile of four rows
        ("float32", (1, 256), 256 * 4),
        ("bfloat16", (1, 256), 2 * 256 * 2),  # two elements fill a word
        ("bool", (1, 256), 4 * 256),
        ("bfloat16", (9, 100), 16 * 128 * 2),
        ("float32", (5, 7, 256), 5 * 8 * 256 * 4),  # 7 rounded up to 8 wastes less than 5 would
        ("float32", (4, 64, 128), 4 * 64 * 128 * 4),
        ("float32", (1000,), 4000),
        ("float32", (), 4),
    ],
)
def test_tiles_round_two_dimensions_up_and_waste_least(dtype, shape, expected):
    step = Step()
    tensor = step.weight("w", *shape, dtype=dtype)
    assert stored(step, tensor, 1) == pytest.approx(expected)
    assert stored(step, tensor, 1, GPU) == np.prod(shape) * ITEM_BYTES[dtype]


def test_what_convolutions_touch_has_batch_and_features_in_tiles():
    """16 features, batch of 32: features along 128 lanes waste 8 times, the batch along them 4 times."""
    step = Step()
    kernel = step.weight("w", 3, 3, 16, 16)
    image = step.op(Kind.CONV, (step.input(B, 64, 64, 16), kernel), (B, 64, 64, 16))
    unpadded = 64 * 64 * 16 * 4
    assert stored(step, image, 32) == 4 * 32 * unpadded
    assert stored(step, image, 128) == 128 * unpadded
    assert stored(step, image, 8) == 8 * 8 * unpadded


def test_what_comes_from_outside_is_laid_out_freely():
    """Images of three colours: rows of 192 pixels along the lanes waste a third, batch and features 16 times."""
    step = Step()
    image = step.input(B, 192, 192, 3)
    step.op(Kind.CONV, (image, step.weight("w", 3, 3, 3, 16)), (B, 192, 192, 16))
    assert stored(step, image, 8) == 8 * 192 * 256 * 3 * 4


def test_a_single_feature_leaves_the_choice_free():
    step = Step()
    image = step.op(Kind.ELEMENTWISE, (step.input(B, 64, 128, 1),), (B, 64, 128, 1))
    step.op(Kind.POOL, (image,), (B, 32, 64, 1))
    assert stored(step, image, 3) == 3 * 64 * 128 * 4


def test_without_tiles_sizes_are_lines():
    workload = dense(33, 7)
    sizes = storage(workload, GPU)
    expected = [tensor.bytes.at(5) for tensor in workload.tensors]
    assert sizes.at(5).tolist() == expected


def test_exact_sizes_are_padded_no_further():
    assert Storage.exact(np.array([3.0, 700.0])).at(5).tolist() == [3.0, 700.0]


def joined(features, batch):
    """True if features are across the lanes of a tensor that joins 32 features and others."""
    step = Step()
    x = step.input(B, 16, 16, 128)
    few = step.op(Kind.CONV, (x, step.weight("few", 3, 3, 128, 32)), (B, 16, 16, 32))
    more = step.op(Kind.CONV, (x, step.weight("more", 3, 3, 128, features)), (B, 16, 16, features))
    both = step.op(Kind.MOVE, (few, more), (B, 16, 16, 32 + features), primitive="concatenate")
    end = step.op(Kind.CONV, (both, step.weight("end", 1, 1, 32 + features, 64)), (B, 16, 16, 64))
    lasting = storage(step.workload(end), TPU)
    return lasting.features_in_lanes(batch)[[few, more, both]].tolist(), lasting.at(batch)[few]


def test_what_is_joined_is_laid_out_alike_and_wastes_least_together():
    """Alone, 32 features would waste half as much with a batch of 64 across the lanes."""
    image = 16 * 16 * 4
    assert joined(224, 64) == ([True] * 3, 64 * image * 128)
    assert joined(224, 128) == ([False] * 3, 128 * image * 32)
