from __future__ import annotations

import pytest

from autoplan.reports.host_bound import beside_computing
from tests.builders import plans

WORK = "Keras's own work for each micro-step (taking the batch from the arrays, callbacks, starting the program)"
LARGER = "a larger batch (--effective-batch; it changes the training)"


def plan_of(data, *, alone=0.001, backend="jax", batch=(1, 1), samples=600, input_bound=True):
    plain = plans.plain_plan()
    fit = plain["source"]["fit"] | {"data": data, "samples": samples}
    measured = plans.measurement(0.004, input_bound=input_bound, compute_micro_step_seconds=alone)
    config = plans.config(backend=backend, batch=batch)
    return plans.plan(measured=measured, config=config, source=plain["source"] | {"fit": fit})


def test_arrays_in_memory_are_not_said_to_be_read_slowly():
    """Of a micro-step of 4 ms, the compiled step takes 1 ms."""
    longer = f"{WORK} takes longer than computing, 3.00 ms against 1.00 ms (measured)"
    assert beside_computing(plan_of("arrays")) == f"{longer}: {LARGER} would help."


def test_a_share_is_given_where_computing_takes_longer():
    assert (
        beside_computing(plan_of("arrays", alone=0.003))
        == f"{WORK} takes 25% of the micro-step (measured): {LARGER} would help."
    )


@pytest.mark.parametrize("data", ["tf.data", "PyDataset", "DataLoader", "generator"])
def test_an_input_pipeline_is_named(data):
    expected = "Reading the data is slower than computing (measured): a faster input pipeline would help most now."
    assert beside_computing(plan_of(data)) == expected


@pytest.mark.parametrize(
    ("changes", "advice"),
    [
        ({"backend": "tensorflow"}, f": {LARGER} or a larger steps_per_execution would help."),
        ({"backend": "torch"}, f": {LARGER} would help."),
        ({"batch": (8, 4)}, ": larger micro-batches with less accumulation would help."),
        ({"batch": (600, 1)}, "(measured)."),  # one batch is the whole epoch
    ],
)
def test_only_what_helps_there_is_advised(changes, advice):
    assert beside_computing(plan_of("arrays", **changes)).endswith(advice)


@pytest.mark.parametrize("changes", [{"data": "synthetic"}, {"data": "arrays", "input_bound": False}])
def test_nothing_is_said_of_made_up_data_or_of_a_fit_that_computes(changes):
    assert beside_computing(plan_of(**changes)) is None
