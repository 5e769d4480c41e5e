from __future__ import annotations

import re

import pytest

from autoplan.plan.records import Plan
from autoplan.reports import baseline_vs_plan
from autoplan.reports.baseline_vs_plan import Cell, KnobDifference
from cost_models.config import AttentionMode
from tests.builders import plans

NAMES = ["samples/s", "update", "peak memory per device", "MFU", "compile time", "whole fit"]

BASELINE = "the baseline, which is your own configuration"


def row(plan, name):
    return next(row for row in baseline_vs_plan.rows(plan) if row.name == name)


def analytic(**changes):
    plain = plans.plain_plan(evidence="analytic", measured=None, verification=None, whole_fit=None, trials=[])
    plain["baseline"] = plain["baseline"] | {"measured": None}
    return plans.plan(**(plain | changes))


def simulated():
    plain = plans.plain_plan()
    plain["hardware"] = plain["hardware"] | {"devices": 8, "simulated": True}
    plain["measured"] = plain["measured"] | {"simulated_devices": True}
    return plans.plan(**plain)


# Rows


def test_the_quantities_in_their_order():
    assert [row.name for row in baseline_vs_plan.rows(plans.plan())] == NAMES


def test_measured_times_have_intervals_and_their_tier():
    found = row(plans.plan(), "update")
    # Four micro-steps of 0.0625 s with 0.96875 and 1.0625 of it; one of 0.004 s likewise.
    assert found.baseline == Cell("250 ms", "measured", "242 to 266 ms")
    assert found.plan == Cell("4.00 ms", "measured", "3.88 to 4.25 ms")
    assert found.evidence == "measured"


def test_rates_follow_from_the_micro_step_and_the_batch():
    # Baseline: 32 samples in 62.5 ms. Plan: 128 samples in 4 ms.
    samples = row(plans.plan(), "samples/s")
    assert samples.baseline == Cell("512", "measured", "482 to 529")
    assert samples.plan == Cell("32,000", "measured", "30,100 to 33,000")


def test_micro_steps_stand_side_by_side_where_they_are_of_as_many_samples():
    """Of 32 samples or 128 they don't compare; without accumulation they are the updates."""
    assert all(row.name != "micro-step" for row in baseline_vs_plan.rows(plans.plan()))
    plain = plans.plain_plan()
    alike = plans.plan(config=plain["baseline"]["config"] | {"jit_compile": True})
    assert [row.name for row in baseline_vs_plan.rows(alike)][:3] == ["samples/s", "update", "micro-step"]
    assert row(alike, "micro-step").baseline == Cell("62.5 ms", "measured", "60.5 to 66.4 ms")
    whole = plans.plan(baseline=plain["baseline"] | {"config": plans.config(jit_compile=False)})
    assert [row.name for row in baseline_vs_plan.rows(whole)] == NAMES


def test_updates_of_other_effective_batches_are_told_apart():
    plan = plans.plan(config=plans.config(batch=(2048, 1)))
    assert [row.name for row in baseline_vs_plan.rows(plan)][1] == "update of 128 / 2,048 samples"


@pytest.mark.parametrize(
    ("source", "tier"),
    [("device", "measured on the device"), ("compiled", "compiled program"), ("resident", "measured as resident size")],
)
def test_memory_says_where_it_comes_from(source, tier):
    measured = plans.measurement(peak_bytes=3 * plans.GIB, peak_bytes_source=source)
    assert row(plans.plan(measured=measured), "peak memory per device").plan == Cell("3.00 GiB", tier)


def test_memory_that_was_not_measured_is_the_estimates():
    measured = plans.measurement(peak_bytes=None, peak_bytes_source=None)
    found = row(plans.plan(measured=measured), "peak memory per device")
    assert found.plan == Cell("300 MiB", "analytic", "280 MiB to 320 MiB")
    assert found.evidence == "baseline: measured as resident size; plan: analytic"


