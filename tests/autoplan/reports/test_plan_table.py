from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from autoplan.plan.records import Plan, Rejection
from autoplan.reports import plan_table
from autoplan.tuning.request import Candidate, TuneResult
from tests.builders import plans
from tests.builders.printed import Terminal
from tests.builders.printed import printed as text

BARE_STEP = re.compile(r"(?<![-_])\bsteps?\b(?!_)")
PATH = Path("plan.yaml")

BASELINE = "the baseline, which is your own configuration"


def result(**changes) -> TuneResult:
    fields = {"plan": plans.plan(), "shortlist": (), "rejected": (), "estimated_seconds": None, "study_path": None}
    return TuneResult(**(fields | {"written_to": PATH} | changes))


def simulated():
    plain = plans.plain_plan()
    plain["hardware"] = plain["hardware"] | {"devices": 8, "simulated": True}
    plain["measured"] = plain["measured"] | {"simulated_devices": True}
    return plans.plan(**plain)


def test_explain_shows_how_the_least_change_was_found():
    shown = text(plan_table.explained(Plan.model_validate(plans.rescued_plan()), PATH))
    lines = shown[shown.index("How the smallest change was found") :].splitlines()
    assert re.split(r" {2,}", lines[1]) == ["change", "outcome", "needs at least", "evidence", "reason"]
    assert re.split(r" {2,}", lines[3]) == ["accumulation 4", "runs", "not known", "measured", "—"]
    assert re.split(r" {2,}", lines[4]) == [
        *("accumulation 2", "out of memory", "1.01 GiB", "measured", "held 1.01 GiB of 1.00 GiB in phase warm-up")
    ]
    assert not BARE_STEP.search(shown)


# tune


def test_tune_ends_with_table_reasons_and_the_next_command():
    assert text(plan_table.tuned(result())).splitlines() == [
        "Training with the plan is 62.5 times as fast as with the baseline, which is your own configuration.",
        (
            "Measured after compilation, in 5 alternating pairs of clean processes; the 95% confidence "
            "interval is 60.2 to 64.0."
        ),
        "The script's whole fit, including compilation, takes about 3.81 s instead of 2 min 41 s: 42.3 times as fast.",
        "",
        "                         baseline                 plan                        evidence",
        "─" * 119,
        "samples/s                512 (482 to 529)         32,000 (30,100 to 33,000)   measured",
        "update                   250 ms (242 to 266 ms)   4.00 ms (3.88 to 4.25 ms)   measured",
        "peak memory per device   512 MiB                  512 MiB                     measured as resident size",
        "MFU                      17%                      18%                         measured time, analytic FLOPs",
        "compile time             not known                1.25 s                      measured",
        (
            "whole fit                2 min 41 s               3.81 s                      "
            "from measured times, compilation included"
        ),
        (
            "Times come from the median of the paired runs; brackets show the range of 95% of separate runs. "
            "The speed-up is "
            "computed pair by pair, so it"
        ),
        "can differ from the ratio of these rows.",
        "The time of the whole fit uses the median compile time of the trials and excludes validation.",
        "",
        "The plan changes batch.global 32 → 128; batch.accumulation 4 → 1; jit_compile off → on.",
        "The largest part of a micro-step is still arithmetic (50%); this figure is analytic.",
        (
            "Training gives the same results: the losses of baseline and plan are equal within 1e-5 "
            "(losses of 20 updates agree within 3.1e-07)."
        ),
        "",
        "Notes",
        "  - BatchNorm's statistics are per micro-batch",
        "",
        "The plan is in plan.yaml. Next:",
        "  autoplan train train.py --plan plan.yaml -- --learning-rate 1e-4",
    ]


def test_an_analytic_plan_says_first_that_nothing_was_measured():
    plain = plans.plain_plan(evidence="analytic", measured=None, verification=None, whole_fit=None, trials=[])
    plain["baseline"] = plain["baseline"] | {"measured": None}
    told = text(plan_table.tuned(result(plan=plans.plan(**plain)))).splitlines()
    assert told[0] == "Nothing was measured: every figure is analytic."
    assert told[1] == f"Training with the plan is estimated to be 14.3 times as fast as with {BASELINE} (analytic)."
    assert not any("measured" in line for line in told[1:])


