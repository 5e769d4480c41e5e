"""Returns the error band of estimated times for a cluster, as a study measured it on hardware of that kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cost_models.errors import ConfigError
from cost_models.hardware.cluster import Cluster
from cost_models.validation import Reader, number, raised_as, read_fields, text, whole
from cost_models.xla.profiles.choice import compiler_profile

SHARE = 0.9
"""Share of a study's rows in its band; half of the other rows are below it and half above."""


@dataclass(frozen=True)
class Accuracy:
    """The band of measured over estimated seconds that holds `SHARE` of a study's rows.

    low, high  ends of the band
    rows       number of rows
    of         the kind of rows, in words
    source     the study that has them
    """

    low: float
    high: float
    rows: int
    of: str
    source: str

    def to_dict(self) -> dict[str, Any]:
        """Return the keys of `--format json` under `accuracy`."""
        return {
            "low_ratio": self.low,
            "high_ratio": self.high,
            "share": SHARE,
            "rows": self.rows,
            "of": self.of,
            "source": self.source,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Accuracy:
        """Read what `to_dict` writes; other keys are ignored. ConfigError for a missing or a wrong figure."""
        with raised_as(ConfigError, "the accuracy of an estimate cannot be read: "):
            return cls(*read_fields(data, "accuracy", _READERS).values())


_READERS: Mapping[str, Reader] = {
    "low_ratio": number,
    "high_ratio": number,
    "rows": whole,
    "of": text,
    "source": text,
}

PUBLISHED = Accuracy(0.94, 1.59, 797, "published measurements on NVIDIA GPUs", "studies/time_vs_published")
PROCESSOR = Accuracy(0.84, 1.28, 223, "configurations on one CPU", "studies/time_vs_this_cpu")
"""Quantiles of measured over predicted micro-steps in the `results.csv` of each study. A test recomputes them."""


def accuracy(cluster: Cluster) -> Accuracy | None:
    """Return the band of estimates on this hardware: of NVIDIA GPUs from data sheets, or of a CPU that was probed.

    None where nobody has measured enough: TPUs (four published rows), AMD GPUs, simulated devices, probed accelerators
    and CPUs that were not probed.
    """
    chip = cluster.chip
    if cluster.local:
        is_cpu = not compiler_profile(chip.kind).host_apart
        return PROCESSOR if is_cpu and not cluster.simulated else None
    return PUBLISHED if chip.compute_capability is not None else None
