"""The same trainings are probed on each backend, in one process for each.

By default TensorFlow and PyTorch run the cases that depend on how a backend runs a micro-step; with the slow tests they
run all of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from autoplan.jobs.messages import SplitProbe

SCRIPT = Path(__file__).with_name("cases.py")
DIFFERENT_ROWS = "depends on which rows a micro-step has together"
GROWS = "grows with the number of rows, as a sum over them does"
OTHER_OUTPUT = "for 32 rows differs from its outputs for their halves"


pytestmark = pytest.mark.timeout(900)


BACKENDS = ("jax", "tensorflow", "torch")
ON_EVERY_BACKEND = {"dropout", "batch_normalization", "own_micro_step", "counted_calls"}
"""Cases in which a backend's own micro-step, random numbers, state or masks matter."""
LIKE_OTHERS = {
    *("batch_of_one_row", "weights_in_the_data", "penalty_of_weights", "frozen_batch_normalization", "triplet_loss"),
    *("batches_of_a_data_set", "sum_by_its_name", "codebook", "weighted_metrics", "loss_over_its_rows"),
    *("dropout_of_nothing", "seeds_of_an_own_layer", "loss_over_its_positives", "rows_without_a_label_at_the_end"),
    *("spectral_normalization", "own_micro_step_over_rows", "several_outputs_and_dictionaries", "penalty_of_outputs"),
    *("weights_of_classes", "mask_that_is_consumed", "no_remainder", "metric_that_counts_rows_of_weight_zero"),
}
"""Cases that resemble others."""


def on_each_backend(*cases, names=()):
    """Parametrize a test by backend and case; a case is a name, or a tuple of its name and the values for `names`."""
    params = []
    for backend in BACKENDS:
        for row in cases:
            case, *values = row if names else (row,)
            quick = case in ON_EVERY_BACKEND or (backend == "jax" and case not in LIKE_OTHERS)
            marks = () if quick else pytest.mark.slow
            params.append(pytest.param(backend, case, *values, marks=marks))
    return pytest.mark.parametrize(("found", "case", *names), params, indirect=["found"])


@pytest.fixture(scope="module")
def results():
    """What the process of each backend wrote, by the backend's name."""
    return {}


