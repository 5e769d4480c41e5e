from __future__ import annotations

import pytest

from autoplan.machine import process_settings
from autoplan.plan import knobs
from cost_models.config import Batch, TrainConfig

PLAIN = TrainConfig(Batch(8))
KEEPING = PLAIN.with_(keep_freed_memory=True)


def test_every_knob_of_a_process_has_a_setting():
    assert set(process_settings.SETTINGS) == set(knobs.process_fields())


def test_only_what_is_not_at_its_default_is_wanted():
    assert process_settings.wanted(PLAIN) == {}
    assert process_settings.wanted(KEEPING) == {"keep_freed_memory": True}


@pytest.mark.parametrize("can", [True, False])
def test_a_setting_that_this_system_lacks_is_named(can, monkeypatch):
    asked = []
    monkeypatch.setattr("autoplan.machine.processes.can_keep_freed_memory", lambda: can)
    monkeypatch.setattr("autoplan.machine.processes.retain_freed_memory", lambda: asked.append(can) or can)
    message = "keep_freed_memory cannot be set to true: this system has a C library that has no setting for it"
    assert process_settings.apply(KEEPING) == ([] if can else [message])
    assert asked == [can]
    assert process_settings.apply(PLAIN) == []
    assert asked == [can], "nothing is set where nothing is wanted"
    lacking = {} if can else {"keep_freed_memory": "a C library that has no setting for it"}
    assert process_settings.missing_here() == lacking


def test_statements_call_mallopt_before_keras_is_imported():
    assert process_settings.statements(PLAIN) == ""
    text = process_settings.statements(KEEPING)
    assert "libc.mallopt(-4, 0)" in text
    compile(text, "exported", "exec")