def test_mfu_takes_the_measured_time_over_the_predicted_one():
    # Predicted 21% in 3.5 ms, measured 4 ms: 21% x 3.5 / 4 = 18.4%. Baseline: 21% x 50 / 62.5 = 16.8%.
    found = row(plans.plan(), "MFU")
    assert found.plan == Cell("18%", "measured time, analytic FLOPs")
    assert found.baseline == Cell("17%", "measured time, analytic FLOPs")


def test_the_mfu_of_this_machine_is_of_a_probed_peak():
    local = plans.plain_plan()["hardware"] | {"name": "local"}
    assert row(plans.plan(hardware=local), "MFU").evidence == "measured time, analytic FLOPs, probed peak"
    assert row(analytic(hardware=local), "MFU").evidence == "analytic, probed peak"


def test_what_is_not_known_stays_unknown():
    plan = plans.plan(predicted=None, measured=plans.measurement(compile_seconds=None, peak_bytes=None))
    for name in ("MFU", "compile time", "peak memory per device"):
        assert row(plan, name).plan == Cell("not known")


def test_an_analytic_plan_has_analytic_cells_alone():
    plan = analytic()
    assert {row.evidence for row in baseline_vs_plan.rows(plan)} == {"analytic", ""}
    assert row(plan, "update").plan == Cell("3.50 ms", "analytic")
    assert row(plan, "samples/s").plan == Cell("36,600", "analytic")
    assert row(plan, "MFU").plan == Cell("21%", "analytic")
    assert row(plan, "compile time").plan == Cell("not known")


def test_simulated_devices_are_named_beside_every_figure():
    plan = simulated()
    assert row(plan, "peak memory per device").plan.tier == "measured as resident size, simulated devices"
    for name in ("update", "samples/s", "compile time"):
        assert row(plan, name).plan.tier == "measured, simulated devices"
    assert row(plan, "MFU").plan.tier == "measured time, simulated devices, analytic FLOPs"


def test_a_baseline_that_failed_has_its_failure_and_no_figures():
    baseline = {"config": plans.config(), "failure": {"kind": "oom", "message": "killed at 12.1 GiB"}}
    found = baseline_vs_plan.rows(plans.plan(baseline=baseline))
    assert found[0].baseline == Cell("out of memory", "measured")
    assert all(row.baseline == Cell("—") for row in found[1:-1])


# Differences


def test_differences_name_nested_keys_and_speak_of_switches():
    plan = plans.plan()
    assert baseline_vs_plan.differences(plan.baseline.config, plan.config) == [
        KnobDifference("batch.local", "32", "128"),
        KnobDifference("batch.global", "32", "128"),
        KnobDifference("batch.accumulation", "4", "1"),
        KnobDifference("jit_compile", "off", "on"),
    ]
    assert baseline_vs_plan.differences(plan.config, plan.config) == []


def test_a_key_that_is_written_only_with_another_value_differs_in_both_directions():
    auto = plans.plan().config
    unfused = auto.with_(attention=AttentionMode.UNFUSED)
    for before, after, change in ((auto, unfused, ("auto", "unfused")), (unfused, auto, ("unfused", "auto"))):
        assert baseline_vs_plan.differences(before, after) == [KnobDifference("attention", *change)]


# Sentences


def test_a_verified_speed_up_is_stated_with_its_interval_pairs_and_tier():
    assert baseline_vs_plan.headline(plans.plan(whole_fit=None)) == (
        "Training with the plan is 62.5 times as fast as with the baseline, which is your own configuration.\n"
        "Measured after compilation, in 5 alternating pairs of clean processes; the 95% confidence "
        "interval is 60.2 to 64.0."
    )
    assert "Measured on simulated devices after compilation, in 5 alternating pairs" in baseline_vs_plan.headline(
        simulated()
    )


def whole_fit(own, chosen):
    return plans.plan(whole_fit={"baseline_seconds": own, "seconds": chosen})


