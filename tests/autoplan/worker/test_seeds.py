"""Draws of a script in worker processes of their own, as verification asks for them."""

import textwrap

import pytest

from autoplan import source
from autoplan.jobs import Client, Job, JobKind

SCRIPT = """
    import os
    os.environ.setdefault("KERAS_BACKEND", "jax")
    import keras, numpy as np
    {before}
    x = np.random.normal(size=(256, 8)).astype("float32")
    inputs = keras.Input((8,))
    hidden = keras.layers.Dropout(0.5)(keras.layers.Dense(8)(inputs))
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    model.compile("sgd", "mse")
    print("data", float(x.sum()))
    model.fit(x, x[:, :1], batch_size=32, verbose=0)
"""


@pytest.fixture(scope="module")
def client():
    with Client() as one:
        yield one


@pytest.fixture
def draw(client, tmp_path):
    """Losses of the first updates in a draw, and what the script printed of its data."""

    def run(seed, *, before="keras.utils.set_random_seed(42)"):
        script = tmp_path / "train.py"
        script.write_text(textwrap.dedent(SCRIPT).format(before=before))
        log = tmp_path / f"{seed}.log"
        job = Job(kind=JobKind.NUMERICS, source=source.resolve(str(script)), options={"seed": seed, "updates": 4})
        losses = client.run(job, time_limit_seconds=60, log=log).value["losses"]
        return losses, [line for line in log.read_text().splitlines() if line.startswith("data")][-1:]

    return run


def test_a_script_that_fixes_its_seed_draws_anew_for_another_seed_with_the_same_data(draw):
    first, again, other = draw(1), draw(1), draw(2)
    assert first == again
    assert len(first[0]) == 4
    assert first[0] != other[0]
    assert first[1] == other[1] != []


def test_a_script_without_a_seed_is_given_one(draw):
    first, again, other = (draw(seed, before="") for seed in (1, 1, 2))
    assert first == again
    assert first[0] != other[0]
    assert first[1] == other[1]


def test_seeds_are_moved_under_every_name_of_the_function(draw):
    before = "from keras.utils import set_random_seed; set_random_seed(42)"
    assert draw(1, before=before)[0] != draw(2, before=before)[0]
