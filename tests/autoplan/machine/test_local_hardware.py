"""Names, files and this machine: what each becomes, and what a wrong one is told."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import yaml

from autoplan.errors import HardwareError
from autoplan.machine import local_hardware
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


def test_names_of_the_catalogue_pass_through():
    assert local_hardware.resolve("tpu-v4-8") == cluster("tpu-v4-8")
    assert local_hardware.resolve("tpu-v4-8", devices=4) == cluster("tpu-v4-8")
    assert local_hardware.resolve("cpu") == cluster("cpu")


def test_only_local_is_here():
    assert local_hardware.is_here("local")
    assert local_hardware.is_here(" Local ")
    assert not any(local_hardware.is_here(name) for name in ("cpu", "tpu-v4-8", "local.yaml", ""))


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
            "tpu-v4-8 has 4 devices, and --devices asks for 2; leave --devices out, or name hardware of the",
        ),
        ("cpu", 0, "--devices 0: expected a whole number of at least 1"),
        ("gpu-h300", None, "unknown hardware 'gpu-h300'. Did you mean gpu-h200-141gb"),
        ("local", None, "`local` needs this machine's profile, and there is none; run `autoplan hardware probe`"),
        ("nowhere.yaml", None, "there is no hardware file nowhere.yaml"),
    ],
)
def test_a_wrong_name_or_number_is_told(name, devices, message):
    with pytest.raises(HardwareError) as caught:
        local_hardware.resolve(name, devices=devices)
    assert message in str(caught.value)


def test_a_file_describes_what_the_catalogue_lacks(tmp_path):
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
        ("name: [", "is no YAML: while parsing"),
        ("- 1", "a hardware description must be a mapping"),
        ("", "a hardware description must be a mapping"),
        ("base: gpu-t4\nhost: 2", "hardware has an unknown key 'host'; did you mean hosts?"),
        (f"base: gpu-t4\ndevices: {'1' * 5000}", "is no YAML: Exceeds the limit"),
        ("base: gpu-t4\nname: 9999-99-99", "is no YAML: month must be in 1..12"),
        ("[" * 5000, "is no YAML: maximum recursion depth exceeded"),
        ("base: gpu-t4\nchip: {memory_bytes: much}", "chip.memory_bytes is 'much'; expected bytes"),
    ],
)
def test_a_wrong_file_is_told_with_its_path(tmp_path, text, message):
    path = tmp_path / "wrong.yaml"
    path.write_text(text)
    with pytest.raises(HardwareError) as caught:
        local_hardware.resolve(str(path))
    assert str(path) in str(caught.value)
    assert message in str(caught.value)


def test_what_is_no_file_or_too_large_a_one_is_no_hardware_file(tmp_path):
    with pytest.raises(HardwareError, match="is not a regular file; expected a hardware file in YAML"):
        local_hardware.resolve(f"{tmp_path}/")
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(HardwareError, match="is not a regular file"):
        local_hardware.resolve(str(tmp_path / "pipe.yaml"))
    (tmp_path / "large.yaml").write_bytes(b"#" * (2**20 + 1))
    with pytest.raises(HardwareError, match="holds more than 1 MiB; expected a hardware file"):
        local_hardware.resolve(str(tmp_path / "large.yaml"))
    with pytest.raises(HardwareError, match=r"cannot be read: .*too long"):
        local_hardware.resolve("h" * 5000 + ".yaml")


def test_this_processor_has_the_rates_it_achieved_and_the_memory_it_may_use():
    here = local_hardware.resolve("local", profile=PROFILE)
    assert (here.name, here.devices, here.local, here.simulated) == ("local", 1, True, False)
    assert here.chip.peak_flops_per_second == {"float32": 1e11, "bfloat16": 9e10}, "the best size; no rate, no key"
    assert here.chip.memory_bytes_per_second == 2e10
    assert here.chip.usable_memory_bytes == local_hardware.memory_bytes() <= psutil.virtual_memory().total
    how = "achieved here, measured 2026-11-29 with jax 0.10.2; no peak of a data sheet"
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


def test_an_all_reduce_that_noise_made_senseless_is_not_used():
    seen = [
        {"devices": 2, "payload_bytes": 4096, "seconds": 3e-3},
        {"devices": 2, "payload_bytes": 2**24, "seconds": 2e-3},
    ]
    here = local_hardware.resolve("local", devices=2, profile={**PROFILE, "devices": 2, "all_reduce": seen})
    assert "share of the memory bandwidth" in here.inner_link.source


def test_gpus_here_have_the_runtimes_limit_and_the_catalogues_link():
    here = local_hardware.resolve("local", profile=H100)
    assert (here.devices, here.simulated, here.local) == (4, False, True)
    assert here.chip.kind == "gpu"
    assert here.chip.usable_memory_bytes == 63_000_000_000
    assert here.chip.memory_bytes == cluster("gpu-h100-80gb").chip.memory_bytes
    assert here.inner_link == cluster("gpu-h100-80gb-x4").inner_link
    assert local_hardware.resolve("local", devices=2, profile=H100).devices == 2


def test_measured_gpus_use_what_was_measured():
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
        ({}, 8, "--devices asks for 8, and this machine has 4 of NVIDIA H100 80GB HBM3"),
        ({"device_kind": "Unheard 9000", "usable_memory_bytes": None}, None, "Unheard 9000 does not tell its memory"),
    ],
)
def test_what_this_machine_cannot_do_is_told(changes, devices, message):
    with pytest.raises(HardwareError, match=message):
        local_hardware.resolve("local", devices=devices, profile={**H100, **changes})


@pytest.mark.parametrize("missing", ["platform", "devices", "matmul_flops_per_second", "date", "versions"])
def test_a_damaged_profile_is_told(missing):
    damaged = {key: value for key, value in PROFILE.items() if key != missing}
    with pytest.raises(
        HardwareError, match=f"this machine's profile cannot be read .*{missing}.*autoplan hardware probe"
    ):
        local_hardware.resolve("local", profile=damaged)


WRONG_FIGURES = [
    ({"memory_bytes_per_second": 0}, "memory_bytes_per_second is 0; expected a number above zero"),
    ({"memory_bytes_per_second": float("nan")}, "memory_bytes_per_second is nan; expected a number"),
    ({"kernel_launch_seconds": "quick"}, "kernel_launch_seconds is 'quick'; expected a number"),
    ({"dispatch_seconds": -1}, "dispatch_seconds is -1; expected a number"),
    ({"devices": 0}, "devices is 0; expected a number above zero"),
    ({"matmul_flops_per_second": [1e11]}, r"matmul_flops_per_second is \[100000000000.0\]; expected a mapping"),
    ({"matmul_flops_per_second": {"float32": {"256": "x"}}}, "matmul_flops_per_second.float32.256 is 'x'; expected"),
    ({"matmul_flops_per_second": {"float32": {}}}, "matmul_flops_per_second is empty"),
    ({"all_reduce": [{"devices": 2}]}, r"all_reduce\[0\] lacks payload_bytes, seconds"),
    ({"versions": {}}, "versions.jax is None; expected text"),
    ({"processors": 0}, "processors is 0; expected a number above zero"),
    ({"cache_bytes": -4}, "cache_bytes is -4; expected a whole number"),
    ({"host_micro_step_seconds": "1 ms"}, "host_micro_step_seconds is '1 ms'; expected a number"),
    ({"host_variable_seconds": -1e-6}, "host_variable_seconds is -1e-06; expected a number"),
    ({"fresh_page_bytes_per_second": 0.0}, "fresh_page_bytes_per_second is 0.0; expected a number above zero"),
]


@pytest.mark.parametrize(("changes", "fault"), WRONG_FIGURES)
def test_a_profile_whose_figures_nobody_measured_is_told(changes, fault):
    message = rf"^this machine's profile cannot be read \(the profile.{fault}.*; run `autoplan hardware probe`$"
    with pytest.raises(HardwareError, match=message):
        local_hardware.resolve("local", profile={**PROFILE, **changes})


@pytest.mark.parametrize("changes", [changes for changes, _ in WRONG_FIGURES])
def test_a_kept_profile_that_cannot_be_used_is_measured_again(changes):
    local_hardware.save_profile({**PROFILE, **changes})
    assert local_hardware.load_profile() is None


@pytest.mark.parametrize(
    ("then", "now", "expected"), [(8.0, 0.5, True), (8.0, 6.0, False), (1.0, 0.1, False), (None, 0.1, False)]
)
def test_a_profile_is_of_no_use_if_the_machine_was_busy_and_is_not_now(monkeypatch, then, now, expected):
    monkeypatch.setattr(local_hardware, "processors", lambda: 2)
    monkeypatch.setattr(local_hardware.os, "getloadavg", lambda: (now, 1.0, 1.0))
    assert local_hardware.measured_when_busy({**PROFILE, "load_average": then}) is expected
    assert local_hardware.measured_when_busy(PROFILE) is False, "it does not tell"


def test_profiles_are_kept_apart_by_backend_and_devices(cache):
    assert local_hardware.load_profile() is None
    path = local_hardware.save_profile(PROFILE)
    assert path.is_relative_to(cache / "autoplan" / "profiles")
    assert local_hardware.load_profile() == PROFILE
    assert local_hardware.load_profile("tensorflow") is None
    assert local_hardware.load_profile("jax", 8) is None
    assert [file.name for file in path.parent.iterdir()] == [path.name], "nothing half-written is left"


def test_a_setting_that_changes_speed_asks_for_another_profile(monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    before = local_hardware.profile_cache_path()
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    assert local_hardware.profile_cache_path() != before


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": 0}', "\x00"])
def test_a_damaged_cache_is_measured_again(text):
    path = local_hardware.save_profile(PROFILE)
    path.write_text(text)
    assert local_hardware.load_profile() is None


def test_a_cache_that_cannot_be_written_stops_nothing(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    assert local_hardware.save_profile(PROFILE) is None
    assert local_hardware.load_profile() is None


def test_without_a_cache_home_it_lies_under_the_users(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert local_hardware.profile_cache_path().is_relative_to(tmp_path / ".cache" / "autoplan")


def group(root: Path, lines: str, limits: dict[str, str]) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(lines)
    for name, text in limits.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("lines", "limits", "expected"),
    [
        ("0::/\n", {"sys/fs/cgroup/memory.max": "1048576\n"}, 2**20),
        ("0::/a/b\n", {"sys/fs/cgroup/a/memory.max": "1048576\n", "sys/fs/cgroup/a/b/memory.max": "max\n"}, 2**20),
        ("0::/a/b\n", {"sys/fs/cgroup/a/memory.max": "4194304\n", "sys/fs/cgroup/a/b/memory.max": "1048576\n"}, 2**20),
        (
            "9:cpu,cpuacct:/x\n4:memory:/job\n",
            {
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
                "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "1048576\n",
            },
            2**20,
        ),
        ("0::/\n", {"sys/fs/cgroup/memory.max": "max\n"}, None),
        ("4:memory:/\n", {"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, None),
        ("0::/gone\n", {}, None),
    ],
)
def test_memory_is_the_least_of_the_machine_and_its_control_groups(tmp_path, lines, limits, expected):
    root = group(tmp_path / "root", lines, limits)
    assert local_hardware.memory_bytes(root) == (psutil.virtual_memory().total if expected is None else expected)


def test_a_machine_without_control_groups_has_its_physical_memory(tmp_path):
    assert local_hardware.memory_bytes(tmp_path) == psutil.virtual_memory().total


def test_asking_this_machine_imports_no_framework():
    code = (
        "import sys, json, autoplan.machine.local_hardware as h; h.profile_cache_path(); "
        "print(json.dumps([*sys.modules]))"
    )
    loaded = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    assert not {"jax", "keras", "tensorflow", "torch", "optuna"} & set(loaded)