def test_a_short_fit_is_not_promised_what_compiled_programs_gain():
    assert baseline_vs_plan.headline(whole_fit(2.1, 2.0)).splitlines() == [
        "Training with the plan is 62.5 times as fast as with the baseline, which is your own configuration.",
        (
            "Measured after compilation, in 5 alternating pairs of clean processes; the 95% confidence "
            "interval is 60.2 to 64.0."
        ),
        "The script's whole fit, including compilation, takes about 2.00 s instead of 2.10 s: 1.05 times as fast.",
    ]
    assert str(whole_fit(2.1, 2.0)).endswith("jit_compile off; 1.05 times over the whole fit, compilation included)")


@pytest.mark.parametrize(("own", "lines"), [(62.5 * 0.96, 2), (62.5 * 0.94, 3), (62.5 * 1.06, 3)])
def test_the_whole_fit_has_a_line_where_its_speed_up_differs(own, lines):
    """Within 5% of the 62.5 times that verification showed."""
    told = baseline_vs_plan.headline(whole_fit(own, 1.0)).splitlines()
    assert len(told) == lines
    assert ("after compilation" in told[1]) is (lines == 3)


def test_the_whole_fit_is_a_row_where_its_length_is_known():
    found = row(whole_fit(5400.0, 99.9), "whole fit")
    assert (found.baseline.text, found.plan.text) == ("1 h 30 min", "99.9 s")
    assert found.evidence == "from measured times, compilation included"
    failed = row(whole_fit(None, 99.9), "whole fit")
    assert (failed.baseline.text, failed.evidence) == ("not known", "from measured times, compilation included")
    assert all(row.name != "whole fit" for row in baseline_vs_plan.rows(plans.plan(whole_fit=None)))


def test_a_plan_that_was_asked_for_and_not_shown_to_be_faster_says_so_first():
    """Where what was asked for leaves the script's own configuration out, the best of the rest is the plan."""
    found = {"faster": False, "speedup": 2.11, "speedup_low": 0.921, "speedup_high": 4.14}
    plan = plans.plan(verification=plans.plain_plan()["verification"] | found)
    assert baseline_vs_plan.headline(plan) == (
        f"The plan was not shown to be faster than {BASELINE}. Your options exclude "
        "the baseline.\nTraining with the plan is 2.11 times as fast. Measured in 5 alternating pairs of clean "
        "processes; the 95% confidence interval is 0.921 to 4.14."
    )
    slower = plans.plan(verification=plans.plain_plan()["verification"] | found | {"speedup_high": 0.97})
    assert baseline_vs_plan.headline(slower).startswith(f"The plan is slower than {BASELINE}. Your options")
    pinned = plan.baseline.model_copy(update={"excluded_by": "--fix precision=mixed_bfloat16"})
    headline = baseline_vs_plan.headline(plan.model_copy(update={"baseline": pinned}))
    assert "--fix precision=mixed_bfloat16 excludes the baseline.\nTraining with the plan is 2.11 " in headline


def test_ends_that_are_far_apart_are_told_as_not_known():
    wide = {"micro_step_seconds_low": 3.05e-7, "micro_step_seconds_high": 131.0}
    plan = plans.plan(measured=plans.plain_plan()["measured"] | wide)
    told = {row.name: row.plan for row in baseline_vs_plan.rows(plan)}
    assert told["update"].interval == told["samples/s"].interval == "spread not known: too few runs"


