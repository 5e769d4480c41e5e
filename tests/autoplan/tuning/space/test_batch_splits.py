from __future__ import annotations

import pytest

from autoplan.errors import ConfigError
from autoplan.jobs.messages import SplitProbe
from autoplan.plan import knobs
from autoplan.tuning.space.batch_splits import legal_splits, on_all_devices, why_one_mesh
from autoplan.tuning.space.legal_values import Situation
from autoplan.tuning.space.limits import Limits
from tests.builders.observations import cluster, config, observation

ALL = frozenset(knobs.tunable_fields())


def situation(own=None, devices=1, **facts):
    own = own or config()
    return Situation(observation(own, **facts), own, cluster(devices))


def limits(effective_range=None, free=ALL, **fixed):
    return Limits(fixed, free, effective_range)


def splits(where, asked, *, shard_state=False):
    return [
        (batch.global_size, batch.accumulation, mesh.data, layout.shard_state)
        for batch, mesh, layout in legal_splits(where, asked, shard_state=shard_state)
    ]


def test_an_effective_batch_is_split_over_accumulation_and_devices():
    assert splits(situation(config(4), devices=2), limits()) == [
        (4, 1, 1, False),
        (4, 1, 2, False),
        (2, 2, 1, False),
        (2, 2, 2, False),
        (1, 4, 1, False),
    ]


def test_what_is_not_free_stays():
    assert splits(situation(config(4), devices=2), limits(free=frozenset())) == [(4, 1, 1, False)]
    assert splits(situation(config(4)), limits(accumulation=2)) == [(2, 2, 1, False)]


@pytest.mark.parametrize("split", ["differs", "not_known"])
def test_a_probe_that_found_a_difference_keeps_the_split(split):
    held = SplitProbe(split=split, split_reason="the loss depends on other rows")
    assert splits(situation(config(4), devices=2, probe=held), limits()) == [(4, 1, 1, False), (4, 1, 2, False)]
    assert splits(situation(config(2, 2), probe=held), limits()) == [(2, 2, 1, False)]
    assert splits(situation(config(4), probe=held), limits((8, 8))) == [(8, 1, 1, False)]
    same = SplitProbe(split="same")
    assert len(splits(situation(config(4), probe=same), limits())) == 3


def test_a_range_of_effective_batches_lists_powers_of_two_and_the_scripts_own():
    found = splits(situation(config(48)), limits((32, 64)))
    assert {size * accumulation for size, accumulation, *_ in found} == {32, 48, 64}


def test_sharded_layouts_need_devices():
    listed = splits(situation(config(2), devices=2), limits(), shard_state=True)
    assert listed == [(2, 1, 1, False), (2, 1, 2, False), (2, 1, 2, True), (1, 2, 1, False)]
    with pytest.raises(ConfigError, match="one device has no other device to share its state with"):
        splits(situation(config(2)), limits(shard_state=True))


def test_the_only_mesh_is_explained():
    assert why_one_mesh(situation(devices=2), limits()) is None
    assert why_one_mesh(situation(devices=2), limits(data=2)) == "--fix sets its data axis to 2"
    assert why_one_mesh(situation(), limits()) == "a machine has one device, and --devices simulates more"


def test_the_baseline_on_all_devices():
    assert [one.mesh.data for one in on_all_devices(situation(devices=4))] == [4]
    assert on_all_devices(situation()) == []
    assert on_all_devices(situation(config(6), devices=4)) == []


BUCKETS = {"looked": 9, "of": 9, "common": [[16, 128]], "largest": [[16, 128]], "mean_rows": 37.2}


def test_batches_that_cannot_be_joined_are_split():
    """An update of the script's one batch is split; more samples an update are more of its batches."""
    where = situation(config(4), splits_only=True)
    assert splits(where, limits()) == [(4, 1, 1, False), (2, 2, 1, False), (1, 4, 1, False)]
    assert splits(where, limits((8, 8))) == [(4, 2, 1, False)]
    assert splits(situation(config(2, 2), splits_only=True), limits()) == [(2, 2, 1, False)]


def test_batches_that_differ_in_rows_have_no_other_effective_batch():
    buckets = BUCKETS | {"differ_in_rows": True, "differ_in_shape": True}
    why = "its batches differ in rows and in shape"
    where = situation(config(16), rebatchable=False, batches=buckets, why_fixed_batch=why)
    assert splits(where, limits((16, 256))) == [(16, 1, 1, False)]
    with pytest.raises(
        ConfigError, match=rf"^--effective-batch 64..256: the batch stays 16 here, because {why}; leave"
    ):
        splits(where, limits((64, 256)))
