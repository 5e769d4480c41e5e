from __future__ import annotations

import contextlib
import json
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy

from autoplan.errors import StudyError
from autoplan.plan.records import Failure, FailureKind, Measurement, TrialRecord
from autoplan.tuning.trials.storage import StudyPlace
from autoplan.tuning.trials.study import (
    PREDICTED_FIRST,
    Study,
    knob_choices,
    refuse_unusable,
)
from cost_models.config import TrainConfig
from tests.builders import plans, tune_requests
from tests.builders.observations import GIB, cluster, config

IDENTITY = {"source": "a" * 64, "hardware": "cpu", "knobs": {"precision": ["float32"]}}
BASELINE = config(64, 8)
SHORTLIST = [
    config(size, 512 // size, precision=precision)
    for size in (512, 256, 128, 64, 32)
    for precision in ("float32", "mixed_bfloat16", "mixed_float16")
]
CHOICES = knob_choices([BASELINE, *SHORTLIST])
OOM = Failure(kind=FailureKind.OOM, message="too large")


@pytest.fixture
def place(tmp_path):
    return StudyPlace.choose(str(tmp_path / "study"), "a-study")


def measured(micro_step_seconds=0.01, **changes):
    return Measurement.model_validate(plans.measurement(micro_step_seconds) | changes)


def study(place, shortlist=SHORTLIST, identity=IDENTITY, **changes):
    return Study(place, shortlist, changes.pop("choices", CHOICES), identity, **changes)


def started(place, **changes):
    """A study whose baseline is measured."""
    opened = study(place, **changes)
    opened.begin(BASELINE)
    opened.tell(BASELINE, measured(), 1.0)
    return opened


def test_the_best_predictions_come_first(place):
    with started(place) as opened:
        asked = []
        for _ in range(PREDICTED_FIRST):
            asked.append(opened.ask())
            opened.tell(asked[-1], measured(), 1.0)
        assert asked == [one for one in SHORTLIST if one != BASELINE][:PREDICTED_FIRST]


def test_every_configuration_is_asked_for_once_and_then_none(place):
    with started(place) as opened:
        asked = []
        while (one := opened.ask()) is not None:
            asked.append(one)
            opened.tell(one, OOM if one.precision == "mixed_float16" else measured(), 1.0)
        assert len(asked) == len(SHORTLIST) - 1  # the baseline is on the shortlist and was measured
        assert set(asked) == set(SHORTLIST) - {BASELINE}
        assert [record.number for record in opened.records] == list(range(len(SHORTLIST)))


def test_nothing_off_the_shortlist_is_ever_asked_for(place):
    shortlist = SHORTLIST[::2]
    with started(place, shortlist=shortlist) as opened:
        while (one := opened.ask()) is not None:
            assert one in shortlist
            opened.tell(one, measured(), 1.0)


def test_the_sampler_chooses_among_what_may_have_its_turn(place):
    """Whatever it wishes, large batches wait until the small ones have been measured."""
    small = [one for one in SHORTLIST if one.batch.global_size <= 64 and one != BASELINE]

    def among(left):
        return [one for one in left if one in small]

    with started(place) as opened:
        asked = []
        while (one := opened.ask(among)) is not None:
            asked.append(one)
            opened.tell(one, measured(), 1.0 / one.batch.global_size)
        chosen = asked[PREDICTED_FIRST:]
        waiting = [one for one in small if one not in asked[:PREDICTED_FIRST]]
        assert set(chosen[: len(waiting)]) == set(waiting)
        assert set(asked) == set(SHORTLIST) - {BASELINE}


def test_the_sampler_prefers_what_was_good_and_avoids_what_failed(place):
    """Small batches are good, float16 fails: of the sampler's first six choices most are small and not float16."""
    large = [
        config(size, 4096 // size, precision=precision)
        for precision in ("float32", "mixed_bfloat16", "mixed_float16")
        for size in (2**n for n in range(1, 13))
    ]
    # The order of prediction is of no help: it begins with one configuration of each kind.
    shortlist = [large[n] for n in (0, 11, 24, 35, 5)] + large
    shortlist = list(dict.fromkeys(shortlist))
    opened = study(place, shortlist=shortlist, choices=knob_choices(large))
    chosen = []
    with opened:
        opened.begin(large[6])
        opened.tell(large[6], measured(), 1.0)
        for n in range(PREDICTED_FIRST + 6):
            one = opened.ask()
            failed = one.precision == "mixed_float16"
            opened.tell(one, OOM if failed else measured(), float(one.batch.global_size))
            if n >= PREDICTED_FIRST:
                chosen.append(one)
    assert sum(one.precision != "mixed_float16" for one in chosen) >= 4


def test_a_study_is_resumed_where_it_was(place):
    with started(place) as opened:
        first = opened.ask()
        opened.tell(first, measured(0.5), 0.1, predicted_update_seconds=0.4)
        second = opened.ask()
        opened.tell(second, OOM, None)
        records = opened.records
    with study(place) as again:
        assert again.records == records
        assert again.outcome(first).measurement.micro_step_seconds == 0.5
        assert again.outcome(second).failure == OOM
        assert again.ask() not in (first, second, BASELINE)


def test_an_abandoned_trial_may_be_asked_for_again(place):
    with started(place) as opened:
        one = opened.ask()
        opened.abandon(one)
        assert opened.ask() == one
        assert len(opened.records) == 1


def test_a_killed_process_leaves_a_study_that_goes_on(place):
    code = f"""
import os, signal
from tests.autoplan.tuning.trials import test_study
from autoplan.tuning.trials.storage import StudyPlace
opened = test_study.started(StudyPlace.choose({str(place.folder)!r}, {place.name!r}))
opened.ask()
os.kill(os.getpid(), signal.SIGKILL)
"""
    root = Path(__file__).parents[4]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    with study(place) as opened:
        assert [record.number for record in opened.records] == [0]
        assert opened.ask() == SHORTLIST[0]


def test_a_trial_that_was_never_begun_is_over_too(place):
    """A process that was killed between announcing a trial and beginning it."""
    with started(place) as opened:
        opened._study.enqueue_trial({"precision": "float32"})
    with study(place) as again:
        assert again.ask() == SHORTLIST[0]


def test_a_trial_that_had_ended_when_its_process_was_killed_is_told_to_the_sampler(place):
    with started(place) as opened:
        one = opened.ask()
        opened._settle = lambda number, objective: None  # killed before it came to that
        opened.tell(one, measured(), 0.25)
        opened.ask()
    with study(place) as again:
        assert [record.config for record in again.records] == [BASELINE, one]
        states = [(trial.state.name, trial.value) for trial in again._study.get_trials()]
        assert states == [("COMPLETE", 1.0), ("COMPLETE", 0.25), ("FAIL", None)]


def test_a_resumed_study_asks_as_if_it_had_not_been_interrupted(tmp_path):
    def asked(name, every):
        """All configurations in the order in which they are asked for, the study reopened after so many."""
        place = StudyPlace.choose(str(tmp_path / name), "a-study")
        order = []
        started(place).close()
        while len(order) < len(SHORTLIST) - 1:
            with study(place) as opened:
                for _ in range(every):
                    one = opened.ask()
                    if one is None:
                        break
                    order.append(one)
                    opened.tell(one, measured(), float(one.batch.global_size))
                opened.ask()  # and this one is interrupted
        return order

    assert asked("in one", 100) == asked("in pieces", 2)


def test_what_was_ended_from_outside_may_be_tried_again_by_a_later_run(place):
    killed = Failure(kind=FailureKind.CRASH, message="ended by SIGKILL", outside=True)
    with started(place) as opened:
        first, second = opened.ask(), opened.ask()
        opened.tell(first, killed, None)
        opened.tell(second, measured(), 1.0)
        assert opened.ask() not in (first, second)
    with study(place) as again:
        assert again.outcome(first) is None
        assert again.next_number == 3
        assert again.ask() == first
        assert again.tell(first, measured(), 1.0).number == 3
    with study(place) as third:
        assert [record.number for record in third.records] == [0, 2, 3]


def test_a_second_outcome_takes_the_place_of_the_first(place):
    with started(place) as opened:
        opened.begin(BASELINE)
        opened.tell(BASELINE, OOM, None)
        assert [record.number for record in opened.records] == [1]
        assert opened.outcome(BASELINE).failure == OOM
    with study(place) as again:
        assert [(record.number, record.failure) for record in again.records] == [(1, OOM)]


def test_a_study_is_refused_before_anything_runs(place):
    refuse_unusable(place, IDENTITY)  # there is none yet
    started(place).close()
    refuse_unusable(place, {"hardware": "cpu"})
    refuse_unusable(place, IDENTITY)
    with pytest.raises(
        StudyError, match=r"was made under other conditions: source: sha256 aaaaaaaaaaaa -> sha256 bbbbbbbbbbbb\."
    ):
        refuse_unusable(place, {"source": "b" * 64, "hardware": "cpu"})
    with study(place), pytest.raises(StudyError, match="is in use by another process"):
        refuse_unusable(place, IDENTITY)
    study(place).close()


def test_a_database_of_something_else_is_left_alone(tmp_path):
    file = tmp_path / "customers.db"
    with contextlib.closing(sqlite3.connect(file)) as database, database:
        database.execute("create table customers (name text)")
    place = StudyPlace.choose(str(file), "a-study")
    for open_it in (lambda: study(place), lambda: refuse_unusable(place, IDENTITY)):
        with pytest.raises(StudyError, match=r"customers\.db holds something else \(customers\); give --study another"):
            open_it()
    with contextlib.closing(sqlite3.connect(file)) as database:
        assert database.execute("select name from sqlite_master").fetchall() == [("customers",)]


def test_an_empty_database_is_where_a_study_begins(tmp_path):
    """What a process leaves that was killed while it made one."""
    (tmp_path / "study.db").touch()
    with started(StudyPlace.choose(str(tmp_path / "study.db"), "a-study")) as opened:
        assert len(opened.records) == 1


def test_a_database_that_somebody_else_writes_to_is_locked(place, monkeypatch):
    started(place).close()
    connect = sqlite3.connect
    monkeypatch.setattr("sqlite3.connect", lambda *args, **named: connect(*args, **(named | {"timeout": 0.1})))
    with contextlib.closing(connect(place.file, isolation_level=None)) as other:
        other.execute("begin exclusive")
        with pytest.raises(StudyError, match=r"study\.db is locked by another process; wait for it, or use --study"):
            study(place)
        other.execute("rollback")
    study(place).close()


def test_what_is_stored_is_not_taken_for_what_went_wrong(place):
    """Errors quote the statement with its values, in which any word may stand."""
    with started(place) as opened:
        one = opened.ask()
        with contextlib.closing(sqlite3.connect(place.file)) as other, other:
            other.execute("drop table trial_user_attributes")
        with pytest.raises(StudyError, match=r"is damaged \(.*no such table"):
            opened.tell(one, measured(notes=["the disk is full, and locked"]), 1.0)


def test_a_study_of_something_else_is_refused_with_what_differs(place):
    started(place).close()
    with pytest.raises(StudyError) as caught:
        study(place, identity=IDENTITY | {"hardware": "gpu-h100-80gb"})
    assert str(caught.value) == (
        f"the study at {place} was made under other conditions: hardware: cpu -> gpu-h100-80gb. "
        "Give another --study, or remove this study"
    )


def test_a_study_in_use_is_refused(place):
    with started(place), pytest.raises(StudyError, match="is in use by another process"):
        study(place)
    study(place).close()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("bogus://x", "no database is known for bogus://x .*; use --study PATH"),
        ("oracle://nowhere/x", "the study at oracle://nowhere/x cannot be used .*give --study another place"),
    ],
)
def test_a_url_without_a_dialect_or_a_driver_is_told(tmp_path, monkeypatch, url, message):
    monkeypatch.chdir(tmp_path)
    place = StudyPlace.choose(url, "a-study")
    with pytest.raises(StudyError, match=message):
        study(place)


