"""The catalogue's rows: every figure has a source and a date and is believable; every name leads to one chip."""

import re
from datetime import date
from importlib.resources import files
from math import prod

import pytest
import yaml

from cost_models.errors import HardwareError
from cost_models.hardware import catalogue

ROWS = list(catalogue.rows().values())
FAMILIES = {
    family: yaml.safe_load(
        files("cost_models.hardware").joinpath("devices", f"{family}.yaml").read_text(encoding="utf-8")
    )
    for family in catalogue.FAMILIES
}


def figures():
    return [
        pytest.param(row, key, figure, id=f"{row.key}:{key}")
        for row in ROWS
        for key, figure in row.all_figures().items()
    ]


@pytest.mark.parametrize(("row", "key", "figure"), figures())
def test_a_figure_has_a_source_with_a_date_and_a_value_above_zero(row, key, figure):
    assert figure.value > 0
    assert figure.sources
    assert all(re.search(r"\(read 20\d\d-\d\d-\d\d\)", source) for source in figure.sources)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_sources_are_dated_and_all_used(family):
    assert all(isinstance(source["read"], date) for source in family["sources"].values())
    assert set(family["sources"]) == set(sources_in(family))


def sources_in(node):
    """Every source that a tree of figures names."""
    if isinstance(node, dict):
        named = node.get("source", [])
        yield from [named] if isinstance(named, str) else named
        for key, value in node.items():
            if key not in ("source", "sources"):
                yield from sources_in(value)
    elif isinstance(node, list):
        for item in node:
            yield from sources_in(item)


@pytest.mark.parametrize(("row", "key", "figure"), figures())
def test_unverified_figures_are_flagged_and_derived_figures_say_how(row, key, figure):
    assert figure.unverified or not any("not re-read" in source for source in figure.sources)
    assert figure.choice or not any("Derived" in source for source in figure.sources)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.key)
def test_rates_are_believable(row):
    peaks = {dtype: figure.value for dtype, figure in row.peaks.items()}
    bandwidth = row.figures["memory_bytes_per_second"].value
    memory = row.figures["memory_bytes"].value
    assert set(peaks) <= {"float32", "bfloat16", "float16", "float8", "int8"}
    assert 1e11 <= peaks["float32"] <= 5e15
    assert 1e10 <= bandwidth <= 1e13
    assert 8 * 2**30 <= memory <= 300 * 2**30
    # Operations a byte, at which a product is balanced: 5 on processors, up to some 560 on v6e.
    assert 5 <= max(peaks.get("bfloat16", 0), peaks["float32"]) / bandwidth <= 600
    if "bfloat16" in peaks:
        assert peaks["float32"] <= peaks["bfloat16"]
    if row.kind == "tpu":
        assert peaks["float32"] == peaks["bfloat16"], "JAX's default float32 product is one bfloat16 pass"
        assert "float16" not in peaks, "no rate is published"
    if {"bfloat16", "float16"} <= set(peaks):
        assert peaks["bfloat16"] == peaks["float16"]


AMPERE_AND_LATER = ["a10g", "a10", "l4", "a100-40gb", "a100-80gb", "h100-80gb", "h100-80gb-pcie", "h200-141gb", "b200"]
AMPERE_AND_LATER += ["gb200", "rtx-3090", "rtx-4090", "rtx-5090", "a6000", "l40s", "rtx-6000-ada"]


@pytest.mark.parametrize("key", AMPERE_AND_LATER)
def test_float32_products_run_in_tf32_at_half_the_bfloat16_rate(key):
    peaks = catalogue.rows()[f"gpu-{key}"].peaks
    assert peaks["float32"].value == pytest.approx(peaks["bfloat16"].value / 2, rel=0.02)


@pytest.mark.parametrize("key", ["p100-16gb", "v100-16gb", "v100-32gb", "t4", "rtx-2080ti"])
def test_older_gpus_have_no_bfloat16_rate(key):
    assert "bfloat16" not in catalogue.rows()[f"gpu-{key}"].peaks


