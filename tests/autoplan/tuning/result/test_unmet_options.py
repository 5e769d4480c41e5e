from __future__ import annotations

import pytest

from autoplan.errors import NoFeasibleConfiguration, NothingMeasured
from autoplan.plan.records import Failure, FailureKind, TrialRecord
from autoplan.tuning.result.unmet_options import CAUSES_SHOWN, check_options_kept
from autoplan.tuning.space.legal_configs import Space
from autoplan.tuning.trials.runner import Tried
from tests.builders.observations import config
from tests.builders.plan_decisions import record

OWN = config(64)
PINNED = [config(64 // 2**at, 2**at, precision="mixed_bfloat16") for at in range(5)]
SPACE = Space(OWN, tuple(PINNED), (), "--fix precision=mixed_bfloat16")


def failed(number, own, message):
    failure = Failure(kind=FailureKind.UNSUPPORTED, message=message)
    return TrialRecord(number=number, config=own, outcome="failed", failure=failure)


def tried(*others, **more):
    baseline = record(0, OWN, 0.01)
    return Tried(baseline, baseline, (baseline, *others), "the budget is spent", **more)


def check(tried, space=SPACE, ranked=()):
    check_options_kept(space, tried, ranked, trial_seconds=12.0)


def test_a_candidate_that_was_measured_or_a_baseline_that_is_a_candidate_is_enough():
    check(tried(), Space(OWN, (OWN,), ()))
    measured = record(1, PINNED[0], 0.01)
    check(tried(measured), ranked=[measured])


def test_the_first_line_of_each_failure_is_told_once():
    words = ("one", "two", "three", "four", "four")
    records = [failed(at + 1, one, f"TypeError: no {words[at]}\nmore") for at, one in enumerate(PINNED)]
    with pytest.raises(NoFeasibleConfiguration) as caught:
        check(tried(*records))
    message = str(caught.value)
    assert message.startswith(
        "no configuration with --fix precision=mixed_bfloat16 runs: trial 1, mixed_bfloat16, batch 64 "
        "(not supported: TypeError: no one); trial 2, "
    )
    assert message.count("not supported") == CAUSES_SHOWN
    assert "; 1 more with other causes. Trials ended because the budget is spent." in message
    assert "more\n" not in message


def test_failures_of_other_configurations_are_not_the_pins():
    with pytest.raises(
        NoFeasibleConfiguration, match="precision=mixed_bfloat16 was measured: trials ended because the"
    ):
        check(tried(failed(1, config(32, 2), "TypeError: no")))


def test_an_interruption_leaves_no_result():
    with pytest.raises(KeyboardInterrupt):
        check(tried(failed(1, PINNED[0], "TypeError: no"), interrupted=True))


def test_failures_for_one_reason_are_told_once():
    records = [failed(at + 1, one, f"ValueError: {one.batch.local} is odd") for at, one in enumerate(PINNED)]
    with pytest.raises(NoFeasibleConfiguration, match=r"ValueError: 64 is odd\), and 4 other trials likewise\. Trials"):
        check(tried(*records))


def test_a_baseline_with_a_known_issue_is_told_without_advice_on_options():
    faulty = Space(OWN, tuple(PINNED), (), "the known issue tpu-attention-becomes-causal", by_issue=True)
    with pytest.raises(NoFeasibleConfiguration) as caught:
        check(tried(failed(1, PINNED[0], "TypeError: no")), faulty)
    message = str(caught.value)
    assert message.startswith("no configuration without the known issue tpu-attention-becomes-causal runs: trial 1")
    assert message.endswith("change the script so that it runs without it")
    with pytest.raises(NothingMeasured, match=r"without the known issue .* was measured: .* or more --trials$"):
        check(tried(), faulty)
