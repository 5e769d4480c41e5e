"""Collectives of compiled programs: kind, mesh axis, payload, and which instructions count."""

import pytest

from cost_models.errors import WorkloadError
from cost_models.hlo.collectives import Lines, base_opcode, in_fusion, is_collective, keeps_slices
from cost_models.hlo.parser import parse
from cost_models.workload.compiled_op import CompiledCollective
from tests.builders.hlo_texts import program

MESH = {"data": 2, "model": 4}
ROWS = "{{0,1,2,3},{4,5,6,7}}"
COLUMNS = "{{0,4},{1,5},{2,6},{3,7}}"
FLOAT = 4


def module(entry, *others):
    return parse(program(entry, *others, header=", num_partitions=8"))


def sent(instruction, shape="f32[64,8]", mesh=MESH):
    """The collective that one instruction is."""
    found = module(f"%a = {shape} parameter(0)\n{instruction}")
    return Lines(mesh, found.devices).exchange(found.entry.root, found.entry)


@pytest.mark.parametrize(
    ("instruction", "expected"),
    [
        (
            f"ROOT %r = f32[64,8] all-reduce(%a), replica_groups={ROWS}, to_apply=%sum",
            CompiledCollective("all_reduce", "model", 4, 1, FLOAT * 64 * 8),
        ),
        (
            f"ROOT %r = f32[128,8] all-gather(%a), replica_groups={COLUMNS}, dimensions={{0}}",
            CompiledCollective("all_gather", "data", 2, 4, 2 * FLOAT * 64 * 8),
        ),
        (
            f"ROOT %r = f32[16,8] reduce-scatter(%a), replica_groups={ROWS}, dimensions={{0}}, to_apply=%sum",
            CompiledCollective("reduce_scatter", "model", 4, 1, FLOAT * 64 * 8),
        ),
        (
            f"ROOT %r = f32[64,8] all-to-all(%a), replica_groups={ROWS}, dimensions={{0}}",
            CompiledCollective("all_to_all", "model", 4, 1, 4 * FLOAT * 64 * 8),
        ),
        (
            "ROOT %r = f32[64,8] collective-permute(%a), source_target_pairs={{0,4},{4,0}}",
            CompiledCollective("collective_permute", "data", 2, 4, FLOAT * 64 * 8),
        ),
        (
            "ROOT %r = f32[64,8] all-reduce(%a), replica_groups={}, to_apply=%sum",
            CompiledCollective("all_reduce", "data,model", 8, 1, FLOAT * 64 * 8),
        ),
    ],
)
def test_payloads_are_bytes_of_the_full_array_along_the_axis_of_the_groups(instruction, expected):
    assert sent(instruction) == expected


def test_groups_along_no_axis_are_named_by_their_size():
    found = sent("ROOT %r = f32[64,8] all-reduce(%a), replica_groups={{0,3},{1,2},{4,7},{5,6}}, to_apply=%sum")
    assert (found.axis, found.devices, found.stride) == ("2", 2, 3)


def test_groups_of_one_device_exchange_nothing():
    found = sent("ROOT %r = f32[64,8] all-reduce(%a), replica_groups={{0},{1},{2},{3},{4},{5},{6},{7}}, to_apply=%sum")
    assert (found.axis, found.devices) == ("1", 1)


def test_starts_count_and_ends_do_not():
    entry = module(
        f"%a = f32[64] parameter(0)\n%s = f32[64] all-reduce-start(%a), replica_groups={ROWS}, to_apply=%sum\n"
        "ROOT %d = f32[64] all-reduce-done(%s)"
    ).entry
    start, done = entry.by_name["s"], entry.root
    assert (is_collective(start), is_collective(done)) == (True, False)
    assert base_opcode(start) == "all-reduce"


def test_an_all_reduce_of_which_only_a_slice_is_read_is_a_reduce_scatter_in_a_fusion():
    fused = "\n".join(
        [
            "%fused (p: f32[64]) -> f32[16] {",
            "  %p = f32[64] parameter(0)",
            "  %i = s32[] parameter(1)",
            f"  %s = f32[64] all-reduce(%p), replica_groups={ROWS}, to_apply=%sum",
            "  ROOT %r = f32[16] dynamic-slice(%s, %i), dynamic_slice_sizes={16}",
            "}",
        ]
    )
    whole = module(
        "%a = f32[64] parameter(0)\n%i = s32[] parameter(1)\n"
        "ROOT %f = f32[16] fusion(%a, %i), kind=kLoop, calls=%fused",
        fused,
    )
    body = whole.called("fused")
    (found,) = in_fusion(body, whole)
    assert (found.chain, found.starts, found.ends) == ("", True, True)
    assert keeps_slices(found.instruction, found.body)
    lines = Lines(MESH, whole.devices)
    assert lines.exchange(found.instruction, body, fused=True).kind == "reduce_scatter"
    assert lines.exchange(found.instruction, body).kind == "all_reduce"


def test_a_mesh_of_another_size_is_an_error_that_names_both():
    with pytest.raises(WorkloadError, match=r"compiled for 8 devices, but the mesh has 4 \(data 4\)"):
        sent("ROOT %r = f32[64,8] all-reduce(%a), replica_groups={}, to_apply=%sum", mesh={"data": 4})


def test_a_device_outside_the_program_is_an_error():
    with pytest.raises(WorkloadError, match="all-reduce %r names device 8 of 8"):
        sent("ROOT %r = f32[64,8] all-reduce(%a), replica_groups={{0,8}}, to_apply=%sum")
