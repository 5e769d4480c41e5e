from __future__ import annotations

import pytest

from autoplan.errors import NoFeasibleConfiguration, SourceError, StudyError
from autoplan.jobs.budget import Clock
from autoplan.jobs.messages import JobKind, SplitProbe
from autoplan.jobs.runner import JobRunner
from autoplan.plan.records import FailureKind
from autoplan.tuning.trials.runner import MEASURED, Runner
from autoplan.tuning.trials.storage import StudyPlace
from autoplan.tuning.trials.study import Study, knob_choices
from tests.builders.estimates import candidate
from tests.builders.fake_client import FakeClient, failure, micro_step_seconds
from tests.builders.observations import cluster, config, observation
from tests.builders.sources import SOURCE

OWN = config(64)
OTHERS = [
    config(32, 2),
    config(16, 4),
    config(64, precision="mixed_bfloat16"),
    config(8, 8, precision="mixed_bfloat16"),
]


@pytest.fixture
def runner(tmp_path):
    """A runner on the made-up machine; its study is in memory."""
    opened = []

    def make(client, *, trials=10, legal=(OWN, *OTHERS), events=None):
        place = StudyPlace("sqlite:///:memory:", tmp_path, "a-study")
        opened.append(Study(place, OTHERS, knob_choices([OWN, *OTHERS]), {}))
        jobs = JobRunner(client, SOURCE, "jax", cluster(), Clock.start(None), baseline=OWN)
        watch = events.append if events is not None else lambda event: None
        return Runner(jobs, opened[-1], client.facts, {}, frozenset(legal), watch, trials)

    yield make
    for study in opened:
        study.close()


def configs(records):
    return [record.config for record in records]


def test_trials_go_through_the_shortlist_and_are_ranked_by_the_objective(runner):
    one = runner(FakeClient())
    one.run_baseline(OWN)
    assert one.run_rest() == "every configuration of the shortlist was tried"
    assert configs(one.study.records) == [OWN, *OTHERS]
    seconds = [micro_step_seconds(c) / c.batch.global_size for c in configs(one.ranked())]
    assert seconds == sorted(seconds)
    assert len(seconds) == 5


def test_a_trial_measures_eight_groups_of_half_a_second(runner):
    client = FakeClient()
    runner(client).run_baseline(OWN)
    assert client.jobs[0].options.items() >= MEASURED.items()
    assert MEASURED == {"groups": 8, "group_seconds": 0.5}


def test_what_is_not_legal_is_not_ranked(runner):
    one = runner(FakeClient(), legal=OTHERS)
    one.run_baseline(OWN)
    one.run_rest()
    assert OWN not in configs(one.ranked())


def out_of_memory(*too_large):
    """Plant that these configurations run out of memory."""
    return lambda job: failure() if job.config in too_large else None


def test_the_reference_is_the_least_change_that_runs(runner):
    client = FakeClient(plant=out_of_memory(OWN, config(32, 2)))
    one = runner(client)
    found = one.run_reference(one.run_baseline(OWN))
    assert configs([found.record]) == [config(16, 4)]
    assert client.of_kind(JobKind.MEASURE) == [OWN, config(32, 2), config(16, 4)]
    assert found.rescued.changed == ["accumulation 4"]
    assert [rung.outcome for rung in found.rescued.tried] == ["runs", "out_of_memory"][::-1]
    assert found.rescued.usable_bytes == cluster().chip.usable_memory_bytes
    assert not found.interrupted


def test_a_reference_of_an_earlier_run_is_not_tried_again(runner):
    client = FakeClient(plant=out_of_memory(OWN, config(32, 2)))
    one = runner(client)
    first = one.run_reference(one.run_baseline(OWN))
    tried = len(client.jobs)
    assert one.run_reference(one.run_baseline(OWN)) == first
    assert len(client.jobs) == tried


def test_what_needs_no_less_than_what_ran_out_of_memory_is_not_asked_for(runner):
    """bfloat16 is estimated to need as much as the split of two that fails: for another program it proves nothing."""
    client = FakeClient(plant=out_of_memory(OWN, config(32, 2)))
    one = runner(client)
    needed = {OWN: 100, OTHERS[0]: 60, OTHERS[1]: 70, OTHERS[2]: 60, OTHERS[3]: 95}
    one.estimates = {c: candidate(c, needed=size, capacity=110) for c, size in needed.items()}
    one.run_reference(one.run_baseline(OWN))
    one.run_rest()
    assert configs(one.study.records) == [OWN, config(32, 2), config(64, precision="mixed_bfloat16")]
    assert [rejection.stage for rejection in one.left_out] == ["infeasible"]
    told = "estimated to need no less than float32, batch 32, accumulation 2, which ran out of memory"
    assert one.left_out[0].reason == told
    assert one.left_out[0].figures == {"evidence": "analytic", "configurations": 2}


