"""Shapes as the compilers print them, and the bytes that they take."""

import pytest

from cost_models.errors import WorkloadError
from cost_models.hlo.shapes import leaves, numbers, shape_of, split


def test_an_array_has_its_dtype_dimensions_and_bytes():
    array = shape_of("bf16[16,24,64]{2,1,0}")
    assert (array.dtype, array.dims, array.elements, array.bytes) == ("bfloat16", (16, 24, 64), 24576, 49152)
    assert array.stored_bytes == array.bytes


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("f32[10,300]{1,0:T(8,128)}", 16 * 384 * 4),
        ("f32[10,300]{0,1:T(8,128)}", 304 * 128 * 4),  # the first dimension moves fastest
        ("bf16[10,300]{1,0:T(8,128)(2,1)}", 16 * 384 * 2),
        ("bf16[10]{0:T(256)(128)(2,1)}", 256 * 2),
        ("f32[]{:T(128)}", 128 * 4),
        ("f32[3,10,300]{2,1,0:T(8,128)S(1)}", 3 * 16 * 384 * 4),
        ("pred[24,16]{0,1:T(8,128)(4,1)}", 16 * 128),
        ("s4[7,5]{1,0:E(4)}", 18),
        ("u8[0]{0}", 0),
    ],
)
def test_tiles_round_the_fastest_dimensions_up(text, stored):
    assert shape_of(text).stored_bytes == stored


def test_a_memory_space_is_read():
    assert shape_of("f32[4]{0:T(128)S(1)}").space == 1
    assert shape_of("f32[4]{0}").space == 0


def test_a_tuple_is_nested_and_comments_between_its_parts_do_not_count():
    shape = shape_of("((f32[2]{0}, /*index=1*/s32[]), token[], u32[]{:S(2)})")
    assert [array.dtype for array in leaves(shape)] == ["float32", "int32", "token", "uint32"]
    assert len(shape) == 3
    assert len(shape[0]) == 2


def test_dynamic_dimensions_count_as_their_bound():
    assert shape_of("f32[<=10,4]").dims == (10, 4)


@pytest.mark.parametrize("text", ["", "f32", "f32[2", "f32[2]x", "{1,0}"])
def test_a_text_that_is_no_shape_is_an_error(text):
    with pytest.raises(WorkloadError, match=r"is no shape.*give all of compile"):
        shape_of(text)


def test_an_unknown_element_type_is_named_with_the_known_ones():
    with pytest.raises(WorkloadError, match=r"arrays of type 'posit8'.*bf16"):
        shape_of("posit8[4]")


def test_commas_in_brackets_and_strings_do_not_split():
    assert split('a={1,2}, b="x,)y", c') == ["a={1,2}", ' b="x,)y"', " c"]


def test_numbers_are_found_in_order():
    assert numbers("{0,-1,22}") == (0, -1, 22)
