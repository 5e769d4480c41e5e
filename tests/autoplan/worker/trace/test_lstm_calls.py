"""The layers whose LSTM is a call of cuDNN on GPUs, found in real models, and what a plan says of them."""

import keras
import numpy as np
import pytest

from autoplan.runtime.data import data_facts
from autoplan.runtime.data.fit_arguments import FitArguments
from autoplan.tuning.space.known_issues import Versions
from autoplan.tuning.space.legal_configs import legal_configs
from autoplan.worker.trace.lstm_calls import cudnn_lstms
from cost_models.config import Precision
from cost_models.hardware.lookup import cluster
from tests.builders.observations import config, observation
from tests.models.recurrent import BATCH, INPUTS, LAYERS, LENGTH, UNITS, recurrent_model

ONE_GPU = cluster("gpu-a100-80gb")


def found(model):
    x, y = np.zeros((BATCH, LENGTH, INPUTS), "float32"), np.zeros((BATCH, 1), "float32")
    arguments = FitArguments({"x": x, "y": y})
    return cudnn_lstms(model, arguments, data_facts.describe(arguments))


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (LAYERS.LSTM(UNITS, name="memory"), {"sequential/memory": True}),
        (LAYERS.LSTM(UNITS, name="wide", dtype="mixed_bfloat16"), {"sequential/wide": False}),
        (LAYERS.Bidirectional(LAYERS.LSTM(UNITS), name="both"), {"sequential/both": True}),
        (LAYERS.LSTM(UNITS, recurrent_dropout=0.1), {}),
        (LAYERS.LSTM(UNITS, use_cudnn=False), {}),
        (LAYERS.GRU(UNITS), {}),
    ],
)
def test_layers_are_named_with_whether_they_follow_the_policy(layer, expected):
    keras.utils.clear_session(free_memory=False)
    assert found(recurrent_model(layer)) == expected


def test_behind_a_mask_no_layer_is_named():
    assert found(recurrent_model(LAYERS.LSTM(UNITS), masks=True)) == {}


def space(own, lstms, **more):
    versions = Versions("3.15.1", "0.10.2", "gpu")
    return legal_configs(observation(own, cudnn_lstms=lstms, recurrent=True), ONE_GPU, versions, **more)


def test_16_bits_are_left_out_on_gpus_where_cudnn_would_compute_an_lstm():
    own = config(8)
    precisions = {one.precision for one in space(own, {}, only=["precision"]).configs}
    assert {Precision.FLOAT32, Precision.MIXED_BFLOAT16} <= precisions
    kept = {one.precision for one in space(own, {"memory": True}, only=["precision"]).configs}
    assert kept == {Precision.FLOAT32}
    assert {one.precision for one in space(own, {"memory": False}, only=["precision"]).configs} == precisions
