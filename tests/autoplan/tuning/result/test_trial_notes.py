"""Notes on what trials ran of a script."""

from autoplan.plan.records import Measurement
from autoplan.tuning.result.trial_notes import growth_note, trial_notes
from tests.builders import plans
from tests.builders.observations import config, observation

MIB = 2**20


def measurement(**facts):
    return Measurement.model_validate(plans.measurement() | facts)


def test_callbacks_are_listed_by_whether_they_ran():
    facts = observation(config(64), writers_left_out=["ModelCheckpoint"])
    measured = [
        measurement(callbacks_ran=["Counter", "Trace"]),
        measurement(callbacks_ran=["Counter"], callbacks_left_out=["Trace (writes trace.txt)"]),
    ]
    assert trial_notes(facts, measured) == [
        "callbacks that write files or send data were left out of trials: ModelCheckpoint, Trace (writes trace.txt)",
        "callbacks that ran in trials, where they wrote nothing: Counter",
    ]


def test_files_that_a_script_wrote_are_listed_with_the_remedy():
    own = "the training's own code wrote files"
    script = "the script's code before fit"
    remedy = "; --scratch runs each trial in an empty working directory"
    facts = observation(config(64), files_written=[f"{name}.csv" for name in "abcdef"])
    assert trial_notes(facts, [measurement(files_written=["cache.npy"]), measurement(files_written=["cache.npy"])]) == [
        f"{script} wrote files in every trial: a.csv, b.csv, c.csv, d.csv, e.csv and 1 more{remedy}",
        f"{own} during the fit in trials: cache.npy (files that existed were put back){remedy}",
    ]


def test_nothing_is_told_of_a_script_without_callbacks_and_files():
    assert trial_notes(observation(config(64)), [measurement()]) == []


def test_growing_memory_is_reported_with_the_micro_steps_of_the_fit():
    grown = {"growth_bytes": 2 * MIB, "growth_micro_steps": 640}
    assert growth_note(measurement(**grown), None) == "memory grows by 2.00 MiB per micro-step (measured over 640)"
    whole = measurement(**grown, fit_micro_steps=1000, grown_bytes=2900 * MIB)
    known = "memory grows by 2.00 MiB per micro-step: 1.95 GiB over the fit's 1,000 micro-steps (measured over 640)"
    assert growth_note(whole, 4096 * MIB) == growth_note(whole, None) == known
    assert growth_note(whole, 2048 * MIB) == (
        f"{known}. If it goes on, the process holds 2.83 GiB at the end of the fit, more than the 2.00 GiB that it may "
        "take: look for arrays that are kept after a micro-step"
    )
    assert growth_note(measurement(), 1) is None
    assert growth_note(None, 1) is None