def test_no_speed_up_is_claimed_where_none_was_shown():
    same = plans.plan(config=plans.plain_plan()["baseline"]["config"])
    assert baseline_vs_plan.headline(same) == (
        f"No other configuration was shown to be faster, so the plan is {BASELINE}."
    )
    alone = plans.plan(config=same.config, trials=plans.plain_plan()["trials"][:1])
    assert baseline_vs_plan.headline(alone) == f"No other configuration was measured, so the plan is {BASELINE}."
    headline = baseline_vs_plan.headline(plans.plan(verification=None))
    assert re.search(
        r"In one process each, training with the plan was [\d.]+ times as fast\. It therefore claims", headline
    )
    failed = {"config": plans.config(batch=(4096, 1)), "failure": {"kind": "oom", "message": ""}}
    assert baseline_vs_plan.headline(plans.plan(baseline=failed)) == (
        "The baseline, which is your own configuration, failed (out of memory). The plan is a "
        "configuration that runs. There "
        "is no speed-up, because the baseline does not run."
    )


def test_nothing_measured_is_said_first_then_what_is_predicted():
    """Rates that the estimates give: 2,560 samples a second in 50 ms, 36,571 in 3.5 ms."""
    assert baseline_vs_plan.headline(analytic()).splitlines() == [
        "Nothing was measured: every figure is analytic.",
        f"Training with the plan is estimated to be 14.3 times as fast as with {BASELINE} (analytic).",
    ]


def test_a_prediction_tells_how_many_devices_each_side_uses():
    four = plans.config(mesh={"data": 4, "model": 1})
    told = f"as with {BASELINE} (analytic). The baseline uses 1 device, the plan 4."
    assert baseline_vs_plan.headline(analytic(config=four)).endswith(told)


def rates_shown(plan):
    """The rates of baseline and plan in the table, and the tiers that it names."""
    row = next(row for row in baseline_vs_plan.rows(plan) if row.name == "samples/s")
    own, chosen = (float(cell.text.replace(",", "")) for cell in (row.baseline, row.plan))
    return own, chosen, row.evidence


@pytest.mark.parametrize("baseline_compiled", [True, False])
@pytest.mark.parametrize("plan_compiled", [True, False])
def test_headline_and_table_have_one_tier(baseline_compiled, plan_compiled):
    """Where the compiler was asked about both, the times are of its programs; else both are analytic."""
    own = plans.config(batch=(32, 4))

    def estimated(seconds, size):
        return plans.estimate(seconds, samples_per_second=size / seconds)

    def compiled(config, seconds, size):
        time = evidence(estimated(seconds, size)["time"])
        return {"number": 0, "config": config, "outcome": "compiled", "compiled": time}

    trials = [compiled(own, 0.5, 32)] * baseline_compiled + [compiled(plans.config(), 0.25, 128)] * plan_compiled
    program = {"evidence": "compiled", "compiled": trials[-1]["compiled"]} if plan_compiled else {}
    baseline = {"config": own, "predicted": estimated(0.05, 32)}
    found = analytic(trials=trials, baseline=baseline, predicted=estimated(0.0035, 128), **program)
    own_rate, rate, tier = rates_shown(found)
    assert tier == (baseline_vs_plan.COMPILED_TIME if baseline_compiled and plan_compiled else "analytic")
    told = re.search(r"estimated to be ([\d.]+) times as fast as with .* \((.*)\)\.", baseline_vs_plan.headline(found))
    assert float(told[1]) == pytest.approx(rate / own_rate, rel=0.005)
    assert told[2] == tier


def test_nothing_is_predicted_of_a_baseline_that_may_not_fit_or_that_is_the_plan():
    plain = plans.plain_plan()
    large = plans.estimate(0.05)
    baseline = {"config": plain["baseline"]["config"], "predicted": large}
    for capacity, does in ((250 * plans.MIB, "does not fit"), (300 * plans.MIB, "may not fit")):
        large["memory"] |= {"capacity_bytes": capacity}
        told = (
            f"The baseline, which is your own configuration, {does} on this hardware (analytic). "
            "No speed-up can be predicted."
        )
        assert baseline_vs_plan.headline(analytic(baseline=baseline)).endswith(told)
    same = analytic(config=baseline["config"])
    assert baseline_vs_plan.headline(same).endswith(
        "notably faster, so the plan is the baseline, which is your own configuration."
    )


