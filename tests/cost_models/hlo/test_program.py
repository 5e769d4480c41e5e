"""Compiled programs as operations: tensors, tuples, calls, loops and asynchronous work."""

import pytest

from cost_models.hlo.collectives import Lines
from cost_models.hlo.parser import parse
from cost_models.hlo.program import Program, flat, layer_of
from cost_models.workload.workload import Kind, Phase
from tests.builders.hlo_texts import program

DOUBLED = "%double (p: f32[64]) -> f32[64] {\n  %p = f32[64] parameter(0)\n  ROOT %d = f32[64] add(%p, %p)\n}"


def walked(entry, *others, devices=1):
    text = program(entry, *others, header=f", num_partitions={devices}")
    module = parse(text)
    made = Program(module, Lines({"data": devices} if devices > 1 else {}, devices))
    return made, *made.entry()


def test_operations_follow_the_schedule_over_numbered_tensors():
    made, taken, ops, result = walked(
        "%a = f32[64] parameter(0)\n%b = f32[64] negate(%a)\nROOT %c = f32[64] add(%a, %b)"
    )
    assert [op.primitive for op in ops] == ["negate", "add"]
    assert taken == [0]
    assert ops[1].reads == (0, *ops[0].writes)
    assert ops[1].writes == (result,)
    assert made.tensors[result].shape[0].fixed == 64


def test_tuples_and_bitcasts_name_tensors_and_cost_nothing():
    _, _, ops, result = walked(
        "%a = f32[64] parameter(0)\n%b = f32[64] negate(%a)\n%t = (f32[64], f32[64]) tuple(%a, %b)\n"
        "%e = f32[64] get-tuple-element(%t), index=1\nROOT %v = f32[8,8] bitcast(%e)"
    )
    assert len(ops) == 1
    assert (result,) == ops[0].writes


def test_a_call_is_inlined():
    _, _, ops, result = walked("%a = f32[64] parameter(0)\nROOT %c = f32[64] call(%a), to_apply=%double", DOUBLED)
    assert [op.primitive for op in ops] == ["add"]
    assert ops[0].writes == (result,)


def test_a_loop_has_a_body_a_trip_count_and_the_carried_results():
    body = (
        "%body (p: (s32[], f32[64])) -> (s32[], f32[64]) {\n  %p = (s32[], f32[64]) parameter(0)\n"
        "  %i = s32[] get-tuple-element(%p), index=0\n  %x = f32[64] get-tuple-element(%p), index=1\n"
        "  %y = f32[64] negate(%x)\n  ROOT %t = (s32[], f32[64]) tuple(%i, %y)\n}"
    )
    condition = (
        "%cond (p: (s32[], f32[64])) -> pred[] {\n  %p = (s32[], f32[64]) parameter(0)\n"
        "  ROOT %c = pred[] constant(true)\n}"
    )
    made, _, (loop,), _ = walked(
        "%i = s32[] parameter(0)\n%x = f32[64] parameter(1)\n%t = (s32[], f32[64]) tuple(%i, %x)\n"
        "ROOT %w = (s32[], f32[64]) while(%t), condition=%cond, body=%body, "
        'backend_config={"known_trip_count":{"n":"7"}}',
        body,
        condition,
    )
    assert (loop.kind, loop.repeat) == (Kind.LOOP, 7)
    assert [op.primitive for op in loop.body] == ["negate"]
    assert loop.results[1:] == loop.body[0].writes
    assert not made.unknown


def test_an_asynchronous_collective_covers_the_operations_until_it_is_awaited():
    _, _, ops, _ = walked(
        "%a = f32[64] parameter(0)\n%b = f32[64] parameter(1)\n"
        "%s = f32[64] all-reduce-start(%a), replica_groups={}, to_apply=%sum\n"
        "%n = f32[64] negate(%b)\n%m = f32[64] add(%n, %b)\n%d = f32[64] all-reduce-done(%s)\n"
        "ROOT %r = f32[64] add(%d, %m)",
        devices=4,
    )
    sent = ops[0]
    assert (sent.kind, sent.primitive, sent.compiled.launches) == (Kind.COLLECTIVE, "all_reduce", 0)
    assert sent.compiled.covers == 2


@pytest.mark.parametrize(
    ("scope", "layer"),
    [
        ("jit(train_step)/transpose(jvp(block/dense))/dot_general", "block/dense"),
        ("jit(train_step)/jvp(block)/rematted_computation/dense/add", "block/dense"),
        ("jit(train_step)/optimizer/mul:extra", "optimizer"),
        ("", ""),
    ],
)
def test_layers_are_the_scopes_that_keras_named(scope, layer):
    assert layer_of(scope) == layer


def test_phases_follow_the_name_stack_and_what_has_none_stays_in_the_phase_before():
    stacks = ["jit(f)/jvp(dense)/dot", "", "jit(f)/transpose(jvp(dense))/dot", "", "jit(f)/optimizer/mul"]
    lines, before = ["%x0 = f32[64] parameter(0)"], "x0"
    for index, stack in enumerate(stacks, start=1):
        metadata = f', metadata={{op_name="{stack}"}}' if stack else ""
        root = "ROOT " if index == len(stacks) else ""
        lines.append(f"{root}%x{index} = f32[64] negate(%{before}){metadata}")
        before = f"x{index}"
    _, _, ops, _ = walked("\n".join(lines))
    forward, backward = [Phase.FORWARD] * 2, [Phase.BACKWARD] * 2
    assert [op.phase for op in ops] == [*forward, *backward, Phase.UPDATE]


def test_nested_tensor_numbers_are_flattened_in_order():
    assert list(flat((0, (1, (2,)), 3))) == [0, 1, 2, 3]