# What the vendors' product pages say, in their own units.
PUBLISHED = {
    "tpu-v4": ("bfloat16", 275e12, 1.2e12, 32),
    "tpu-v5e": ("bfloat16", 197e12, 0.819e12, 16),
    "tpu-v5p": ("bfloat16", 459e12, 2.765e12, 96),
    "tpu-v6e": ("bfloat16", 918e12, 1.638e12, 32),
    "tpu-v7x": ("bfloat16", 2307e12, 7.38e12, 192),
    "gpu-v100-16gb": ("float16", 125e12, 0.9e12, 16),
    "gpu-t4": ("float16", 65e12, 0.32e12, 15),
    "gpu-a100-40gb": ("bfloat16", 312e12, 1.555e12, 40),
    "gpu-a100-80gb": ("bfloat16", 312e12, 2.039e12, 80),
    "gpu-h100-80gb": ("bfloat16", 989e12, 3.35e12, 80),
    "gpu-h200-141gb": ("bfloat16", 989e12, 4.8e12, 140),
    "gpu-mi300x": ("bfloat16", 1307e12, 5.3e12, 192),
}


@pytest.mark.parametrize("key", PUBLISHED)
def test_rows_agree_with_the_published_headline_figures(key):
    dtype, peak, bandwidth, gib = PUBLISHED[key]
    row = catalogue.rows()[key]
    assert row.peaks[dtype].value == pytest.approx(peak, rel=0.01)
    assert row.figures["memory_bytes_per_second"].value == pytest.approx(bandwidth, rel=0.01)
    assert row.figures["memory_bytes"].value / 2**30 == pytest.approx(gib, rel=0.02)


def test_the_chips_asked_for_are_there():
    tpus = ["v2", "v3", "v4", "v5e", "v5p", "v6e", "v7x"]
    gpus = [
        "p100-16gb",
        "v100-16gb",
        "v100-32gb",
        "t4",
        "a10g",
        "a10",
        "l4",
        "a100-40gb",
        "a100-40gb-pcie",
        "a100-80gb",
    ]
    gpus += ["a100-80gb-pcie", "h100-80gb", "h100-80gb-pcie", "h200-141gb", "b200", "gb200", "rtx-2080ti", "rtx-3090"]
    gpus += ["rtx-4090", "rtx-5090", "a6000", "l40s", "rtx-6000-ada", "mi250x", "mi300x", "mi325x"]
    expected = [f"tpu-{key}" for key in tpus] + [f"gpu-{key}" for key in gpus] + ["cpu"]
    assert [row.key for row in ROWS] == expected


@pytest.mark.parametrize("row", [row for row in ROWS if row.kind == "tpu"], ids=lambda row: row.key)
def test_slices_are_named_by_cores_or_by_chips_and_spread_over_hosts(row):
    per_size = {"tpu-v4": 2, "tpu-v5p": 2}.get(row.key, 1)
    for size, part in row.slices.items():
        chips = prod(part.topology)
        assert chips * row.devices_per_chip * per_size == size
        assert chips % part.hosts == 0
        assert chips // part.hosts in (1, 4, 8)
        assert len(part.topology) == len(part.wraparound)
        assert all(length > 2 for length, closes in zip(part.topology, part.wraparound, strict=True) if closes)
    assert row.slices_source.sources


def test_wraparound_follows_the_cubes_and_the_sixteens():
    v4, v5e = catalogue.rows()["tpu-v4"], catalogue.rows()["tpu-v5e"]
    assert v4.slices[64].wraparound == (False, False, False)
    assert v4.slices[128].wraparound == (True, True, True)
    assert v5e.slices[128].topology == (8, 16)
    assert v5e.slices[128].wraparound == (False, True)


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("tpu-v4-8", "tpu-v4-8"),
        ("TPU_V4_8", "tpu-v4-8"),
        ("tpu-v5litepod-8", "tpu-v5e-8"),
        ("tpu-trillium-8", "tpu-v6e-8"),
        ("tpu-ironwood-8", "tpu-v7x-8"),
        ("tpu7x-8", "tpu-v7x-8"),
        ("gpu-a100-80gb", "gpu-a100-80gb"),
        ("gpu-a100-80gb-x1-n1", "gpu-a100-80gb"),
        ("gpu-h100-80gb-x8-n2", "gpu-h100-80gb-x8-n2"),
        ("gpu-t4-n2", "gpu-t4-x1-n2"),
        ("gpu-rtx-a6000-x2", "gpu-a6000-x2"),
        ("gpu-h200", "gpu-h200-141gb"),
        (" cpu ", "cpu"),
    ],
)
def test_names_have_one_canonical_spelling(name, canonical):
    assert catalogue.parse(name).canonical == canonical
    assert catalogue.parse(canonical).canonical == canonical