def test_simulated_devices_are_named_wherever_their_figures_stand():
    told = text(plan_table.tuned(result(plan=simulated()))).splitlines()
    figures = [line for line in told if line.startswith(("samples/s", "update ", "MFU"))]
    assert len(figures) == 3
    assert all("simulated devices" in line for line in figures)
    assert told[1].startswith("Measured on simulated devices")
    story = text(plan_table.explained(simulated(), PATH))
    assert "measured on cpu (8 simulated devices)" in story
    assert "other figures: measured on simulated devices" in story


def test_the_next_step_says_where_and_in_what_it_is_taken():
    plain = plans.plain_plan(evidence="analytic", measured=None, verification=None, whole_fit=None, trials=[])
    plain["baseline"] = plain["baseline"] | {"measured": None}
    assert (
        "The plan is in plan.yaml. Next, on cpu:"
        in text(plan_table.tuned(result(plan=plans.plan(**plain)))).splitlines()
    )
    plain["hardware"] = plain["hardware"] | {"name": "local"}
    assert "The plan is in plan.yaml. Next:" in text(plan_table.tuned(result(plan=plans.plan(**plain)))).splitlines()
    plain["source"] = plain["source"] | {"kind": "callable", "path": "build_model"}
    told = text(plan_table.tuned(result(plan=plans.plan(**plain)))).splitlines()
    at = told.index("The plan is in plan.yaml. Next, in Python, where x and y are the arguments of fit:")
    assert told[at + 1 :] == [
        "  import autoplan",
        "  plan = autoplan.load_plan('plan.yaml')",
        "  with autoplan.scope(plan):",
        "      model = build_model()",
        "  autoplan.fit(plan, model, x, y)",
    ]


def test_an_unwritten_plan_gives_no_command_to_paste():
    told = text(plan_table.tuned(result(written_to=None)))
    assert "Next:" not in told
    assert "autoplan train" not in told


# Terminals and pipes


def test_a_pipe_gets_no_colours_and_no_trailing_spaces():
    told = text(plan_table.explained(plans.plan(), PATH))
    assert "\x1b" not in told
    assert all(line == line.rstrip() for line in told.splitlines())


