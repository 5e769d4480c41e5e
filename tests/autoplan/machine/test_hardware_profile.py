"""Profiles of this machine: which values are valid, where they are cached, and when they are measured again."""

import pytest

from autoplan.machine import hardware_profile, this_machine
from cost_models.errors import SchemaError

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


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


INVALID = [
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


@pytest.mark.parametrize(("changes", "message"), INVALID)
def test_an_invalid_value_is_named(changes, message):
    with pytest.raises(SchemaError, match=rf"^the profile.{message}"):
        hardware_profile.validated({**PROFILE, **changes})


@pytest.mark.parametrize("changes", [changes for changes, _ in INVALID])
def test_an_invalid_cached_profile_is_not_loaded(changes):
    hardware_profile.save({**PROFILE, **changes})
    assert hardware_profile.load() is None


@pytest.mark.parametrize(
    ("then", "now", "expected"), [(8.0, 0.5, True), (8.0, 6.0, False), (1.0, 0.1, False), (None, 0.1, False)]
)
def test_a_profile_measured_under_load_is_recognised_once_the_machine_is_idle(monkeypatch, then, now, expected):
    monkeypatch.setattr(this_machine, "cpu_count", lambda: 2)
    monkeypatch.setattr(this_machine, "load_average", lambda: now)
    assert hardware_profile.measured_under_load({**PROFILE, "load_average": then}) is expected
    assert hardware_profile.measured_under_load(PROFILE) is False, "without a load average"


def test_each_backend_and_device_count_has_its_own_cached_profile(cache):
    assert hardware_profile.load() is None
    path = hardware_profile.save(PROFILE)
    assert path.is_relative_to(cache / "autoplan" / "profiles")
    assert hardware_profile.load() == PROFILE
    assert hardware_profile.load("tensorflow") is None
    assert hardware_profile.load("jax", 8) is None
    assert [file.name for file in path.parent.iterdir()] == [path.name], "no partial file is left"


def test_an_environment_setting_that_changes_speed_changes_the_cache_path(monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    before = hardware_profile.cache_path()
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    assert hardware_profile.cache_path() != before


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": 0}', "\x00"])
def test_a_damaged_cache_file_is_not_loaded(text):
    path = hardware_profile.save(PROFILE)
    path.write_text(text)
    assert hardware_profile.load() is None


def test_a_cache_that_cannot_be_written_raises_nothing(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    assert hardware_profile.save(PROFILE) is None
    assert hardware_profile.load() is None


def test_without_a_cache_directory_the_cache_is_in_the_home_directory(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert hardware_profile.cache_path().is_relative_to(tmp_path / ".cache" / "autoplan")
