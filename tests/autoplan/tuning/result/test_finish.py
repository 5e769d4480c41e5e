from __future__ import annotations

from autoplan.plan import file
from tests.builders.tune_requests import fake


def test_the_plan_is_written_and_returned_with_the_shortlist(tune, tmp_path):
    result = tune(fake())
    assert result.written_to == tmp_path / "plan.yaml"
    assert file.read(result.written_to).config == result.plan.config
    assert result.shortlist[0].config in {trial.config for trial in result.plan.trials}
    assert tune.events[-1].text == "the plan is written"


def test_without_an_output_the_plan_is_only_returned(tune):
    result = tune(fake(), output=None)
    assert result.written_to is None
    assert (tune.events[-1].text, tune.events[-1].config) == ("the plan is ready", result.plan.config)