def test_a_damaged_file_is_told(tmp_path):
    file = tmp_path / "study.db"
    file.write_bytes(b"this is no database" * 500)
    place = StudyPlace.choose(str(file), "a-study")
    with pytest.raises(StudyError, match=r"study\.db is damaged \(.*not a database"):
        study(place)
    assert file.read_bytes().startswith(b"this is no database")


def test_a_truncated_database_is_told(place):
    started(place).close()
    file = place.folder / "study.db"
    file.write_bytes(file.read_bytes()[:5000])
    with pytest.raises(StudyError, match=r"is damaged|cannot be used"):
        study(place)


def test_records_of_another_version_are_told(place):
    started(place).close()
    with contextlib.closing(sqlite3.connect(place.folder / "study.db")) as database, database:
        database.execute("update trial_user_attributes set value_json = ?", [json.dumps({"from": "the future"})])
    with pytest.raises(StudyError, match="cannot be used"):
        study(place)


def test_a_full_disk_keeps_the_record_in_memory(place):
    """SQLite's own limit on pages stands for a full disk: the message is the same."""
    with started(place) as opened:
        one = opened.ask()
        engine = opened._study._storage._backend.engine
        engine.dispose()

        @sqlalchemy.event.listens_for(engine, "connect")
        def shrink(connection, _):
            connection.execute("pragma max_page_count = 1")

        long_measurement = measured(notes=["x" * 200_000])
        with pytest.raises(StudyError, match="the disk is full"):
            opened.tell(one, long_measurement, 1.0)
        assert opened.records[-1].measurement == long_measurement