@pytest.fixture
def found(request, results, tmp_path_factory, root):
    """What the probe found of the cases that are asked for on this backend, by their names."""
    backend = request.param
    if backend not in results:
        asked = {
            item.callspec.params["case"]
            for item in request.session.items
            if item.path == request.path and item.callspec.params["found"] == backend
        }
        target = tmp_path_factory.mktemp("probe") / "found.json"
        environment = {**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": str(root)}
        command = [sys.executable, SCRIPT, target, *sorted(asked)]
        subprocess.run(command, env=environment, check=True, capture_output=True, timeout=800)
        results[backend] = json.loads(target.read_text())
    return results[backend]


def probe(found, case):
    assert "error" not in found[case], found[case]["error"]
    return SplitProbe.model_validate(found[case])


@on_each_backend(
    "plain",
    "batch_of_one_row",
    "weights_in_the_data",
    "weights_of_classes",
    "several_outputs_and_dictionaries",
    "penalty_of_weights",
    "penalty_of_outputs",
    "unweighted_metrics",
    "mean_with_sample_weight",
    "frozen_batch_normalization",
    "dropout_of_nothing",
    "mask_that_is_consumed",
    "own_micro_step",
    "batches_of_a_data_set",
    "batches_of_a_generator",
)
def test_an_update_may_be_split(found, case):
    result = probe(found, case)
    assert (result.split, result.split_reason) == ("same", "")
    assert (result.random_draws, result.batch_statistics) == ([], [])
    assert "was compared in float32 with its halves on" in result.compared


@on_each_backend(
    ("batch_normalization", [], ["norm (BatchNormalization)"]),
    ("dropout", ["drop (Dropout)", "noise (GaussianNoise)"], []),
    ("seeds_of_an_own_layer", ["sampling (Sampling)"], []),
    names=("draws", "statistics"),
)
def test_draws_and_statistics_are_recorded_and_do_not_count_as_a_difference(found, case, draws, statistics):
    result = probe(found, case)
    assert result.split == "same"
    assert (result.random_draws, result.batch_statistics) == (draws, statistics)


@on_each_backend(
    ("loss_of_pairs", ["the loss info_nce", DIFFERENT_ROWS]),
    ("triplet_loss", ["the loss hardest_negative", DIFFERENT_ROWS]),
    ("summed_loss", ["the loss <lambda>", GROWS]),
    ("sum_by_its_name", ["the loss mean_squared_error", GROWS]),
    ("loss_over_its_positives", ["the loss focal"]),
    ("rows_without_a_label_at_the_end", ["the loss sparse_categorical_crossentropy", DIFFERENT_ROWS]),
    ("mask_that_reaches_the_loss", ["sparse_categorical_crossentropy over unmasked positions"]),
    ("counted_calls", ["counter/calls of counter (Counter) moves at every micro-step: by 1 in one micro-step and"]),
    ("codebook", ["codebook/codes of codebook (Codebook) moves at every micro-step"]),
    ("spectral_normalization", ["of spectral_normalization (SpectralNormalization) moves at every micro-step"]),
    ("standardized_over_rows", ["the output of scores (BatchScores)", OTHER_OUTPUT]),
    ("fixed_number_of_rows", ["the model does not take a micro-step of 16 rows"]),
    ("own_micro_step_over_rows", ["the loss of OwnMicroStep's own micro-step", DIFFERENT_ROWS]),
    ("loss_that_turns_round", ["after a descent on the compared rows", "the loss flooded"]),
    ("switch_of_a_callback", ["with another value of", "switched/on", "Switched"]),
    ("one_mask_for_all_rows", ["shared (Dropout) drops the same units in all rows of a micro-step"]),
    ("noise_of_weights", ["noisy (NoisyWeights) draws random numbers that all rows of a micro-step share"]),
    ("shuffled_pairs", ["negatives (Negatives) shuffles the rows of a micro-step"]),
    ("rare_labels_of_another_output", ["the loss mse, of_known", DIFFERENT_ROWS]),
    names=("words",),
)
def test_an_update_that_may_not_be_split_has_a_reason_with_a_name(found, case, words):
    result = probe(found, case)
    assert result.split == "differs"
    assert [word for word in words if word not in result.split_reason] == [], result.split_reason


@on_each_backend(
    ("plain", "same", ""),
    ("weights_in_the_data", "same", ""),
    ("weights_of_classes", "same", ""),
    ("several_outputs_and_dictionaries", "same", ""),
    ("weighted_metrics", "same", ""),
    ("mask_that_is_consumed", "same", ""),
    ("batches_of_a_data_set", "same", ""),
    ("batches_of_a_generator", "same", ""),
    ("no_remainder", "not_known", ""),
    ("batch_of_one_row", "not_known", ""),
    ("loss_of_pairs", "not_known", ""),
    ("unweighted_metrics", "same", ""),
    ("metrics_of_two_outputs", "same", ""),
    ("metric_of_the_user", "differs", "the metric lambda counts rows of weight zero"),
    ("metric_that_counts_rows_of_weight_zero", "differs", "the metric mae counts rows of weight zero"),
    ("batch_normalization", "differs", "norm (BatchNormalization) takes its statistics over rows of weight zero"),
    ("mean_with_sample_weight", "differs", "rows of weight zero change the total loss (mean_squared_error)"),
    ("loss_over_its_rows", "differs", "rows of weight zero change the total loss (mean_of_all)"),
    ("penalty_of_outputs", "differs", "rows of weight zero change the total loss (mse)"),
    ("own_micro_step", "differs", "rows of weight zero change the total loss (OwnMicroStep's own micro-step)"),
    names=("padding", "words"),
)
def test_rows_of_weight_zero_are_compared_where_an_epoch_has_a_remainder(found, case, padding, words):
    result = probe(found, case)
    assert result.padding == padding
    assert result.padding_reason.startswith(words)
    assert bool(result.padding_reason) is (padding == "differs")


@on_each_backend("state_outside_of_variables")
def test_state_outside_of_variables_is_no_evidence_for_a_split(found, case):
    """A program that is traced keeps the first state; elsewhere the same rows give other results."""
    assert probe(found, case).split in ("differs", "not_known")


@on_each_backend("no_remainder", "loss_of_pairs", "counted_calls")
def test_one_program_for_each_number_of_rows(found, case):
    assert probe(found, case).compilations <= 2
