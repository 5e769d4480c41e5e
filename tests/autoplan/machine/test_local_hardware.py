"""Hardware names, hardware files and this machine as clusters, and errors about them."""

import json
import os
import subprocess
import sys

import psutil
import pytest
import yaml

from autoplan.errors import HardwareError
from autoplan.machine import local_hardware, this_machine
from cost_models.hardware.lookup import cluster
from cost_models.parallel.collectives import all_reduce
from tests.builders.workloads import GIB

PROFILE = {
    "schema": 3,
    "backend": "jax",
    "platform": "cpu",
    "device_kind": "cpu",
    "devices": 1,
    "matmul_flops_per_second": {"float32": {"256": 8e10, "1024": 1e11}, "bfloat16": {"256": 9e10}, "float16": {}},
    "memory_bytes_per_second": 2e10,
    "kernel_launch_seconds": 5e-7,
    "dispatch_seconds": 5e-6,
    "usable_memory_bytes": None,
    "all_reduce": [],
    "versions": {"python": "3.11.7", "jax": "0.10.2", "jaxlib": "0.10.2"},
    "date": "2026-11-29",
    "probe_seconds": 4.0,
}
H100 = {**PROFILE, "platform": "gpu", "device_kind": "NVIDIA H100 80GB HBM3", "devices": 4}
H100 |= {"usable_memory_bytes": 63_000_000_000}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_names_of_the_catalogue_are_resolved():
    assert local_hardware.resolve("tpu-v4-8") == cluster("tpu-v4-8")
    assert local_hardware.resolve("tpu-v4-8", devices=4) == cluster("tpu-v4-8")
    assert local_hardware.resolve("cpu") == cluster("cpu")


def test_only_local_means_this_machine():
    assert local_hardware.is_local("local")
    assert local_hardware.is_local(" Local ")
    assert not any(local_hardware.is_local(name) for name in ("cpu", "tpu-v4-8", "local.yaml", ""))


def test_a_processor_of_the_catalogue_can_be_simulated_as_several_devices():
    there = local_hardware.resolve("cpu", devices=4)
    assert (there.devices, there.simulated, there.local) == (4, True, False)
    assert there.chip.usable_memory_bytes == 4 * GIB


@pytest.mark.parametrize(
    ("name", "devices", "message"),
    [
        (
            "tpu-v4-8",
            2,
            "tpu-v4-8 has 4 devices, but --devices is 2; leave --devices out, or name hardware of the right size",
        ),
        ("cpu", 0, "--devices 0: expected a whole number of at least 1"),
        ("gpu-h300", None, "unknown hardware 'gpu-h300'. Did you mean gpu-h200-141gb"),
        (
            "local",
            None,
            "`local` needs a profile of this machine, but none was measured; run `autoplan hardware probe`",
        ),
        ("nowhere.yaml", None, "there is no hardware file nowhere.yaml"),
    ],
)
def test_a_wrong_name_or_number_is_an_error(name, devices, message):
    with pytest.raises(HardwareError) as caught:
        local_hardware.resolve(name, devices=devices)
    assert message in str(caught.value)


def test_a_file_describes_hardware_outside_the_catalogue(tmp_path):
    path = tmp_path / "lab.yaml"
    path.write_text(
        "base: gpu-t4-x4-n2\nname: lab\nouter_link: {kind: network, bytes_per_second: 1.25e9, latency_seconds: 5e-5}\n"
    )
    there = local_hardware.resolve(str(path))
    assert (there.name, there.devices, there.outer_link.bytes_per_second) == ("lab", 8, 1.25e9)
    assert all_reduce(GIB, there, 8).seconds > all_reduce(GIB, there, 4).seconds


def test_a_cluster_written_as_yaml_is_read_back(tmp_path):
    path = tmp_path / "again.yml"
    path.write_text(yaml.safe_dump(cluster("tpu-v5e-16").to_dict()))
    assert local_hardware.resolve(str(path)) == cluster("tpu-v5e-16")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: [", "is not YAML: while parsing"),
        ("- 1", "a hardware description must be a mapping"),
        ("", "a hardware description must be a mapping"),
        ("base: gpu-t4\nhost: 2", "hardware has an unknown key 'host'; did you mean hosts?"),
        (f"base: gpu-t4\ndevices: {'1' * 5000}", "is not YAML: Exceeds the limit"),
        ("base: gpu-t4\nname: 9999-99-99", "is not YAML: month must be in 1..12"),
        ("[" * 5000, "is not YAML: maximum recursion depth exceeded"),
        ("base: gpu-t4\nchip: {memory_bytes: much}", "chip.memory_bytes is 'much'; expected bytes"),
    ],
)
def test_the_error_for_a_wrong_file_contains_its_path(tmp_path, text, message):
    path = tmp_path / "wrong.yaml"
    path.write_text(text)
    with pytest.raises(HardwareError) as caught:
        local_hardware.resolve(str(path))
    assert str(path) in str(caught.value)
    assert message in str(caught.value)