def test_a_terminal_gets_emphasis(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[1m" in text(plan_table.explained(plans.plan(), PATH), Terminal(), width=100)


def test_a_narrow_terminal_loses_no_word_and_never_breaks_the_command(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "60")  # else rich takes a dumb terminal to have 80
    told = text(plan_table.tuned(result()), Terminal(), width=60)
    assert "  autoplan train train.py --plan plan.yaml -- --learning-rate 1e-4" in told.splitlines()
    flat = "".join(told.split())
    for word in ("30,100", "33,000", "residentsize", "analyticFLOPs"):
        assert word in flat


def test_text_of_users_is_not_taken_for_markup():
    told = text(plan_table.tuned(result(plan=plans.plan(notes=["[bold]keep[/bold] :smile: [link=x]"]))))
    assert "  - [bold]keep[/bold] :smile: [link=x]" in told.splitlines()


def test_a_bare_step_is_never_printed():
    for plan in (plans.plan(), simulated()):
        for shown in (plan_table.tuned(result(plan=plan)), plan_table.explained(plan, PATH)):
            assert not BARE_STEP.search(text(shown))


# explain


def test_explain_goes_through_the_whole_story():
    told = text(plan_table.explained(plans.plan(), PATH))
    headings = [
        "Changes",
        "Result",
        "How it was verified",
        "Trials: 3 (estimated update: analytic; other figures: measured)",
        "Not tried, not enough memory (analytic): 1 configuration",
        "Notes",
    ]
    lines = told.splitlines()
    places = [lines.index(heading) for heading in headings]
    assert places == sorted(places)
    assert lines[:3] == [
        "An autoplan plan, measured on cpu (1 device).",
        "The plan is for call 1 of fit() in train.py: 8,192 samples per epoch, 10 epochs, 640 updates of the weights.",
        "Made with autoplan 0.1.0, Keras 3.15.1, jax 0.10.2, Python 3.11.7 on Linux x86_64.",
    ]


def test_explain_lists_each_difference():
    lines = text(plan_table.explained(plans.plan(), PATH)).splitlines()
    assert "batch.accumulation   4          1" in lines
    assert "jit_compile          off        on" in lines


def test_explain_shows_every_trial_with_its_outcome():
    told = text(plan_table.explained(plans.plan(), PATH))
    rows = [re.split(r"\s{2,}", line.strip()) for line in told.splitlines()]
    assert [
        "1",
        "float32, batch 128",
        "3.50 ms",
        "4.00 ms",
        "32,000",
        "1.25 s",
        "3.81 s",
        "512 MiB",
        "measured",
    ] in rows
    failed = next(row for row in rows if row[0] == "2")
    assert failed[1:8] == ["mixed_float16, batch 128", "4.00 ms", *["—"] * 5]
    assert failed[8].startswith("the loss became NaN: ")
    assert ".autoplan/study/trial-2.log" in told


def test_a_narrow_terminal_keeps_the_words_of_a_trial_whole(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "80")
    told = text(plan_table.explained(plans.plan(), PATH), Terminal(), width=80)
    rows = [re.split(r"\s{2,}", line.strip()) for line in told.splitlines()]
    (trial,) = (row for row in rows if row[0] == "1")
    assert trial[1].startswith("float32, batch")
    assert trial[2:] == ["32,000", "3.81 s", "512 MiB", "measured"]
    assert any(row[:1] == ["2"] and row[1].startswith("mixed_float16,") for row in rows)


def test_explain_says_how_the_whole_fit_time_is_calculated_where_it_shows_one():
    plain = plans.plain_plan(whole_fit=None)
    assert "The time of the whole fit uses" in text(plan_table.explained(plans.plan(**plain), PATH))
    trials = [trial | {"whole_fit_seconds": None} for trial in plain["trials"]]
    assert "whole fit uses" not in text(plan_table.explained(plans.plan(**plain | {"trials": trials}), PATH))


def test_explain_groups_what_was_not_tried():
    rejected = [
        {
            "config": plans.config(batch=(4096 * n, 1)),
            "stage": "infeasible",
            "reason": f"needs {n} GiB",
            "nearest": "batch 4",
        }
        for n in range(1, 12)
    ]
    rejected.append(
        {"config": plans.config(precision="float16"), "stage": "known_issue", "reason": "keras#18456"}
        | {"figures": {"configurations": 54}}
    )
    rejected.append(
        {"config": plans.config(batch=(8, 16)), "stage": "slower", "reason": "predicted 2.4 times the best"}
    )
    told = text(plan_table.explained(plans.plan(rejected=rejected), PATH))
    assert "Not tried, not enough memory (analytic): 11 configurations" in told
    assert "needs 8 GiB" in told
    assert "needs 9 GiB" not in told
    assert "and 3 more rows; --format json lists all" in told
    assert "Not tried, ruled out: 54 configurations" in told
    assert "Not tried, expected to be slower (analytic): 1 configuration" in told


def test_explain_says_what_verification_did_not_cover():
    checked = plans.plain_plan()["verification"] | {"checkpoint_saved": False, "remainder_ran": False}
    told = text(plan_table.explained(plans.plan(verification=checked), PATH))
    assert (
        "Baseline and plan ran alternately, in 5 pairs of clean processes.\n"
        "The plan's run included training and validation, but not a checkpoint or a partial last batch."
    ) in told
    none = checked | {"validation_ran": False}
    told = text(plan_table.explained(plans.plan(verification=none), PATH))
    assert "The plan's run included training, but not validation, a checkpoint or a partial last batch." in told
    assert "It was not verified." in text(plan_table.explained(plans.plan(verification=None), PATH)).splitlines()


def test_without_a_pair_nothing_is_said_of_other_processes():
    told = text(plan_table.explained(plans.plan(verification=plans.plain_plan()["verification"] | {"pairs": 0}), PATH))
    assert "No pair of runs in clean processes was completed, so the figures come from trials." in told
    assert "The plan's run included" not in told
    assert "brackets show where 95% of separate runs lie" not in told
    assert "brackets show the spread of its micro-steps. Separate runs vary more." in told


# Dry runs


@pytest.fixture
def dry():
    candidates = (
        Candidate(plans.train_config(), plans.analytic(), "the best by estimate"),
        Candidate(plans.train_config(batch=(64, 2)), None, "the baseline", baseline=True),
    )
    rejected = (
        Rejection(config=plans.config(batch=(4096, 1)), stage="infeasible", reason="needs 19.4 GiB"),
        Rejection(config=plans.config(), stage="slower", reason="no gain", figures={"configurations": 19}),
        Rejection(config=plans.config(), stage="slower", reason="predicted 3 times"),
    )
    return result(plan=None, shortlist=candidates, rejected=rejected, estimated_seconds=200.0, written_to=None)


def test_a_dry_run_shows_candidates_with_tier_and_reason(dry):
    lines = text(plan_table.tuned(dry)).splitlines()
    assert lines[0] == (
        "Nothing was measured: all figures are analytic. Tuning would run the baseline (your own configuration) first."
    )
    assert re.split(r"\s{2,}", lines[1].strip()) == [
        "rank",
        "configuration",
        "samples/s",
        "memory per device",
        "reason",
    ]
    assert re.split(r"\s{2,}", lines[3]) == ["0", "float32, batch 128", "36,600", "300 MiB", "the best by estimate"]
    assert re.split(r"\s{2,}", lines[4])[2:4] == ["not known", "not known"]
    assert lines[5:] == [
        (
            "Configurations that are not tried: 1 (not enough memory) and 20 (expected to be slower). "
            "--all lists them with the reasons."
        ),
        "",
        "Tuning would take about 3 min 20 s (analytic).",
    ]


def test_a_long_dry_run_shows_its_first_and_the_scripts_own(dry):
    first = tuple(Candidate(plans.train_config(batch=(2**n, 1)), plans.analytic(), "promising") for n in range(8))
    long = replace(dry, shortlist=(*first, dry.shortlist[1], *first))
    lines = text(plan_table.tuned(long)).splitlines()
    rows = [re.split(r"\s{2,}", line) for line in lines[3:9]]
    assert [row[0] for row in rows] == ["0", "1", "2", "3", "4", "8"]
    assert rows[-1][-1] == "the baseline"
    assert lines[9] == "… and 11 more (--all)"


def test_all_of_a_dry_run_is_there_for_whoever_asks(dry):
    long = replace(dry, shortlist=dry.shortlist * 5)
    told = text(plan_table.tuned(long, everything=True))
    assert [line.split()[0] for line in told.splitlines()[3:13]] == [str(number) for number in range(10)]
    assert "Not tried, not enough memory (analytic): 1 configuration" in told
    assert "needs 19.4 GiB" in told
    assert "--all" not in told


def test_a_dry_run_says_what_its_figures_are_of(dry):
    noted = replace(dry, notes=("the figures are of samples of 64 x 64 x 3",))
    assert "  - the figures are of samples of 64 x 64 x 3" in text(plan_table.tuned(noted))
    assert plan_table.shortlist_document(noted)["notes"] == ["the figures are of samples of 64 x 64 x 3"]


def test_a_dry_run_as_a_document(dry):
    document = plan_table.shortlist_document(dry)
    assert (document["schema"], document["evidence"], document["forecast_seconds"]) == (1, "analytic", 200.0)
    assert document["shortlist"][1] == {
        "config": plans.config(batch=(64, 2)),
        "estimate": None,
        "reason": "the baseline",
    }
    assert document["rejected"][0]["reason"] == "needs 19.4 GiB"