@pytest.mark.parametrize("row", [row for row in ROWS if row.kind == "gpu"], ids=lambda row: row.key)
def test_aliases_and_device_kinds_lead_back_to_their_row(row):
    for alias in (row.key, *row.aliases):
        assert catalogue.parse(alias).row is row
    for device_kind in row.device_kinds:
        assert catalogue.row_of_device_kind(device_kind) is row


def test_no_two_rows_share_a_name_or_a_device_kind():
    names = [name for row in ROWS for name in (row.key, *row.aliases)]
    kinds = [kind for row in ROWS for kind in row.device_kinds]
    assert len(names) == len(set(names))
    assert len(kinds) == len(set(kinds))


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("gpu-h300", "gpu-h200-141gb"),
        ("v4-8", "tpu-v4-N"),
        ("a100-80gb-x8", "gpu-a100-80gb"),
        ("gpu-mi300", "gpu-mi300x"),
        ("tpu-v5litpod-8", "tpu-v5e-N"),
    ],
)
def test_an_unknown_name_is_an_error_with_similar_and_known_names(name, near):
    with pytest.raises(HardwareError) as caught:
        catalogue.parse(name)
    text = str(caught.value)
    hint = text.split("Did you mean ")[1].split("?")[0]
    assert text.startswith(f"unknown hardware '{name}'.")
    assert near in hint.split(" or ")
    assert all(row.key in text for row in ROWS)
    assert "`local`" in text
    assert "YAML file" in text


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("a100", ["gpu-a100-40gb", "gpu-a100-40gb-pcie", "gpu-a100-80gb", "gpu-a100-80gb-pcie"]),
        ("h100", ["gpu-h100-80gb", "gpu-h100-80gb-pcie"]),
        ("h100-80", ["gpu-h100-80gb", "gpu-h100-80gb-pcie"]),
        ("gpu-h100-80-x8", ["gpu-h100-80gb", "gpu-h100-80gb-pcie"]),
        ("4090", ["gpu-rtx-4090"]),
        ("tpu-v5-8", ["tpu-v5e-N", "tpu-v5p-N"]),
    ],
)
def test_names_that_hold_the_asked_one_come_first(name, first):
    with pytest.raises(HardwareError) as caught:
        catalogue.parse(name)
    assert str(caught.value).split("Did you mean ")[1].split("?")[0].split(" or ")[: len(first)] == first


def test_a_name_like_nothing_gets_no_guess():
    with pytest.raises(HardwareError, match=r"^unknown hardware 'quantum'\. Known: tpu-v2-N, "):
        catalogue.parse("quantum")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "tpu-v4-9",
            "Google TPU v4 has no slice of 9; give tpu-v4-N with N one of 8, 16, 32, 64, 128, 256, 384, 512, ",
        ),
        ("tpu-v5e-2", "Google TPU v5e has no slice of 2; give tpu-v5e-N with N one of 1, 4, 8, 16, 32, 64, 128, 256"),
        ("tpu-v6e", "'tpu-v6e' does not say how large the slice is; give tpu-v6e-N with N one of 1, 4, 8"),
        (
            "gpu-a100",
            "'gpu-a100' is ambiguous; give one of gpu-a100-40gb, gpu-a100-40gb-pcie, gpu-a100-80gb, gpu-a100-80gb-pcie",
        ),
        ("gpu-v100-x8", "'gpu-v100-x8' is ambiguous; give one of gpu-v100-16gb, gpu-v100-32gb"),
        ("gpu-h100-80gb-x64", "comes with up to 8; spread them over hosts with -n, as in gpu-h100-80gb-x8-n2"),
        ("gpu-h100-80gb-x0", "'gpu-h100-80gb-x0' has no device"),
    ],
)
def test_an_ambiguous_name_is_an_error_with_the_valid_ones(name, message):
    with pytest.raises(HardwareError) as caught:
        catalogue.parse(name)
    assert message in str(caught.value)