def evidence(time):
    memory = dict.fromkeys(("argument_bytes", "output_bytes", "alias_bytes", "temporary_bytes", "total_bytes"), 1)
    return {
        "target": "XLA:TPU v4:2x2x1",
        "versions": {},
        "lower_seconds": 1.0,
        "compile_seconds": 2.0,
        "memory": memory,
        "time": time,
    }


def test_two_lines_of_why():
    overhead = plans.estimate(0.05, bound="overhead", overhead_seconds=0.041)
    plain = plans.plain_plan()
    plan = plans.plan(baseline=plain["baseline"] | {"predicted": overhead})
    assert baseline_vs_plan.reasons(plan) == [
        "The plan changes batch.global 32 → 128; batch.accumulation 4 → 1; jit_compile off → on.",
        (
            "The largest part of a micro-step was launch overhead (82%) and is now arithmetic (50%); "
            "both figures are analytic."
        ),
    ]


def test_the_same_part_before_and_after_is_said_to_be_so():
    plain = plans.plain_plan()
    before = plans.estimate(0.05, bound="compute", compute_seconds=0.041)
    plan = plans.plan(baseline=plain["baseline"] | {"predicted": before})
    told = (
        "The largest part of a micro-step was arithmetic (82%) and is still arithmetic (50%); both "
        "figures are analytic."
    )
    assert baseline_vs_plan.reasons(plan)[1] == told


def test_why_without_estimates_and_with_slow_data():
    plain = plans.plain_plan()
    source = plain["source"] | {"fit": plain["source"]["fit"] | {"data": "PyDataset"}}
    plan = plans.plan(predicted=None, measured=plans.measurement(input_bound=True), source=source)
    assert baseline_vs_plan.reasons(plan)[1] == (
        "Where the time goes is not known. "
        "Reading the data is slower than computing (measured): a faster input pipeline would help most now."
    )


def test_of_data_that_were_made_up_nothing_is_said_of_their_reading():
    plain = plans.plain_plan()
    source = plain["source"] | {"fit": plain["source"]["fit"] | {"data": "synthetic"}}
    plan = plans.plan(predicted=None, measured=plans.measurement(input_bound=True), source=source)
    assert baseline_vs_plan.reasons(plan)[1] == "Where the time goes is not known."


def test_a_plan_that_changes_nothing():
    plain = plans.plain_plan()
    plan = plans.plan(config=plain["baseline"]["config"])
    assert baseline_vs_plan.reasons(plan) == [
        "The plan changes nothing.",
        "The largest part of a micro-step is arithmetic (50%); this figure is analytic.",
    ]


@pytest.mark.parametrize(
    ("verdict", "start"),
    [
        ("exact", "Training gives the same results: the losses of baseline and plan are equal within 1e-5"),
        (
            "within_seed_band",
            "Training gives similar results: the plan's losses lie within the variation between seeds",
        ),
        ("outside", "Training gives different results: the plan's results lie outside the variation between seeds"),
        ("not_compared", "Training results were not compared"),
    ],
)
def test_numerics_of_earlier_plans_in_words(verdict, start):
    verification = plans.plain_plan()["verification"] | {"numerics": verdict, "numerics_detail": ""}
    assert baseline_vs_plan.numerics(plans.plan(verification=verification)) == start + "."
    assert baseline_vs_plan.numerics(plans.plan(verification=None)) is None


