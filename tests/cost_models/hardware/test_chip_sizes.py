"""Sizes in which chips are offered."""

import pytest

from cost_models.errors import HardwareError
from cost_models.hardware.catalogue import rows
from cost_models.hardware.chip_sizes import chips, chips_of_group, larger, sizes
from cost_models.hardware.lookup import cluster
from cost_models.hardware.pricing import offers


def test_families_are_those_of_the_catalogue():
    keys = {name: {row.key for row in chips_of_group(name)} for name in ("tpu", "gpu", "nvidia", "amd", "cpu", "all")}
    assert keys["gpu"] == keys["nvidia"] | keys["amd"]
    assert not keys["nvidia"] & keys["amd"]
    assert keys["all"] == keys["tpu"] | keys["gpu"] | keys["cpu"] == set(rows())
    assert {row.kind for row in chips_of_group("gpu")} == {"gpu"}
    assert chips_of_group(" TPU ") == chips_of_group("tpu")


def test_an_unknown_family_is_an_error_that_lists_the_known_ones():
    with pytest.raises(HardwareError, match="unknown family 'tpus'; expected tpu, gpu, nvidia, amd, cpu or all"):
        chips_of_group("tpus")


def test_sizes_are_slices_or_gpus_and_grow():
    table = rows()
    assert sizes(table["tpu-v5e"]) == ("tpu-v5e-1", "tpu-v5e-4", "tpu-v5e-8", "tpu-v5e-16", "tpu-v5e-32", "tpu-v5e-64")
    assert sizes(table["tpu-v2"]) == ("tpu-v2-8", "tpu-v2-32", "tpu-v2-128")  # 8 of its cores are 4 chips
    hosts = ("gpu-h100-80gb-x8-n2", "gpu-h100-80gb-x8-n4", "gpu-h100-80gb-x8-n8")
    assert sizes(table["gpu-h100-80gb"]) == (
        *("gpu-h100-80gb", "gpu-h100-80gb-x2", "gpu-h100-80gb-x4", "gpu-h100-80gb-x8"),
        *hosts,
    )
    assert larger("gpu-h100-80gb-x8") == hosts
    assert sizes(table["gpu-t4"])[-1] == "gpu-t4-x8"  # nobody published its network
    assert sizes(table["cpu"]) == ("cpu",)


@pytest.mark.parametrize("key", list(rows()))
def test_every_size_is_a_name_of_the_catalogue_and_larger_than_the_one_before(key):
    names = sizes(rows()[key])
    devices = [cluster(name).devices for name in names]
    assert devices == sorted(set(devices))
    assert devices[0] == min(devices)
    assert all(chips(name) <= 64 for name in names)
    assert larger(names[0]) == names[1:]


def test_other_names_have_no_sizes_and_no_price():
    assert (larger("local"), chips("machine.yaml"), offers("tpu-v99-8")) == ((), None, ())


def test_chips_are_counted_as_they_are_sold():
    assert (chips("tpu-v3-8"), cluster("tpu-v3-8").devices) == (4, 8)
    assert chips("tpu-v4-8") == cluster("tpu-v4-8").devices == 4
    assert chips("gpu-h100-80gb-x8-n2") == 16
