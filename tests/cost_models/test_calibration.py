"""Factors from pairs whose truth is known."""

from dataclasses import replace

import pytest

from cost_models import Batch, ConfigError, TrainConfig, memory, step_time
from cost_models.calibration import INTERVAL, MEMORY_NOISE, TIME_PRIOR, MemoryPair, TimePair, calibrate
from cost_models.time.cost import TimeCost
from tests.builders.workloads import cluster, dense

TRUTH = {"compute": 1.3, "bandwidth": 0.8, "dispatch": 2.2}


def predicted(compute=0.0, traffic=0.0, overhead=0.0, communication=0.0):
    seconds = compute + traffic + overhead + communication
    return TimeCost(
        micro_step_seconds=seconds,
        update_seconds=4 * seconds,
        compute_seconds=compute,
        memory_seconds=traffic,
        communication_seconds=communication,
        overhead_seconds=overhead,
        samples_per_second=32 / seconds,
        mfu=0.4,
        bound="compute",
    )


def observed(cost):
    return (
        TRUTH["compute"] * cost.compute_seconds
        + TRUTH["bandwidth"] * cost.memory_seconds
        + TRUTH["dispatch"] * cost.overhead_seconds
        + cost.communication_seconds
    )


def pairs(*costs):
    return [TimePair(cost, observed(cost)) for cost in costs]


SPREAD = [
    predicted(1.0, 0.1, 0.01, 0.2),
    predicted(0.1, 1.0, 0.01),
    predicted(0.01, 0.02, 0.1),
]


def test_three_observations_of_different_kinds_tell_the_three_factors_apart():
    found = calibrate(pairs(*SPREAD))
    for name, truth in TRUTH.items():
        factor = getattr(found, name)
        assert factor.value == pytest.approx(truth, rel=0.03)
        assert factor.low < truth < factor.high
    assert (found.times, found.memories) == (3, 0)


def test_many_observations_leave_nothing_to_the_prior():
    found = calibrate(pairs(*SPREAD * 200))
    for name, truth in TRUTH.items():
        factor = getattr(found, name)
        assert factor.value == pytest.approx(truth, rel=1e-3)
        assert factor.high / factor.low < 1.05


def test_without_observations_predictions_stay_as_they_are_and_as_uncertain():
    found = calibrate()
    for name, deviation in zip(("compute", "bandwidth", "dispatch"), TIME_PRIOR, strict=True):
        factor = getattr(found, name)
        assert factor.value == 1.0
        assert factor.high == pytest.approx(1 / factor.low) == pytest.approx(2.718281828 ** (INTERVAL * deviation))
    assert found.time(SPREAD[0]) == SPREAD[0]


def test_an_observation_moves_only_what_it_can_speak_of():
    found = calibrate([TimePair(predicted(compute=1.0), 1.4)])
    assert found.compute.value == pytest.approx(1.4, rel=0.02)
    assert found.bandwidth == calibrate().bandwidth
    assert found.dispatch == calibrate().dispatch


def test_where_an_observation_can_not_tell_parts_apart_they_share_what_it_says():
    found = calibrate([TimePair(predicted(compute=0.5, traffic=0.5), 1.2)])
    assert found.compute.value == pytest.approx(found.bandwidth.value)
    assert found.time(predicted(0.5, 0.5)).micro_step_seconds == pytest.approx(1.2, rel=0.02)


def test_communication_is_taken_as_predicted():
    cost = predicted(compute=0.4, communication=0.6)
    found = calibrate([TimePair(cost, 0.4 * 1.5 + 0.6)])
    assert found.compute.value == pytest.approx(1.5, rel=0.05)
    assert found.time(cost).communication_seconds == 0.6


def test_observations_that_contradict_one_another_widen_the_interval():
    alike = [TimePair(predicted(compute=1.0), seconds) for seconds in (1.2,) * 8]
    unlike = [TimePair(predicted(compute=1.0), seconds) for seconds in (0.9, 1.6) * 4]
    narrow, wide = (calibrate(found).compute for found in (alike, unlike))
    assert wide.high / wide.low > 1.3 * narrow.high / narrow.low


