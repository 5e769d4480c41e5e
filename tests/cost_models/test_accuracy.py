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

STUDIES = Path(__file__).parents[2] / "studies"


def rows(known: Accuracy) -> list[dict[str, str]]:
    with (STUDIES.parent / known.source / "results.csv").open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def assert_holds(known: Accuracy, ratios: list[float]) -> None:
    """As many rows as it says, as large a share of them within, and as many of the others on either side."""
    ratio, tail = np.asarray(ratios), (1 - SHARE) / 2
    assert len(ratio) == known.rows
    outside = np.mean(ratio < known.low), np.mean(ratio > known.high)
    told = f"{SHARE:.0%} of the rows lie in {np.quantile(ratio, [tail, 1 - tail]).round(2)}"
    assert outside == (pytest.approx(tail, abs=0.01), pytest.approx(tail, abs=0.01)), told


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
