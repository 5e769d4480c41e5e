from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from autoplan.errors import HardwareError
from autoplan.machine import hardware_profile
from autoplan.reports import hardware
from tests.builders.printed import printed as text

PROFILE = {
    "schema": 3,
    "backend": "jax",
    "platform": "cpu",
    "device_kind": "cpu",
    "devices": 1,
    "matmul_flops_per_second": {"float32": {"256": 5.0e10, "1024": 1.25e11}, "bfloat16": {}, "float16": {}},
    "memory_bytes_per_second": 1.5e10,
    "kernel_launch_seconds": 2e-6,
    "dispatch_seconds": 2e-5,
    "usable_memory_bytes": None,
    "all_reduce": [],
    "versions": {"python": "3.11.7", "jax": "0.10.2", "jaxlib": "0.10.2"},
    "date": "2026-11-29",
    "probe_seconds": 4.5,
}


def rows(shown) -> list[list[str]]:
    return [re.split(r"\s{2,}", line.strip()) for line in text(shown).splitlines()]


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("KERAS_BACKEND", "jax")


def test_the_table_has_every_chip_with_its_forms():
    listed = {row[0]: row for row in rows(hardware.known_table())}
    documented = {row["key"] for row in hardware.known_document()["hardware"]}
    assert {name.removesuffix("-N") for name in listed} >= documented
    assert listed["tpu-v4-N"][1:6] == ["Google TPU v4", "30.8 GiB", "1,200", "275 (bfloat16)", "275"]
    assert listed["gpu-a100-80gb"][4:6] == ["156 (TF32)", "312"]
    assert listed["gpu-mi300x"][4:6] == ["163.4", "1,307"]


def test_no_units_are_told_from_no_published_rate():
    """P100, V100 and T4 have none for bfloat16; of a generic processor nobody says."""
    listed = {row[0]: row for row in rows(hardware.known_table())}
    assert {name: listed[name][5] for name in ("gpu-p100-16gb", "gpu-v100-16gb", "gpu-t4", "cpu")} == {
        "gpu-p100-16gb": "none",
        "gpu-v100-16gb": "none",
        "gpu-t4": "none",
        "cpu": "not known",
    }
    document = {row["key"]: row for row in hardware.known_document()["hardware"]}
    assert (document["gpu-t4"]["without_units"], document["cpu"]["without_units"]) == (("bfloat16",), ())
    assert (document["gpu-h100-80gb"]["float32_as"], document["gpu-t4"]["float32_as"]) == ("TF32", None)


def test_this_machine_is_listed_measured_or_not(own_cache):
    listed = {row[0]: row for row in rows(hardware.known_table())}
    assert listed["local"][1].startswith("this machine: not measured")
    assert hardware.known_document()["local"] is None
    hardware_profile.save(PROFILE, "jax")
    listed = {row[0]: row for row in rows(hardware.known_table())}
    assert listed["local"][3:6] == ["15", "0.125", "not known"]
    assert hardware.known_document()["local"]["local"] is True


def test_the_document_is_plain():
    assert json.loads(json.dumps(hardware.known_document()))["schema"] == 1


def test_a_catalogue_name_has_figures_with_sources_and_sizes():
    found = hardware.described("tpu-v4-8")
    assert json.loads(json.dumps(found))["cluster"]["devices"] == 4
    told = text(hardware.description(found))
    assert told.startswith("tpu-v4-8: 4 devices (2x2x1 chips) of tpu-v4, 30.75 GiB usable each\n")
    assert "Google Cloud documentation" in told
    assert "tpu-v4-16" in told
    assert "USD per chip-hour" in told


def test_what_was_not_verified_says_so():
    told = " ".join(text(hardware.description(hardware.described("tpu-v2-8"))).split())
    assert "Google's pages have no figure. The figure is not verified." in told


def test_a_file_is_shown(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("base: gpu-a100-80gb\nname: mine\ndevices: 2\nchip: {memory_bytes_per_second: 1.5e+12}\n")
    found = hardware.described(str(path))
    assert text(hardware.description(found)).startswith("mine: 2 devices of gpu-a100-80gb, ")
    values = {row[0]: row[1] for row in rows(hardware.description(found)) if len(row) > 1}
    assert values["memory_bytes_per_second"] == "1.5e+12"


def test_this_machine_is_shown_as_it_was_measured(own_cache):
    with pytest.raises(HardwareError, match="run `autoplan hardware probe`"):
        hardware.described("local")
    hardware_profile.save(PROFILE, "jax")
    told = text(hardware.description(hardware.described("local")))
    assert told.startswith("local: 1 device of ")
    assert "achieved here, measured 2026-11-29 with jax 0.10.2" in told


def test_a_probe_shows_rates_and_where_they_are_kept(own_cache, tmp_path):
    hardware_profile.save(PROFILE, "jax")
    shown = hardware.probed(PROFILE, "jax")
    peak = next(row for row in rows(shown) if row[0] == "peak_flops_per_second.float32")
    assert peak[1] == "1.25e+11"
    assert peak[2].startswith("best of square products, achieved here")
    kept = Path(text(shown).splitlines()[-1].removeprefix("Stored in ").removesuffix("."))
    assert kept.is_relative_to(tmp_path)
    assert kept.exists()


def test_a_probe_that_could_not_be_kept_says_so(own_cache):
    assert text(hardware.probed(PROFILE, "jax")).splitlines()[-1] == (
        "It could not be stored, so it is measured again each time."
    )


def test_unknown_hardware():
    with pytest.raises(HardwareError, match="unknown hardware 'tpu-v99-8'"):
        hardware.described("tpu-v99-8")
