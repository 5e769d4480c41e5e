from __future__ import annotations

from dataclasses import replace

import pytest

from autoplan.tuning.estimates.largest_part import largest_part_note
from cost_models.estimate import Validation
from cost_models.memory import LargestTensors
from tests.builders import estimates
from tests.builders.observations import GIB, cluster, config, observation

LOGITS = {"logits": [[1024, 50257]]}


def note(*, shape=(32, 1024, 50257), count=1, size=6 * GIB, here=None, validation=None, total=10 * GIB, **facts):
    tensors = LargestTensors("decoder/head", "activations", "float32", shape, count, size)
    memory = estimates.memory(total, parameters=GIB, optimizer=2 * GIB, activations=total - 3 * GIB)
    found = replace(estimates.estimate(config()), memory=memory, largest=tensors, validation=validation)
    return largest_part_note(found, observation(**facts), here or cluster())


def test_logits_are_named_with_their_shape():
    assert note(**LOGITS) == "the largest part of the memory: logits 32 x 1024 x 50257 float32, 6.00 GiB (analytic)"


@pytest.mark.parametrize("shape", [(32 * 1024, 50257), (32, 1024, 50257)])
def test_several_arrays_of_their_shape_are_counted(shape):
    assert "2 arrays like the logits 32" in note(shape=shape, count=2, **LOGITS)


def test_another_array_has_the_name_of_its_layer():
    assert "activations of decoder/head 8 x 64 float32" in note(shape=(8, 64), **LOGITS)


def test_the_optimizer_or_the_data_may_be_the_largest():
    assert "the optimizer's state, 2.00 GiB" in note(size=GIB)
    assert "the data set held in memory, 7.00 GiB" in note(data_bytes=7 * GIB)
    assert "decoder/head" in note(data_bytes=7 * GIB, here=cluster(kind="gpu"))


def test_the_validation_batch_is_named_where_it_needs_the_most():
    cost = estimates.memory(20 * GIB, parameters=GIB, optimizer=2 * GIB, activations=17 * GIB)
    validation = Validation(4096, cost, fits=False, may_fit=True)
    assert note(validation=validation).startswith(
        "the largest part of the memory: the validation batch of 4,096 rows at once, 17.0 GiB"
    )


def test_nothing_is_named_where_no_part_is_notable():
    assert note(size=1, total=100 * GIB) is None
