"""Building a model before its fit changes neither the batches that the fit reads nor the numbers that it draws."""

import random

import keras
import numpy as np
import pytest

from autoplan.runtime.data import data_facts, lookahead
from autoplan.runtime.live_models.build import ensure_built

ROWS, BATCH = 22, 8


class TrainStepAlone(keras.Model):
    """A generative model: layers, a custom train_step, and no `call`."""

    def __init__(self):
        super().__init__()
        self.encoder = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(2)])

    def train_step(self, *arguments):
        return {}


class Subclassed(keras.Model):
    """Its weights are drawn from Python's generator and from NumPy's, as the data of these tests are."""

    def __init__(self):
        super().__init__()
        self.hidden = keras.layers.Dense(3, kernel_initializer=lambda shape, dtype: np.random.normal(size=shape))
        self.dense = keras.layers.Dense(2)

    def call(self, inputs):
        return self.dense(self.hidden(inputs))


class WithoutCompiledLoss(Subclassed):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return keras.ops.mean(keras.ops.square(y - y_pred))


class UsesOneLayer(Subclassed):
    """It stays unbuilt, because it never calls one of its layers."""

    def __init__(self):
        super().__init__()
        self.unused = keras.layers.Dense(5)


def samples():
    x = np.random.default_rng(0).normal(size=(ROWS, 4)).astype("float32")
    return x, x[:, :2].copy()


class Augmented(keras.utils.PyDataset):
    """Batches that are drawn in part, from both generators; the order of the rows is drawn at the start of an epoch."""

    def __init__(self, **options):
        super().__init__(**options)
        self.order = list(range(ROWS))

    def __len__(self):
        return 3

    def on_epoch_begin(self):
        random.shuffle(self.order)

    def __getitem__(self, index):
        x, y = (leaf[self.order[index * BATCH : (index + 1) * BATCH]] for leaf in samples())
        return x * random.random() + np.random.random(), y


def drawn_batches():
    x, y = samples()
    while True:
        rows = random.sample(range(ROWS), BATCH)
        yield x[rows], y[rows]


def loader():
    torch = pytest.importorskip("torch")
    torch.manual_seed(5)  # which Keras leaves out on JAX

    class Drawn(torch.utils.data.Dataset):
        def __len__(self):
            return ROWS

        def __getitem__(self, index):
            x, y = samples()
            return x[index] * random.random(), y[index]

    return torch.utils.data.DataLoader(Drawn(), batch_size=BATCH, shuffle=True)


def pipeline():
    tf = pytest.importorskip("tensorflow")
    return tf.data.Dataset.from_tensor_slices(samples()).shuffle(ROWS, seed=3).batch(BATCH)


def of_arrays(**more):
    x, y = samples()
    return {"x": x, "y": y, "batch_size": BATCH, **more}


DATA = {
    "arrays": of_arrays,
    "arrays without the rows of a validation": lambda: of_arrays(validation_split=0.2),
    "arrays shuffled within batches": lambda: of_arrays(shuffle="batch"),
    "arrays in their order": lambda: of_arrays(shuffle=False),
    "PyDataset": lambda: {"x": Augmented()},
    "generator": lambda: {"x": drawn_batches(), "steps_per_epoch": 3, "shuffle": False},
    "DataLoader": lambda: {"x": loader(), "shuffle": False},
    "tf.data": lambda: {"x": pipeline(), "shuffle": False},
}


def trained(kind, data, *, built_before):
    """Return the weights after two epochs, and the next number of each global generator."""
    keras.utils.set_random_seed(5)
    model = kind()
    model.compile("sgd", None if kind is WithoutCompiledLoss else "mse", run_eagerly=True)
    arguments = {**data(), "epochs": 2, "verbose": 0}
    if built_before:
        arguments = lookahead.buffer_first_batch(arguments)
        ensure_built(model, arguments, data_facts.describe(arguments, batch=BATCH))
        assert model.trainable_variables
    model.fit(**arguments)
    assert "_symbolic_build" not in vars(model)
    return model.get_weights(), random.random(), np.random.random()


@pytest.mark.filterwarnings("ignore:`build..` was called")
@pytest.mark.parametrize(
    ("kind", "data"),
    [
        *(pytest.param(WithoutCompiledLoss, data, id=name) for name, data in DATA.items()),
        pytest.param(Subclassed, DATA["arrays"], id="its loss is unbuilt too"),
        pytest.param(UsesOneLayer, DATA["PyDataset"], id="it stays unbuilt"),
    ],
)
def test_a_model_that_was_built_before_its_fit_trains_as_by_itself(kind, data):
    (own, *own_draws), (built, *draws) = (trained(kind, data, built_before=before) for before in (False, True))
    assert draws == own_draws
    for one, other in zip(own, built, strict=True):
        assert np.array_equal(one, other)


def test_a_seed_that_is_set_after_building_holds():
    ended = []
    for seed in (1, 1, 2):
        keras.utils.set_random_seed(5)
        model = WithoutCompiledLoss()
        model.compile("sgd", run_eagerly=True)
        arguments = of_arrays(verbose=0)
        ensure_built(model, arguments, data_facts.describe(arguments))
        keras.utils.set_random_seed(seed)
        model.fit(**arguments)
        ended.append(model.get_weights()[0].tolist())
    assert ended[0] == ended[1] != ended[2]


def about_to_fit(model):
    model.compile("sgd", "mse")
    arguments = of_arrays()
    return model, arguments, data_facts.describe(arguments)


def test_a_subclassed_model_is_built_before_it_fits():
    model, arguments, facts = about_to_fit(Subclassed())
    ensure_built(model, arguments, facts)
    assert [tuple(variable.shape) for variable in model.trainable_variables] == [(4, 3), (3,), (3, 2), (2,)]


def test_a_model_without_call_is_not_built():
    model, arguments, facts = about_to_fit(TrainStepAlone())
    ensure_built(model, arguments, facts)
    assert len(model.trainable_variables) == 2