def test_the_baseline_as_the_plan_is_not_compared_with_itself():
    """What became of a candidate that trains differently is in the notes, and says nothing of this plan."""
    plain = plans.plain_plan()
    verification = plain["verification"] | {"numerics": "not_compared", "numerics_detail": "the best trial was refused"}
    plan = plans.plan(config=plain["baseline"]["config"], verification=verification)
    assert baseline_vs_plan.numerics(plan) is None


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (
            {"state": "equal", "remainder_compared": True},
            (
                "Training gives the same results over the 20 updates that were compared, of 640 in the fit, the "
                "partial last update of an epoch among them: losses, weights and other variables of baseline and plan "
                "are equal within rounding (why)."
            ),
        ),
        (
            {"state": "none"},
            (
                "Training gives the same results over the 20 updates that were compared, of 640 in the fit: losses and "
                "weights of baseline and plan are equal within rounding (why)."
            ),
        ),
        (
            {"state": "none", "samples_left_out": 1},
            (
                "Training differs by 1 sample of each epoch that the plan leaves out; results are the same over the 20 "
                "updates that were compared, of 640 in the fit: losses and weights of baseline and plan are equal "
                "within rounding (why)."
            ),
        ),
        (
            {"numerics": "within_seed_band", "seeds_compared": 5},
            (
                "Training gives similar results over the 20 updates that were compared, of 640 in the fit: losses and "
                "changes of the plan's weights lie within the variation between seeds (why)."
            ),
        ),
        ({"numerics": "outside", "seeds_compared": 1}, "Training gives different results (why)."),
        (
            {"numerics": "outside", "seeds_compared": 5},
            "Training gives different results: the plan's results lie outside the variation between seeds (why).",
        ),
        (
            {"numerics": "not_compared", "same_program": True},
            "No training results were compared, because the program is the same: why.",
        ),
        (
            {"state": "none", "failure": "a run of the plan failed: oom: too large"},
            (
                "Whether training gives the same results is open, because a run of the plan failed: oom: too large "
                "(compared before that: why)."
            ),
        ),
    ],
)
def test_numerics_in_words_with_what_was_compared(found, told):
    verification = plans.plain_plan()["verification"] | {"numerics_detail": "why", "updates_compared": 20} | found
    assert baseline_vs_plan.numerics(plans.plan(verification=verification)) == told


# A rescued baseline


def rescued(**changes):
    return Plan.model_validate(plans.rescued_plan(**changes))


def test_a_rescue_is_told_with_what_is_needed_and_the_least_change_that_runs():
    assert baseline_vs_plan.headline(rescued()) == (
        "The baseline, which is your own configuration, runs out of memory (it needs at least 1.07 "
        "GiB, and 1.00 GiB are available). "
        "The smallest change that runs is accumulation 4 (batch 512 → 128). There is no speed-up, "
        "because the baseline does not run."
    )
    assert baseline_vs_plan.reasons(rescued())[:2] == [
        (
            "Why this is the smallest change: accumulation keeps the effective batch; less is not "
            "enough: accumulation 2 "
            "ran out of memory."
        ),
        "The plan changes batch.global 512 → 128; batch.accumulation 1 → 4.",
    ]


def test_a_faster_plan_than_the_least_change_is_told_beside_it():
    plan = rescued(config=plans.config(batch=(64, 8)))
    told = (
        "accumulation 4 (batch 512 → 128). The plan is faster than this change. There is no speed-up, "
        "because the baseline does not run."
    )
    assert baseline_vs_plan.headline(plan).endswith(told)


def test_what_a_device_needs_is_left_out_where_nobody_knows():
    plain = plans.rescued_plan()
    plain["rescue"] |= {"baseline_bytes": None}
    told = (
        "The baseline, which is your own configuration, runs out of memory. The smallest change "
        "that runs is accumulation 4"
    )
    assert baseline_vs_plan.headline(Plan.model_validate(plain)).startswith(told)


def test_a_baseline_that_does_not_run_is_not_said_to_train_the_same():
    told = "Training results cannot be compared, because the baseline does not run."
    assert baseline_vs_plan.numerics(rescued()) == told
    verification = plans.rescued_plan()["verification"] | {"numerics": "exact", "numerics_detail": "equal"}
    assert baseline_vs_plan.numerics(rescued(verification=verification)) == (
        "Training gives the same results: the losses of the smallest change that runs and of the "
        "plan are equal within 1e-5 (equal)."
    )