def test_ctrl_c_keeps_what_ran_and_without_that_ends_it_all(runner):
    def plant(job):
        if job.config == config(16, 4):
            raise KeyboardInterrupt
        return failure() if job.config == OWN else None

    one = runner(FakeClient(plant=plant))
    needed = {OWN: 100, OTHERS[0]: 80, OTHERS[1]: 60, OTHERS[2]: 70, OTHERS[3]: 40}
    one.estimates = {c: candidate(c, needed=size, capacity=65) for c, size in needed.items()}
    with pytest.raises(KeyboardInterrupt):
        one.run_reference(one.run_baseline(OWN))
    one.estimates = {c: candidate(c, needed=size, least=1, capacity=50) for c, size in needed.items()}
    found = one.run_reference(one.run_baseline(OWN))
    assert found.interrupted
    assert configs([found.record]) == [OTHERS[3]]


def test_where_nothing_has_the_memory_to_run_that_is_the_answer(runner):
    one = runner(FakeClient(plant=lambda job: failure()))
    with pytest.raises(NoFeasibleConfiguration, match="no configuration of this training runs in the available memory"):
        one.run_reference(one.run_baseline(OWN))


def test_where_nothing_runs_the_reason_why_the_batch_is_not_split_is_told(runner):
    one = runner(FakeClient(plant=lambda job: failure()))
    one.observation = observation(probe=SplitProbe(split="differs", split_reason="the loss is a sum"))
    with pytest.raises(NoFeasibleConfiguration, match=r"\. The batch is not split, because the loss is a sum$"):
        one.run_reference(one.run_baseline(OWN))


def test_a_baseline_that_takes_too_long_gives_way_to_the_first_that_runs(runner):
    fails = {OWN, config(64, precision="mixed_bfloat16"), config(32, 2)}
    slow = failure(FailureKind.TIMEOUT, "not finished after 60 s")
    client = FakeClient(plant=lambda job: slow if job.config in fails else None)
    one = runner(client)
    found = one.run_reference(one.run_baseline(OWN))
    assert (configs([found.record]), found.rescued) == ([config(16, 4)], None)


def test_a_timeout_of_the_baseline_leaves_room_for_others(runner):
    client = FakeClient(plant=lambda job: failure(FailureKind.TIMEOUT, "not finished after 60 s"))
    assert runner(client).run_baseline(OWN).failure.kind is FailureKind.TIMEOUT


def test_a_baseline_that_is_wrong_by_itself_is_an_error(runner):
    client = FakeClient(plant=lambda job: failure(FailureKind.NAN, "the loss is nan"))
    with pytest.raises(SourceError, match="the loss is nan"):
        runner(client).run_baseline(OWN)


@pytest.mark.parametrize(("budget", "tried"), [(45.0, 2), (35.0, 1), (200.0, 5)])
def test_one_other_than_the_baseline_is_tried_as_long_as_a_trial_has_time(runner, monkeypatch, budget, tried):
    now = [0.0]
    monkeypatch.setattr("autoplan.jobs.budget.time.monotonic", lambda: now[0])

    def plant(job):
        now[0] += 20.0

    one = runner(FakeClient(plant=plant))
    one.jobs = one.jobs.with_(clock=Clock.start(budget))
    one.run_baseline(OWN)
    one.reference_seconds = 20.0
    one.run_rest()
    assert len(one.study.records) == tried


def test_an_interrupted_trial_leaves_no_record(runner):
    def plant(job):
        if job.config == OTHERS[1]:
            raise KeyboardInterrupt

    one = runner(FakeClient(plant=plant))
    one.run_baseline(OWN)
    with pytest.raises(KeyboardInterrupt):
        one.run_rest()
    assert configs(one.study.records) == [OWN, OTHERS[0]]