def test_choices_are_in_a_fixed_order():
    assert knob_choices(list(reversed(SHORTLIST))) == knob_choices(SHORTLIST)
    assert knob_choices(SHORTLIST)["global"] == [32, 64, 128, 256, 512]


# Through the planner


def test_a_study_of_another_source_is_refused(tune):
    tune(tune_requests.fake(), study="one", trials=2)
    with pytest.raises(
        StudyError, match="was made under other conditions: structure: sha256 000000000000 -> sha256 ffffffffffff"
    ):
        tune(tune_requests.fake(facts={"structure": "f" * 64}), study="one")


def test_a_study_of_another_script_or_hardware_is_refused_before_anything_runs(tune, tmp_path):
    tune(tune_requests.fake(), study="one", trials=2)
    client = tune_requests.fake()
    with pytest.raises(
        StudyError, match=r"was made under other conditions: memory: 8.* GiB -> 4.* GiB\. Give another --study"
    ):
        tune(client, study="one", here=cluster(usable_bytes=4 * GIB))
    (tmp_path / "train.py").write_text("import keras\nkeras.Model().fit()  # changed\n")
    with pytest.raises(StudyError, match="was made under other conditions: source: sha256 "):
        tune(client, study="one")
    assert client.jobs == []


def test_a_full_disk_ends_the_trials_and_loses_nothing(tune, monkeypatch):
    tell = Study.tell
    calls = []

    def full(self, config, outcome, objective, predicted=None):
        calls.append(config)
        record = tell(self, config, outcome, objective, predicted)
        if len(calls) == 3:
            raise StudyError("the study cannot be written: the disk is full")
        return record

    monkeypatch.setattr(Study, "tell", full)
    result = tune(tune_requests.fake())
    assert len(result.plan.trials) == 3
    assert result.plan.config == tune_requests.BEST
    assert any(event.kind == "note" and "the disk is full" in event.text for event in tune.events)


def test_records_of_the_first_version_are_read_and_stored_with_the_same_values():
    """They held plain mappings as configurations."""
    stored = json.loads((Path(__file__).parent / "stored_records.json").read_text())
    records = [TrialRecord.model_validate(one) for one in stored]
    assert all(isinstance(record.config, TrainConfig) for record in records)
    assert [record.model_dump(mode="json") for record in records] == stored
