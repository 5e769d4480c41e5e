"""How often loops run, where the compiler says so and where it has to be found out."""

import pytest

from cost_models.hlo.parser import parse
from cost_models.hlo.while_loops import trip_count
from cost_models.workload.workload import Kind
from tests.builders.hlo_texts import program, read, real

BODY = """
%body (p: (s32[], f32[8], s32[])) -> (s32[], f32[8], s32[]) {
  %p = (s32[], f32[8], s32[]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = f32[8] get-tuple-element(%p), index=1
  %limit = s32[] get-tuple-element(%p), index=2
  %step = s32[] constant(STEP)
  %next = s32[] add(%i, %step)
  %y = f32[8] add(%x, %x)
  ROOT %out = (s32[], f32[8], s32[]) tuple(%next, %y, %limit)
}
"""
CONDITION = """
%condition (p: (s32[], f32[8], s32[])) -> pred[] {
  %p = (s32[], f32[8], s32[]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %limit = s32[] get-tuple-element(%p), index=2
  %twelve = s32[] constant(12)
  ROOT %less = pred[] compare(LEFT, RIGHT), direction=DIRECTION
}
"""
ENTRY = """
%x = f32[8] parameter(0)
%start = s32[] constant(START)
%copied = s32[] copy(%start)
%limit = s32[] constant(20)
%carried = (s32[], f32[8], s32[]) tuple(%copied, %x, %limit)
ROOT %loop = (s32[], f32[8], s32[]) while(%carried), condition=%condition, body=%body
"""


def loop(*, start=0, step=1, left="%i", right="%twelve", direction="LT", body=BODY, entry=ENTRY):
    condition = CONDITION.replace("LEFT", left).replace("RIGHT", right).replace("DIRECTION", direction)
    return program(entry.replace("START", str(start)), body.replace("STEP", str(step)), condition)


def runs(text):
    module = parse(text)
    return trip_count(module.entry.root, module.entry, module)


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({}, 12),
        ({"start": 2}, 10),
        ({"step": 5}, 3),
        ({"direction": "LE"}, 13),
        ({"direction": "NE"}, 12),
        ({"right": "%limit"}, 20),
        ({"left": "%twelve", "right": "%i", "direction": "GT"}, 12),
        ({"start": 15, "step": -1, "direction": "GT"}, 3),
        ({"start": 15, "step": -1, "direction": "GE"}, 4),
        ({"start": 30}, 0),
    ],
)
def test_a_counted_loop_runs_as_often_as_its_counter_says(how, expected):
    assert runs(loop(**how)) == expected


def test_the_counter_may_be_compared_and_added_to_in_fusions():
    compared = """
%compared (a: s32[], b: s32[]) -> pred[] {
  %a = s32[] parameter(0)
  %b = s32[] parameter(1)
  ROOT %less = pred[] compare(%a, %b), direction=LT
}"""
    added = """
%added (a: s32[]) -> (s32[], f32[8]) {
  %a = s32[] parameter(0)
  %two = s32[] constant(2)
  %next = s32[] add(%a, %two)
  %z = f32[8] constant({...})
  ROOT %both = (s32[], f32[8]) tuple(%next, %z)
}"""
    text = loop().replace("compare(%i, %twelve), direction=LT", "fusion(%i, %twelve), kind=kLoop, calls=%compared")
    text = text.replace(
        "%next = s32[] add(%i, %step)",
        "%f = (s32[], f32[8]) fusion(%i), kind=kLoop, calls=%added\n  %next = s32[] get-tuple-element(%f), index=0",
    )
    text = text.replace("\n\n%body", f"\n\n{compared.strip()}\n\n{added.strip()}\n\n%body", 1)
    assert runs(text) == 6


def test_a_stated_trip_count_is_used():
    text = loop().replace("body=%body\n", 'body=%body, backend_config={"known_trip_count":{"n":"7"}}\n')
    assert runs(text) == 7


@pytest.mark.parametrize(
    "change",
    [
        ("%start = s32[] constant(0)", "%start = s32[] parameter(1)"),
        ("%next = s32[] add(%i, %step)", "%next = s32[] multiply(%i, %step)"),
        ("compare(%i, %twelve), direction=LT", "compare(%i, %twelve), direction=EQ"),
        ("compare(%i, %twelve), direction=LT", "and(%i, %twelve)"),
        ("constant(1)", "constant(-1)"),
    ],
)
def test_a_loop_whose_count_is_not_in_the_text_is_said_to_be_unknown(change):
    text = loop().replace(*change)
    assert runs(text) is None
    workload = read(text)
    (found,) = (op for op in workload.ops if op.kind is Kind.LOOP)
    assert found.repeat == 1
    (unknown,) = workload.unknown_ops
    assert unknown.primitive == "while"
    assert "trip count does not follow from the text" in unknown.reason


@pytest.mark.parametrize("name", ["v5e_loop", "a100_loop"])
def test_a_real_scan_of_twelve_steps_runs_twelve_times_forward_and_backward(name):
    loops = [
        op for op in read(real(name), axes={"data": 4} if name.startswith("v") else {}).ops if op.kind is Kind.LOOP
    ]
    assert [op.repeat for op in loops] == [12, 12]
