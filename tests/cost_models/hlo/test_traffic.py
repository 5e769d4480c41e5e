"""Bytes that a kernel moves: everything once, except where it touches a part."""

import pytest

from tests.builders.hlo_texts import only, program, read

BIG, ROW = 4 * 1000 * 64, 4 * 64


def moved(text):
    return only(text).compiled.moved_bytes


def fusion(body, operands, result, *, inner_shapes):
    lines = [f"%a{i} = {shape} parameter({i})" for i, shape in enumerate(operands)]
    names = ", ".join(f"%a{i}" for i in range(len(operands)))
    parameters = [f"  %p{i} = {shape} parameter({i})" for i, shape in enumerate(inner_shapes)]
    inner = "\n".join(["%fused (p: f32[]) -> f32[] {", *parameters, *(f"  {line}" for line in body), "}"])
    return program("\n".join([*lines, f"ROOT %r = {result} fusion({names}), kind=kLoop, calls=%fused"]), inner)


def same(body, operands, result):
    return fusion(body, operands, result, inner_shapes=operands)


def test_an_elementwise_kernel_reads_and_writes_everything_once():
    text = same(["ROOT %s = f32[1000,64] add(%p0, %p1)"], ["f32[1000,64]", "bf16[1000,64]"], "f32[1000,64]")
    assert moved(text) == BIG + BIG // 2 + BIG


def test_an_operand_that_is_taken_twice_is_read_once():
    assert moved(program("%a = f32[1000,64] parameter(0)\nROOT %r = f32[1000,64] add(%a, %a)")) == 2 * BIG


@pytest.mark.parametrize(
    "pick",
    [
        "slice(%p0), slice={[0:1], [0:64]}",
        "dynamic-slice(%p0, %p1, %p1), dynamic_slice_sizes={1,64}",
        "gather(%p0, %p1), offset_dims={1}, slice_sizes={1,64}",
    ],
)
def test_a_part_that_is_picked_out_is_all_that_is_read(pick):
    body = [f"%s = f32[1,64] {pick}", "ROOT %n = f32[1,64] negate(%s)"]
    text = same(body, ["f32[1000,64]", "s32[]"], "f32[1,64]")
    index = 4 if "%p1" in pick else 0
    assert moved(text) == 2 * ROW + index


def test_picking_and_reading_the_whole_reads_the_whole():
    body = [
        "%s = f32[1,64] slice(%p0), slice={[0:1], [0:64]}",
        "%b = f32[1000,64] broadcast(%s), dimensions={1}",
        "ROOT %n = f32[1000,64] add(%p0, %b)",
    ]
    assert moved(same(body, ["f32[1000,64]"], "f32[1000,64]")) == 2 * BIG


def test_an_update_in_place_moves_only_what_is_new():
    body = [
        "%u = f32[1,64] negate(%p1)",
        "ROOT %d = f32[1000,64] dynamic-update-slice(%p0, %u, %p2, %p2)",
    ]
    assert moved(same(body, ["f32[1000,64]", "f32[1,64]", "s32[]"], "f32[1000,64]")) == 2 * ROW + 4


def test_an_update_of_something_made_inside_writes_the_whole():
    body = [
        "%z = f32[] constant(0)",
        "%b = f32[1000,64] broadcast(%z), dimensions={}",
        "ROOT %d = f32[1000,64] dynamic-update-slice(%b, %p0, %p1, %p1)",
    ]
    assert moved(same(body, ["f32[1,64]", "s32[]"], "f32[1000,64]")) == ROW + 4 + BIG


def test_an_update_that_something_else_reads_too_writes_the_whole():
    body = [
        "%d = f32[1000,64] dynamic-update-slice(%p0, %p1, %p2, %p2)",
        "ROOT %n = f32[1000,64] negate(%d)",
    ]
    assert moved(same(body, ["f32[1000,64]", "f32[1,64]", "s32[]"], "f32[1000,64]")) == 2 * BIG + ROW + 4


def test_each_result_of_a_fusion_counts_by_the_instruction_that_makes_it():
    body = [
        "%n = f32[1,64] negate(%p1)",
        "%d = f32[1000,64] dynamic-update-slice(%p0, %p1, %p2, %p2)",
        "ROOT %t = (f32[1000,64], f32[1,64]) tuple(%d, %n)",
    ]
    text = same(body, ["f32[1000,64]", "f32[1,64]", "s32[]"], "(f32[1000,64], f32[1,64])")
    assert moved(text) == ROW + 4 + ROW + ROW


def test_a_scatter_reads_what_it_adds_to():
    lines = """
    %a = f32[1000,64] parameter(0)
    %i = s32[5,1] parameter(1)
    %u = f32[5,64] parameter(2)
    ROOT %s = f32[1000,64] scatter(%a, %i, %u), update_window_dims={1}, to_apply=%add
    """
    assert moved(program(lines)) == 3 * 5 * ROW + 20


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("dynamic-update-slice(%a, %u, %i, %i)", 2 * ROW + 4 + 4),
        ("copy(%a)", 2 * BIG),
    ],
)
def test_outside_of_fusions_the_same_holds(line, expected):
    lines = "%a = f32[1000,64] parameter(0)\n%u = f32[1,64] parameter(1)\n%i = s32[] parameter(2)\n"
    assert moved(program(f"{lines}ROOT %r = f32[1000,64] {line}")) == expected


def test_memory_on_a_tpu_is_padded_and_its_vmem_costs_main_memory_nothing():
    tiled = "{1,0:T(8,128)}"
    main, chip = f"f32[1000,64]{tiled}", f"f32[1000,64]{tiled.replace('}', 'S(1)}')}"
    padded = 4 * 1000 * 128
    add = "%a = {} parameter(0)\n%b = {} parameter(1)\nROOT %r = {} add(%a, %b)"
    assert moved(program(add.format(main, main, main))) == 3 * padded
    assert moved(program(add.format(main, chip, chip))) == padded
    assert moved(program(add.format(chip, chip, chip))) == 0


def test_numbered_memory_without_tiles_is_a_gpus_and_costs_as_any_other():
    shape = "f32[1000,64]{1,0:S(1)}"
    assert moved(program(f"%a = {shape} parameter(0)\nROOT %r = {shape} negate(%a)")) == 2 * BIG


def test_an_asynchronous_copy_or_slice_counts_once_with_the_operations_that_hide_it():
    lines = """
    %a = f32[1000,64]{1,0:T(8,128)} parameter(0)
    %c = (f32[1000,64]{1,0:T(8,128)S(1)}, f32[1000,64]{1,0:T(8,128)}, u32[]{:S(2)}) copy-start(%a)
    %s = ((f32[1000,64]{1,0:T(8,128)}), f32[8,64]{1,0:T(8,128)S(1)}, s32[]{:S(2)}) slice-start(%a), slice={[0:8]}
    %n = f32[1000,64]{1,0:T(8,128)} negate(%a)
    %cd = f32[1000,64]{1,0:T(8,128)S(1)} copy-done(%c)
    %sd = f32[8,64]{1,0:T(8,128)S(1)} slice-done(%s)
    ROOT %r = f32[1000,64]{1,0:T(8,128)S(1)} negate(%cd)
    """
    padded = 4 * 1000 * 128
    found = {op.primitive: op.compiled for op in read(program(lines)).ops[:3]}
    assert (found["copy"].moved_bytes, found["copy"].covers, found["copy"].launches) == (padded, 2, 0)
    assert (found["slice"].moved_bytes, found["slice"].covers) == (4 * 8 * 128, 1)
    assert found["negate"].launches == 1
