"""Readers of hand-written values: what they take, and what they say."""

import msgspec
import pytest

from cost_models import validation
from cost_models.errors import SchemaError


@pytest.mark.parametrize(
    ("text", "expected"),
    [(80 * 2**30, 80 * 2**30), ("80 GiB", 80 * 2**30), ("24 GB", 24 * 10**9), ("1.5 TiB", 3 * 2**39), ("1e9", 10**9)],
)
def test_memory_is_bytes_or_has_a_unit(text, expected):
    assert validation.memory(text, "chip.memory_bytes") == expected


@pytest.mark.parametrize("value", ["lots", "80 GiBs", "1.2.3 GB", None, True, [1]])
def test_memory_says_what_it_expected(value):
    with pytest.raises(SchemaError, match=r"^chip\.memory_bytes is .*; expected bytes, as a whole number or as in"):
        validation.memory(value, "chip.memory_bytes")


def test_a_number_may_be_what_yaml_takes_for_text():
    assert validation.number("3.12e14", "x") == 3.12e14


@pytest.mark.parametrize("value", ["fast", True, None, "nan", "inf", -1, 1e300, "1e-300", 10**400])
def test_a_number_says_what_it_expected(value):
    with pytest.raises(SchemaError, match=r"^x is .*; expected a number such as 3\.12e14$"):
        validation.number(value, "x")


@pytest.mark.parametrize("value", [1.5, "two", True, None])
def test_a_whole_number_says_what_it_expected(value):
    with pytest.raises(SchemaError, match=r"^devices is .*; expected a whole number$"):
        validation.whole(value, "devices")


def test_large_whole_numbers_are_kept_exactly():
    assert validation.whole(2**62 + 1, "x") == 2**62 + 1


def test_keys_are_checked_with_the_near_and_the_expected_ones():
    readers = {"hosts": validation.whole, "devices": validation.whole}
    assert validation.read_mapping({"devices": 8}, "hardware", readers) == {"devices": 8}
    with pytest.raises(
        SchemaError, match=r"^hardware has an unknown key 'host'; did you mean hosts\? Expected: hosts, devices$"
    ):
        validation.read_mapping({"host": 2}, "hardware", readers)
    with pytest.raises(SchemaError, match=r"^hardware lacks devices; expected hosts, devices$"):
        validation.read_mapping({"hosts": 2}, "hardware", readers, required=("hosts", "devices"))
    with pytest.raises(SchemaError, match=r"^hardware is 3; expected a mapping$"):
        validation.read_mapping(3, "hardware", readers)


def test_lists_name_the_item():
    assert validation.several(validation.whole)([2, 2], "topology") == (2, 2)
    with pytest.raises(SchemaError, match=r"^topology\[1\] is 'two'; expected a whole number$"):
        validation.several(validation.whole)([2, "two"], "topology")
    with pytest.raises(SchemaError, match=r"^topology is '2x2'; expected a list$"):
        validation.several(validation.whole)("2x2", "topology")


def test_null_passes_only_where_it_may():
    assert validation.optional(validation.mapping)(None, "inner_link") is None
    with pytest.raises(SchemaError, match=r"^inner_link is None; expected a mapping$"):
        validation.mapping(None, "inner_link")


def test_a_similar_word_is_named_and_no_other():
    assert validation.did_you_mean("bacth", ["batch", "mesh"]) == "; did you mean batch?"
    assert validation.did_you_mean("layers", ["batch", "mesh"]) == ""
    assert validation.nearest("bacth", iter(["batch", "mesh"])) == "batch"


class Box(msgspec.Struct, forbid_unknown_fields=True):
    """A record of msgspec."""

    sizes: tuple[int, ...]
    inner: list["Box"] = []


def test_a_converted_value_has_its_type():
    assert validation.converted({"sizes": [1, 2]}, Box, "box") == Box((1, 2))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3, "box: expected `object`, got `int`"),
        ({}, "box: object missing required field `sizes`"),
        ({"sizes": [1, "two"]}, "box.sizes[1]: expected `int`, got `str`"),
        ({"sizes": [], "inner": [{"sizes": [], "colour": 1}]}, "box.inner[0]: object contains unknown field `colour`"),
    ],
)
def test_a_value_that_cannot_be_converted_is_an_error_with_its_path(value, message):
    with pytest.raises(SchemaError) as caught:
        validation.converted(value, Box, "box")
    assert str(caught.value) == message


def test_a_value_that_is_nested_without_end_is_an_error():
    endless = {"sizes": []}
    endless["inner"] = [endless]
    with pytest.raises(SchemaError, match=r"^box is nested too deeply$"):
        validation.converted(endless, Box, "box")