def test_a_folder_pipe_or_large_file_is_not_a_hardware_file(tmp_path):
    with pytest.raises(HardwareError, match="is not a regular file; expected a hardware file in YAML"):
        local_hardware.resolve(f"{tmp_path}/")
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(HardwareError, match="is not a regular file"):
        local_hardware.resolve(str(tmp_path / "pipe.yaml"))
    (tmp_path / "large.yaml").write_bytes(b"#" * (2**20 + 1))
    with pytest.raises(HardwareError, match="is larger than 1 MiB; expected a hardware file"):
        local_hardware.resolve(str(tmp_path / "large.yaml"))
    with pytest.raises(HardwareError, match=r"cannot be read: .*too long"):
        local_hardware.resolve("h" * 5000 + ".yaml")


def test_this_processor_has_the_rates_it_achieved_and_the_memory_it_may_use():
    here = local_hardware.resolve("local", profile=PROFILE)
    assert (here.name, here.devices, here.local, here.simulated) == ("local", 1, True, False)
    assert here.chip.peak_flops_per_second == {"float32": 1e11, "bfloat16": 9e10}, "the best size; no rate, no key"
    assert here.chip.memory_bytes_per_second == 2e10
    assert here.chip.usable_memory_bytes == this_machine.memory_bytes() <= psutil.virtual_memory().total
    how = "achieved here, measured 2026-11-29 with jax 0.10.2; not a peak of a data sheet"
    assert here.chip.sources["peak_flops_per_second"] == f"best of square products, {how}"


def test_simulated_devices_share_this_processor():
    alone = local_hardware.resolve("local", profile=PROFILE)
    here = local_hardware.resolve("local", devices=8, profile=PROFILE)
    assert (here.devices, here.simulated, here.local) == (8, True, True)
    assert here.chip.usable_memory_bytes == alone.chip.usable_memory_bytes // 8
    assert here.chip.peak_flops_per_second["float32"] == 1e11 / 8


def test_a_measured_all_reduce_gives_the_link():
    seen = [
        {"devices": 8, "payload_bytes": 4096, "seconds": 3e-4},
        {"devices": 8, "payload_bytes": 2**24, "seconds": 1.63e-2},
    ]
    here = local_hardware.resolve("local", devices=8, profile={**PROFILE, "devices": 8, "all_reduce": seen})
    assert all_reduce(4096, here, 8).seconds == pytest.approx(3e-4, rel=0.02)
    assert all_reduce(2**24, here, 8).seconds == pytest.approx(1.63e-2, rel=0.001)
    assert "measured 2026-11-29" in here.inner_link.source
    other = local_hardware.resolve("local", devices=4, profile={**PROFILE, "devices": 8, "all_reduce": seen})
    assert "share of the memory bandwidth" in other.inner_link.source, "nothing was measured over four"


def test_a_large_all_reduce_that_was_faster_than_a_small_one_is_not_used():
    seen = [
        {"devices": 2, "payload_bytes": 4096, "seconds": 3e-3},
        {"devices": 2, "payload_bytes": 2**24, "seconds": 2e-3},
    ]
    here = local_hardware.resolve("local", devices=2, profile={**PROFILE, "devices": 2, "all_reduce": seen})
    assert "share of the memory bandwidth" in here.inner_link.source


def test_local_gpus_have_the_memory_limit_of_the_runtime_and_the_link_of_the_catalogue():
    here = local_hardware.resolve("local", profile=H100)
    assert (here.devices, here.simulated, here.local) == (4, False, True)
    assert here.chip.kind == "gpu"
    assert here.chip.usable_memory_bytes == 63_000_000_000
    assert here.chip.memory_bytes == cluster("gpu-h100-80gb").chip.memory_bytes
    assert here.inner_link == cluster("gpu-h100-80gb-x4").inner_link
    assert local_hardware.resolve("local", devices=2, profile=H100).devices == 2


def test_local_gpus_use_the_measured_link():
    seen = [
        {"devices": 4, "payload_bytes": 4096, "seconds": 2e-5},
        {"devices": 4, "payload_bytes": 2**24, "seconds": 2e-4},
    ]
    here = local_hardware.resolve("local", profile={**H100, "all_reduce": seen})
    assert here.inner_link.kind == "switch"
    assert all_reduce(2**24, here, 4).seconds == pytest.approx(2e-4)


@pytest.mark.parametrize(
    ("changes", "devices", "message"),
    [
        ({}, 8, "--devices is 8, but this machine has 4 of NVIDIA H100 80GB HBM3"),
        ({"device_kind": "Unheard 9000", "usable_memory_bytes": None}, None, "Unheard 9000 does not report its memory"),
    ],
)
def test_more_devices_than_this_machine_has_are_an_error(changes, devices, message):
    with pytest.raises(HardwareError, match=message):
        local_hardware.resolve("local", devices=devices, profile={**H100, **changes})


@pytest.mark.parametrize("missing", ["platform", "devices", "matmul_flops_per_second", "date", "versions"])
def test_a_profile_without_a_required_value_is_an_error(missing):
    damaged = {key: value for key, value in PROFILE.items() if key != missing}
    with pytest.raises(
        HardwareError, match=f"the profile of this machine is invalid .*{missing}.*autoplan hardware probe"
    ):
        local_hardware.resolve("local", profile=damaged)


def test_reading_facts_about_this_machine_imports_no_framework():
    code = (
        "import sys, json, autoplan.machine.local_hardware, autoplan.machine.hardware_profile as h; h.cache_path(); "
        "print(json.dumps([*sys.modules]))"
    )
    loaded = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    assert not {"jax", "keras", "tensorflow", "torch", "optuna"} & set(loaded)
