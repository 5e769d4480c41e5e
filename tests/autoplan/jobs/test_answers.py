from __future__ import annotations

from autoplan.jobs.answers import explain_failure
from autoplan.plan.records import Failure, FailureKind


def test_a_training_that_fails_by_itself_is_told_with_where_its_output_is():
    told = str(explain_failure(Failure(kind=FailureKind.NAN, message="the loss is nan", log=".autoplan/x/trial-0.log")))
    assert told == (
        "the training fails as it is (nan: the loss is nan); its output is in .autoplan/x/trial-0.log. "
        "Make it run by itself, then tune it"
    )


def test_a_source_that_can_run_only_once_in_a_folder_is_told_of_scratch():
    error = "train.py failed by itself:\nFileExistsError: [Errno 17] File exists: 'data'"
    told = str(explain_failure(Failure(kind=FailureKind.CRASH, message=error)))
    assert told.startswith(f"{error}\nIt reached its fit in the first run")
    assert told.endswith("--scratch gives each an empty working directory")


# Out of memory before the first micro-step
