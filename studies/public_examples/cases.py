"""The public examples of the study: the backends to tune each on, and what makes it worth a case."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

REPLACED = Path(__file__).resolve().parent / "replaced"
"""A folder for PYTHONPATH: its `sitecustomize` replaces the data of the examples."""
ALL = ("jax", "tensorflow", "torch")


@dataclass(frozen=True)
class Case:
    """A public example.

    path      its file in the checkout
    kind      what makes it worth a case
    backends  the backends to tune it on
    options   options of `autoplan tune`
    rows      samples to train and to test on
    prepare   the files that its shell commands would download into the working directory
    """

    path: str
    kind: str
    backends: tuple[str, ...] = ("jax",)
    options: tuple[str, ...] = ()
    rows: str = "6000,1000"
    prepare: str | None = None


def synthetic_data_for(case: Case, data: Path) -> dict[str, str]:
    """Return the environment with which a case trains on synthetic data.

    data  folder for synthetic files, which are kept between runs
    """
    return {
        "EXAMPLE_DATA": str(data),
        "EXAMPLE_ROWS": case.rows,
        "MPLCONFIGDIR": str(data / "matplotlib"),
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }


CASES: dict[str, Case] = {
    "mnist_convnet": Case("examples/vision/mnist_convnet.py", "arrays, validation_split, evaluate afterwards", ALL),
    "autoencoder": Case("examples/vision/autoencoder.py", "figures shown before a fit; two fits of one model", ALL),
    "siamese": Case(
        "examples/vision/siamese_contrastive.py",
        "two inputs, Lambda layer, loss from a closure, shared layers, BatchNorm, batch of 16",
        ("jax",),
        rows="30500,500",
    ),
    "distillation": Case(
        "examples/vision/knowledge_distillation.py",
        "second of three fits; compile and compute_loss overridden, a frozen teacher inside",
        ("jax", "tensorflow"),
        ("--fit", "2"),
    ),
    "mixer": Case(
        "examples/vision/mlp_image_classification.py",
        "three models through one function, augmentation and an adapted layer inside, custom layers",
        ("jax",),
    ),
    "imbalanced": Case(
        "examples/structured_data/imbalanced_classification.py",
        "class weights, metrics with state, a checkpoint an epoch, Keras imported after the data are read",
        ALL,
    ),
    "movielens": Case(
        "examples/structured_data/collaborative_filtering_movielens.py",
        "subclassed, embeddings, integers in, pandas; its output mixes the rows of a batch",
        ("jax", "torch"),
    ),
    "decision_forest": Case(
        "examples/structured_data/deep_neural_decision_forests.py",
        "tf.data of dictionaries from CSV with a cache, string lookups, models inside models",
        ("jax", "tensorflow"),
    ),
    "feature_space": Case(
        "examples/structured_data/structured_data_classification_with_feature_space.py",
        "FeatureSpace inside tf.data, a model that starts in the middle of a graph",
        ("jax", "tensorflow"),
    ),
    "motor": Case(
        "examples/timeseries/timeseries_classification_from_scratch.py",
        "1-D convolutions with BatchNorm, three callbacks, the best model loaded afterwards",
        ("jax", "torch"),
    ),
    "anomaly": Case(
        "examples/timeseries/timeseries_anomaly_detection.py",
        "autoencoder of series with dropout and early stopping; data frames by address",
        ALL,
    ),
    "weather": Case(
        "examples/timeseries/timeseries_weather_forecasting.py",
        "windows of a series as tf.data, LSTM, validation data as tf.data",
        ("jax", "tensorflow"),
    ),
    "addition": Case("examples/nlp/addition_rnn.py", "fit called in a loop, boolean arrays, LSTM", ("jax", "torch")),
    "reviews_lstm": Case("examples/nlp/bidirectional_lstm_imdb.py", "bidirectional LSTM over padded lists", ("jax",)),
    "seq2seq": Case("examples/nlp/lstm_seq2seq.py", "two inputs of different length, states handed on", ("jax",)),
    "reviews_text": Case(
        "examples/nlp/text_classification_from_scratch.py",
        "text files as tf.data, an adapted vocabulary, a cache, prefetching",
        ("jax", "tensorflow"),
        prepare="reviews",
    ),
    "antirectifier": Case("examples/keras_recipes/antirectifier.py", "custom layer with get_config", ALL),
    "train_step_jax": Case("guides/custom_train_step_in_jax.py", "train_step of JAX; no loss among its logs"),
    "train_step_tensorflow": Case(
        "guides/custom_train_step_in_tensorflow.py", "train_step with a GradientTape", ("tensorflow",)
    ),
    "train_step_torch": Case("guides/custom_train_step_in_torch.py", "train_step with backward()", ("torch",)),
    "built_in_methods": Case(
        "guides/training_with_built_in_methods.py",
        "the guide to fit: a dozen fits; three frameworks imported",
        ("jax",),
        rows="60000,10000",
    ),
    "built_in_weights": Case(
        "guides/training_with_built_in_methods.py",
        "the same guide's fit with class weights",
        ("jax",),
        ("--fit", "5"),
        rows="60000,10000",
    ),
    "callbacks": Case(
        "guides/writing_your_own_callbacks.py", "a callback with every hook there is, validation_split", ALL
    ),
    "inputs_outputs": Case(
        "guides/functional_api.py",
        "second of several fits; three inputs and two outputs by name, two losses with weights",
        ("jax", "tensorflow"),
        ("--fit", "2"),
        rows="60000,10000",
    ),
    "subclassing": Case(
        "guides/making_new_layers_and_models_via_subclassing.py",
        "third fit; a subclassed variational autoencoder whose loss a layer adds",
        ALL,
        ("--fit", "3"),
        rows="60000,10000",
    ),
    "vae": Case(
        "examples/generative/vae.py",
        "train_step with a GradientTape, no call, TensorFlow functions in its layers",
        ("tensorflow", "jax"),
    ),
    "trainer": Case(
        "examples/keras_recipes/trainer_pattern.py",
        "a trainer around a model, metrics overridden, no loss among its logs",
        ("tensorflow", "jax"),
    ),
    "endpoint": Case(
        "examples/keras_recipes/endpoint_layer_pattern.py",
        "targets and weights as inputs, add_loss, no loss compiled",
        ("tensorflow", "jax"),
    ),
    "mixup": Case(
        "examples/vision/mixup.py",
        "two shuffled tf.data zipped and mixed; weights saved and loaded before the fit",
        ("tensorflow", "jax"),
    ),
    "metric_learning": Case(
        "examples/vision/metric_learning.py",
        "PyDataset of pairs whose first axis is no batch, train_step with a GradientTape",
        ("tensorflow", "jax"),
        rows="50000,1000",
    ),
    "captcha": Case(
        "examples/vision/captcha_ocr.py",
        "dictionaries of image and label as input, a CTC loss that XLA cannot compile",
        ("tensorflow", "jax"),
        prepare="captchas",
    ),
    "pets": Case(
        "examples/vision/oxford_pets_image_segmentation.py",
        "a U-Net on pictures that tf.data reads and decodes",
        ("jax",),
        prepare="pets",
    ),
    "gan": Case(
        "examples/generative/dcgan_overriding_train_step.py",
        "two networks with an optimizer each; makes a folder and can run only once",
        ("jax",),
    ),
    "loop_jax": Case(
        "guides/writing_a_custom_training_loop_in_jax.py", "a loop of its own", ("jax",), rows="12000,1000"
    ),
    "actor_critic": Case(
        "examples/rl/actor_critic_cartpole.py", "a loop of its own that ends when a pole stands", ("tensorflow",)
    ),
}
