from __future__ import annotations

import pytest

from autoplan.errors import NoFeasibleConfiguration
from autoplan.plan.knobs import changes
from autoplan.tuning.space.prune import distance, feasible, nearest, rank, without_idle_accumulation
from tests.builders.estimates import candidate
from tests.builders.observations import GIB, config


def estimate(own, **figures):
    return candidate(own, **{"headroom": 0.1, **figures})


def test_what_does_not_fit_is_told_with_figures_and_the_nearest_change_that_would():
    whole = estimate(config(64), needed=19 * GIB + 2 * GIB // 5, capacity=16 * GIB, headroom=0.0625)
    half = estimate(config(32, 2), needed=16 * GIB, capacity=16 * GIB, headroom=0.0625)
    quarter = estimate(config(16, 4), needed=10 * GIB, capacity=16 * GIB, headroom=0.0625)
    other = estimate(config(16, 4, precision="mixed_bfloat16"), needed=6 * GIB, capacity=16 * GIB, headroom=0.0625)
    fitting, rejected = feasible([whole, half, quarter, other])
    assert fitting == [quarter, other]
    assert [r.config for r in rejected] == [whole.config, half.config]
    assert (rejected[0].stage, rejected[0].reason) == ("infeasible", "needs 19.4 GiB of 15.0 GiB")
    assert rejected[0].nearest == "accumulation 4 would fit"
    assert rejected[0].figures == {
        "evidence": "analytic",
        "needed_bytes": whole.needed_bytes,
        "usable_bytes": 15 * GIB,
        "capacity_bytes": 16 * GIB,
        "headroom": 0.0625,
    }


def test_small_sizes_are_told_in_small_units():
    small = estimate(config(64), needed=3 * 2**20, capacity=2 * 2**20, headroom=0.25)
    _, rejected = feasible([small, estimate(config(32, 2), needed=2**20, capacity=2 * 2**20)])
    assert rejected[0].reason == "needs 3.00 MiB of 1.50 MiB"
    with pytest.raises(
        NoFeasibleConfiguration, match=r"the least memory needed is 83\.2 KiB a device .* has 50\.0 KiB"
    ):
        feasible([estimate(config(64), needed=85_197, capacity=51_200)])


def test_when_nothing_fits_the_least_need_and_what_would_fit_are_told():
    large = estimate(config(64), needed=40 * GIB)
    least = estimate(config(1, 64), needed=18 * GIB)
    with pytest.raises(NoFeasibleConfiguration) as caught:
        feasible([large, least])
    assert caught.value.exit_code == 3
    assert str(caught.value) == (
        "none of 2 configurations fits: the least memory needed is 18.0 GiB a device (float32, batch "
        "1, accumulation 64), and a "
        "device has 10.0 GiB, of which 10% stay free. What would fit: devices with at least 20.0 GiB usable, "
        "a smaller --effective-batch, or fewer restrictions (--fix, --only)"
    )


def test_what_may_fit_is_kept_where_nothing_is_sure_to_and_trials_can_tell():
    hopeless = estimate(config(64), needed=20 * GIB, least=15 * GIB)
    hopeful = estimate(config(32, 2), needed=12 * GIB, least=9 * GIB)
    fitting, rejected = feasible([hopeless, hopeful], measurable=True)
    assert fitting == [hopeful]
    assert [r.config for r in rejected] == [hopeless.config]
    with pytest.raises(NoFeasibleConfiguration):
        feasible([hopeless, hopeful])
    with pytest.raises(NoFeasibleConfiguration):
        feasible([hopeless], measurable=True)
    sure = estimate(config(16, 4), needed=5 * GIB, least=4 * GIB)
    assert feasible([hopeful, sure], measurable=True)[0] == [sure]


def by_seconds(*seconds):
    return [estimate(config(64, n + 1), update_seconds=s * 64 * (n + 1)) for n, s in enumerate(seconds)]


def test_all_within_a_factor_of_the_best_are_kept_the_best_first():
    one, two, three = by_seconds(3.0, 1.0, 1.9)
    kept, rejected = rank([one, two, three], factor=2.0, at_least=1)
    assert kept == [two, three]
    assert [(r.config, r.stage) for r in rejected] == [(one.config, "slower")]
    assert rejected[0].reason == "estimated to take 3.00 times as long as the best"
    assert rejected[0].figures["seconds_per_sample"] == pytest.approx(3.0)
    assert rejected[0].figures["best_seconds_per_sample"] == pytest.approx(1.0)
    assert rejected[0].figures["evidence"] == "analytic"


def batches(*splits, own=(16, 4), faster=()):
    """What is kept of (global batch, accumulation) and what is not; `faster` take half the time a sample."""
    configs = [config(*split) for split in splits]
    seconds = [
        one.batch.effective * (0.5 if split in faster else 1.0) for one, split in zip(configs, splits, strict=True)
    ]
    found = [estimate(one, update_seconds=took) for one, took in zip(configs, seconds, strict=True)]
    kept, rejected = without_idle_accumulation(config(*own), found)
    return [(one.config.batch.global_size, one.config.batch.accumulation) for one in kept], rejected


def test_of_one_micro_batch_one_accumulation_is_enough():
    """All take as long a sample: what is nearest to the script's 64 samples an update stands for its micro-batch."""
    kept, rejected = batches((8, 1), (8, 2), (8, 4), (8, 16), (1, 1), (1, 2), (1, 32), (32, 1), (256, 1))
    assert kept == [(8, 4), (1, 32), (32, 1), (256, 1)]
    assert [one.figures["configurations"] for one in rejected] == [5]
    assert rejected[0].reason == (
        "more or fewer micro-steps an update are estimated to gain nothing over one that is tried"
    )


def test_a_better_accumulation_and_those_that_train_the_same_stay():
    kept, rejected = batches((8, 1), (8, 2), (8, 8), faster=[(8, 1)])
    assert kept == [(8, 1), (8, 8)], "the best prediction, and 64 samples an update"
    assert len(rejected) == 1
    assert batches((8, 8), (16, 4), (64, 1)) == ([(8, 8), (16, 4), (64, 1)], []), "a kept effective batch"


def test_the_best_few_are_kept_beyond_the_factor():
    several = by_seconds(1.0, 10.0, 20.0, 30.0)
    kept, rejected = rank(several, factor=2.0, at_least=3)
    assert kept == several[:3]
    assert len(rejected) == 1


def test_a_full_shortlist_says_so():
    several = by_seconds(1.0, 1.1, 1.2)
    kept, rejected = rank(several, factor=2.0, at_least=1, at_most=2)
    assert kept == several[:2]
    assert rejected[0].reason == "number 3 by estimate (1.20 times the best); the shortlist is full"


def test_what_is_asked_to_be_kept_is_kept():
    several = by_seconds(1.0, 10.0)
    kept, rejected = rank(several, factor=2.0, at_least=1, keep=[several[1].config])
    assert kept == several
    assert rejected == []


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (config(64), config(64), []),
        (config(64), config(16, 4), ["accumulation 4"]),
        (config(64), config(32), ["global batch 32"]),
        (config(64), config(32, 4), ["global batch 32", "accumulation 4"]),
        (config(64), config(64, precision="mixed_bfloat16"), ["precision mixed_bfloat16"]),
        (config(64), config(64, mesh={"data": 4}), ["mesh data 4"]),
        (config(64), config(64, remat={"mode": "activations"}), ["remat activations"]),
        (config(64, jit_compile=False), config(64), ["jit_compile true"]),
        (config(64), config(64, steps_per_execution=8), ["steps_per_execution 8"]),
    ],
)
def test_changes_are_said_once_and_shortly(before, after, expected):
    assert changes(before, after) == expected


def test_distance_counts_knobs_then_octaves_of_the_global_batch():
    assert distance(config(64), config(64)) == (0, 0)
    assert distance(config(64), config(16, 4)) == (1, 2)
    assert distance(config(64), config(16, 4, precision="mixed_float16")) == (2, 2)


def test_the_nearest_is_the_one_of_least_change_and_then_the_fastest():
    far = estimate(config(16, 4, precision="mixed_float16"), update_seconds=1.0)
    slow = estimate(config(64, precision="mixed_float16"), update_seconds=9.0)
    fast = estimate(config(64, precision="mixed_bfloat16"), update_seconds=5.0)
    assert nearest(config(64), [far, slow, fast]) == fast
