"""Independent draws of a script in worker processes, as a verification requests them."""

import textwrap

import numpy as np
import pytest

from autoplan.jobs.client import Client
from autoplan.jobs.messages import Job, JobKind
from autoplan.runtime.data import data_facts
from autoplan.sources import source
from autoplan.worker.seeds import BASE_SEED, shuffled

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
    """Return the losses of the first updates of a draw, and the data that the script printed."""

    def run(seed, *, before="keras.utils.set_random_seed(42)"):
        script = tmp_path / "train.py"
        script.write_text(textwrap.dedent(SCRIPT).format(before=before))
        log = tmp_path / f"{seed}.log"
        job = Job(kind=JobKind.NUMERICS, source=source.resolve(str(script)), options={"seeds": [seed], "updates": 4})
        losses = client.run(job, time_limit_seconds=60, log=log).value["runs"][0]["losses"]
        return losses, [line for line in log.read_text().splitlines() if line.startswith("data")][-1:]

    return run


def test_another_seed_changes_the_draws_of_a_script_with_a_fixed_seed_but_not_its_data(draw):
    first, again, other = draw(1), draw(1), draw(2)
    assert first == again
    assert len(first[0]) == 4
    assert first[0] != other[0]
    assert first[1] == other[1] != []


def test_a_script_without_a_seed_is_seeded(draw):
    first, again, other = (draw(seed, before="") for seed in (1, 1, 2))
    assert first == again
    assert first[0] != other[0]
    assert first[1] == other[1]


def test_seeds_are_offset_under_every_name_of_the_function(draw):
    before = "from keras.utils import set_random_seed; set_random_seed(42)"
    assert draw(1, before=before)[0] != draw(2, before=before)[0]


def test_shuffled_rows_stay_together_and_exclude_the_validation_split():
    x = np.arange(10.0)[:, None]
    arguments = {"x": {"a": x}, "y": x * 2, "validation_split": 0.2, "batch_size": 4}
    facts = data_facts.describe(arguments)
    assert shuffled(arguments, facts, BASE_SEED) is arguments
    first, second = (shuffled(arguments, facts, seed) for seed in (2, 3))
    assert sorted(first["x"]["a"][:, 0]) == list(range(8))
    np.testing.assert_array_equal(first["y"], first["x"]["a"] * 2)
    assert (first["y"] != second["y"]).any()
    np.testing.assert_array_equal(shuffled(arguments, facts, 2)["y"], first["y"])
    assert (first["batch_size"], first["validation_split"]) == (4, 0.0)


LOADED = """
    import keras, torch
    from torch.utils.data import DataLoader, TensorDataset
    {before}
    x = torch.randn(256, 8)
    train = DataLoader(TensorDataset(x, x[:, :1]), batch_size=32, shuffle=True)
    inputs = keras.Input((8,))
    hidden = keras.layers.Dropout(0.5)(keras.layers.Dense(8)(inputs))
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    model.compile("sgd", "mse")
    print("data", float(x.sum()))
    model.fit(train, verbose=0)
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_draws_of_pytorch_are_repeated(backend, tmp_path):
    """Keras seeds PyTorch only on the PyTorch backend, and an unseeded PyTorch differs in every process."""
    script = tmp_path / "train.py"

    def draw(seed):
        log = tmp_path / "log"
        log.unlink(missing_ok=True)
        options = {"seeds": [seed], "updates": 4}
        job = Job(kind=JobKind.NUMERICS, source=source.resolve(str(script)), backend=backend, options=options)
        losses = some.run(job, time_limit_seconds=120, log=log).value["runs"][0]["losses"]
        return losses, [line for line in log.read_text().splitlines() if line.startswith("data")]

    with Client(backend) as some:
        for before in ("", "keras.utils.set_random_seed(42)"):
            script.write_text(textwrap.dedent(LOADED).format(before=before))
            looked = Job(kind=JobKind.OBSERVE, source=source.resolve(str(script)), backend=backend)
            assert some.run(looked, time_limit_seconds=120).failure is None
            first, again, other = draw(1), draw(1), draw(2)
            assert first == again
            assert first[0] != other[0]
            assert first[1] == other[1] != []