def test_events_carry_outcomes_and_the_best_so_far(runner):
    events = []
    seconds = lambda c: 0.001 if c == OTHERS[1] else micro_step_seconds(c)  # noqa: E731
    one = runner(FakeClient(seconds=seconds), events=events)
    one.run_baseline(OWN)
    one.run_rest()
    finished = [event for event in events if event.kind == "trial_finished"]
    assert [event.best_number for event in finished] == [0, 0, 2, 2, 2]
    assert all(event.outcome is not None and event.config is not None for event in finished)
    facts, baseline = one.observation, finished[0].outcome
    micro_steps = facts.epochs * -(-facts.samples // 64)
    expected = baseline.compile_seconds + micro_steps * baseline.micro_step_seconds
    assert finished[0].whole_fit_seconds == pytest.approx(expected)


def test_the_objective_of_a_failure_is_not_known(runner):
    one = runner(FakeClient(plant=lambda job: failure()))
    assert one.objective(one.run_baseline(OWN)) is None
    assert one.ranked() == []


def test_the_facts_of_the_fit_decide_what_compilation_costs(runner):
    """A long fit forgives a compilation that a short one does not."""
    one = runner(FakeClient(observation(OWN, samples=64, epochs=1)))
    record = one.run_baseline(OWN)
    per_sample = micro_step_seconds(OWN) / 64
    assert one.objective(record) == pytest.approx(per_sample + record.measurement.compile_seconds / 64)
    one.observation = observation(OWN, samples=10**7)
    assert one.objective(record) == pytest.approx(per_sample, rel=1e-2)


def test_only_what_needs_less_memory_than_a_baseline_that_ran_out_of_it_is_tried(runner):
    client = FakeClient(plant=out_of_memory(OWN))
    one = runner(client)
    needed = {OWN: 100, OTHERS[0]: 110, OTHERS[1]: 90, OTHERS[2]: 100, OTHERS[3]: 50}
    one.estimates = {c: candidate(c, needed=size, capacity=1000) for c, size in needed.items()}
    assert configs([one.run_reference(one.run_baseline(OWN)).record]) == [OTHERS[1]]
    assert client.of_kind(JobKind.MEASURE) == [OWN, OTHERS[1]]


def full(*_, **__):
    raise StudyError("the study cannot be written: the disk is full")


def test_a_study_that_can_no_longer_be_read_ends_the_trials_with_what_there_is(runner, monkeypatch):
    events = []
    one = runner(FakeClient(), events=events)
    one.run_baseline(OWN)
    monkeypatch.setattr(one.study, "ask", full)
    assert one.run_rest() == "the study could not be stored any more"
    assert configs(one.ranked()) == [OWN]
    notes = [event.text for event in events if event.kind == "note"]
    assert notes == [
        "the study cannot be written: the disk is full; trials end here, and the plan uses the measurements so far"
    ]


def test_ctrl_c_on_a_full_disk_is_ctrl_c(runner, monkeypatch):
    def plant(job):
        if job.config == OTHERS[0]:
            raise KeyboardInterrupt

    one = runner(FakeClient(plant=plant))
    one.run_baseline(OWN)
    monkeypatch.setattr(one.study, "abandon", full)
    with pytest.raises(KeyboardInterrupt):
        one.run_rest()


def test_a_baseline_that_failed_by_itself_in_an_earlier_run_is_run_again(runner):
    answers = iter([failure(FailureKind.CRASH, "no such file")])
    one = runner(FakeClient(plant=lambda job: next(answers, None)))
    with pytest.raises(SourceError, match="no such file"):
        one.run_baseline(OWN)
    record = one.run_baseline(OWN)
    assert record.measurement is not None
    assert configs(one.study.records) == [OWN]


def refuses_bfloat16(job):
    refused = failure(FailureKind.UNSUPPORTED, "TypeError: float32 only\n  a frame")
    return refused if job.config.precision == "mixed_bfloat16" else None


def test_a_refused_setting_is_not_tried_again_and_what_is_left_out_is_counted(runner):
    one = runner(FakeClient(plant=refuses_bfloat16))
    one.run_baseline(OWN)
    one.run_rest()
    bfloat16 = config(64, precision="mixed_bfloat16")
    assert configs(one.study.records) == [OWN, config(32, 2), config(16, 4), bfloat16]
    (left_out,) = one.left_out
    assert (left_out.config, left_out.stage) == (config(8, 8, precision="mixed_bfloat16"), "known_issue")
    assert left_out.figures == {"configurations": 1}
    assert left_out.reason == (
        "a trial with the same settings was refused: TypeError: float32 only (trial 3, mixed_bfloat16, batch 64)"
    )


def test_a_rescue_does_not_try_a_refused_setting_again(runner):
    def plant(job):
        return failure() if job.config == OWN else refuses_bfloat16(job)

    legal = [OWN, *(config(64 // 2**at, 2**at, precision="mixed_bfloat16") for at in range(4))]
    client = FakeClient(plant=plant)
    one = runner(client, legal=legal)
    failed = one.run_baseline(OWN)
    with pytest.raises(NoFeasibleConfiguration, match=r"failed \(unsupported: TypeError: float32 only\)"):
        one.run_reference(failed)
    assert len(client.of_kind(JobKind.MEASURE)) <= 3


def test_a_baseline_that_takes_too_long_and_no_other_that_runs_is_no_fault_of_the_script(runner):
    slow = failure(FailureKind.TIMEOUT, "not finished after 60 s")
    refused = failure(FailureKind.UNSUPPORTED, "TypeError: no\n  a frame")
    one = runner(FakeClient(plant=lambda job: slow if job.config == OWN else refused))
    with pytest.raises(NoFeasibleConfiguration) as caught:
        one.run_reference(one.run_baseline(OWN))
    message = str(caught.value)
    assert message.startswith("your own configuration took too long (not finished after 60 s), and no other ")
    assert message.endswith("failed (not supported: TypeError: no)")
