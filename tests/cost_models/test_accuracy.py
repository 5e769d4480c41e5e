"""The bands against the rows of the studies, and some of these rows predicted again."""

from __future__ import annotations

import csv
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from cost_models.accuracy import PROCESSOR, PUBLISHED, SHARE, Accuracy, accuracy
from cost_models.hardware.cluster import share
from cost_models.hardware.lookup import cluster
from cost_models.time.step import step_time
from studies.time_vs_published import cases
from studies.time_vs_published.predict import predict
from studies.time_vs_this_cpu.estimates import configs, label, local_cluster, stored_step

STUDIES = Path(__file__).parents[2] / "studies"
STEPS = Path(__file__).parent
"""Traced steps of a few rows of the studies."""


def rows(known: Accuracy) -> list[dict[str, str]]:
    with (STUDIES.parent / known.source / "results.csv").open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def assert_holds(known: Accuracy, ratios: list[float]) -> None:
    """The band has as many rows as it says, and its ends are the quantiles of their ratios."""
    ratio, tail = np.asarray(ratios), (1 - SHARE) / 2
    assert len(ratio) == known.rows
    assert (known.low, known.high) == tuple(np.quantile(ratio, [tail, 1 - tail]).round(2))


def test_the_band_of_gpus_is_that_of_the_published_rows():
    found = [row for row in rows(PUBLISHED) if row["predicted_seconds"] and not row["chip"].startswith("tpu")]
    ratios = [float(row["measured_seconds"]) / float(row["predicted_seconds"]) for row in found]
    assert_holds(PUBLISHED, ratios)


def test_the_band_of_processors_is_that_of_the_measured_configurations():
    """A configuration's time is the median over the rounds in which it was measured."""
    measured: dict[tuple[str, str], list[float]] = defaultdict(list)
    predicted: dict[tuple[str, str], float] = {}
    for row in rows(PROCESSOR):
        if not row["error"] and row["predicted_micro_step_seconds"]:
            key = row["model"], row["config"]
            measured[key].append(float(row["measured"]))
            predicted[key] = float(row["predicted_micro_step_seconds"])
    ratios = [median(times) / predicted[key] for key, times in measured.items()]
    assert_holds(PROCESSOR, ratios)


REPREDICTED = [
    "timm-vgg19-nchw-224",  # convolutions in 16 bits with channels first
    "timm-mobilenetv3_small_100-nhwc-224",  # depthwise convolutions
    "nv-dle-013",  # TF32 convolutions under XLA
    "nv-dle-254",  # mixed precision under XLA on an A100
    "lambda-020",  # float32 GEMMs on a GPU before Ampere
    "keras-bench-028",  # Keras on JAX
    "torchtitan-001",  # fused attention, sharded state over eight devices
    "llm-foundry-137",  # attention in Triton
]


@pytest.mark.parametrize("name", REPREDICTED)
def test_published_rows_are_predicted_as_the_study_stored_them(name: str) -> None:
    """No change of a prediction goes unseen: after one, the study and its band are to be made anew."""
    (case,) = (one for one in cases.read()[0] if one.row == name)
    (row,) = (one for one in rows(PUBLISHED) if one["row"] == name)
    assert predict(case, STEPS / "published_steps").seconds == pytest.approx(float(row["predicted_seconds"]), rel=1e-5)


REPREDICTED_HERE = [
    ("mlp_wide", "float32, batch 32"),
    ("convnet", "float32, batch 128"),
    ("convnet", "float32, batch 128, freed memory kept"),
    ("gru", "float32, batch 64"),
    ("volumes", "float32, batch 16"),
    ("dense_autoencoder", "float32, batch 64x4"),
]


@pytest.mark.parametrize(("model", "config"), REPREDICTED_HERE)
def test_measured_configurations_are_predicted_as_the_study_stored_them(model: str, config: str) -> None:
    (own,) = (one for one in configs(model) if label(one) == config)
    workload = stored_step(model, own, STEPS / "cpu_steps")
    row = next(one for one in rows(PROCESSOR) if (one["model"], one["config"]) == (model, config))
    found = step_time(workload, own, local_cluster()).micro_step_seconds
    assert found == pytest.approx(float(row["predicted_micro_step_seconds"]), rel=1e-5)


def test_hardware_without_measurements_has_no_band():
    h100, processor = cluster("gpu-h100-80gb-x8"), cluster("cpu")
    assert accuracy(h100) is PUBLISHED
    assert accuracy(replace(processor, local=True)) is PROCESSOR
    without = (
        cluster("tpu-v5e-4"),
        cluster("gpu-mi300x"),
        processor,
        replace(h100, local=True),
        share(replace(processor, local=True), 4),
    )
    assert [accuracy(one) for one in without] == [None] * len(without)