def test_one_odd_observation_moves_trusted_rates_less():
    usual, odd = predicted(compute=1.0, traffic=0.5), predicted(compute=0.9, traffic=0.1)
    seen = [*(TimePair(usual, usual.micro_step_seconds),) * 2, TimePair(odd, 1.7 * odd.micro_step_seconds)]
    cited, probed = (calibrate(seen, probed=trusted).compute.value for trusted in (False, True))
    assert 1.0 < probed < 1.0 + 0.6 * (cited - 1.0)


def test_a_machine_of_another_speed_is_found_out_though_its_rates_are_trusted():
    slower = [TimePair(predicted(compute=1.0, traffic=part), 1.25 * (1 + part)) for part in (0.5, 1.0, 2.0)]
    found = calibrate(slower * 4, probed=True)
    other = predicted(compute=1.0, traffic=1.5)
    assert found.time(other).micro_step_seconds == pytest.approx(1.25 * 2.5, rel=0.06)


def test_a_corrected_time_adds_up_and_keeps_its_ratios():
    found = calibrate(pairs(*SPREAD))
    cost = predicted(1.0, 0.5, 0.1, 0.2)
    after = found.time(cost)
    parts = after.compute_seconds + after.memory_seconds + after.communication_seconds + after.overhead_seconds
    assert parts == pytest.approx(after.micro_step_seconds)
    assert after.update_seconds / after.micro_step_seconds == pytest.approx(4)
    assert after.samples_per_second * after.micro_step_seconds == pytest.approx(32)
    assert after.mfu * after.micro_step_seconds == pytest.approx(cost.mfu * cost.micro_step_seconds)


def test_it_takes_real_predictions():
    workload, machine = dense(512, 256), cluster("gpu", kernel_launch_seconds=1e-6, dispatch_seconds=1e-4)
    costs = [step_time(workload, TrainConfig(Batch(size)), machine) for size in (8, 512, 65536)]
    found = calibrate([TimePair(cost, 1.25 * cost.micro_step_seconds) for cost in costs])
    for cost in costs:
        assert found.time(cost).micro_step_seconds == pytest.approx(1.25 * cost.micro_step_seconds, rel=0.03)


def needed(batch):
    return memory(dense(256, 512, slots=2), TrainConfig(Batch(batch)), cluster("gpu"))


def temporaries(cost):
    return cost.gradients + cost.weight_copies + cost.activations + cost.workspace


def test_one_compile_corrects_the_temporaries_and_leaves_the_state_alone():
    seen, other = needed(4096), needed(16384)
    truth = 1.2
    found = calibrate(memories=[MemoryPair(seen, seen.total + round((truth - 1) * temporaries(seen)))])
    after = found.bytes(other)
    assert found.memory.value == pytest.approx(truth, rel=0.01)
    assert (after.parameters, after.optimizer, after.inputs) == (other.parameters, other.optimizer, other.inputs)
    expected = other.total + (truth - 1) * temporaries(other)
    assert after.total == pytest.approx(expected, rel=0.01)
    assert after.total_low < expected < after.total_high
    assert after.total_high - after.total_low < other.total_high - other.total_low


def test_components_still_add_up_after_a_correction():
    seen = needed(4096)
    after = calibrate(memories=[MemoryPair(seen, 2 * seen.total)]).bytes(seen)
    components = sum(value for name, value in after.to_dict().items() if not name.startswith("total"))
    assert components == after.total


def test_another_batch_is_never_surer_than_one_compile_is():
    found = calibrate(memories=[MemoryPair(needed(4096), needed(4096).total)] * 500).memory
    assert found.high / found.value >= 2.718281828 ** (INTERVAL * MEMORY_NOISE)


def test_without_observed_memory_the_interval_stays():
    cost = needed(4096)
    assert calibrate(pairs(*SPREAD)).bytes(cost) == cost


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_an_observation_that_is_no_positive_number_is_refused(seconds):
    with pytest.raises(ConfigError, match=r"seconds were observed; expected a positive number"):
        calibrate([TimePair(SPREAD[0], seconds)])
    with pytest.raises(ConfigError, match=r"0 bytes were observed"):
        calibrate(memories=[MemoryPair(replace(needed(8)), 0)])
