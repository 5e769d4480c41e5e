"""Tables of narrow rows: what is copied into whole rows, and what is copied back."""

from dataclasses import replace

import pytest

from cost_models.workload.affine import Affine
from cost_models.workload.workload import Kind, Phase
from cost_models.xla.buffers.vmem import vmem
from cost_models.xla.passes.embedding_layout import embedding_layout
from cost_models.xla.profiles.choice import compiler_profile
from tests.builders.workloads import B, Step

LANES, ROWS, COUNT = 128, 8, 8192
ROOM = 4 * COUNT * LANES


def profile(room):
    return replace(compiler_profile("tpu"), buffer_rules=(vmem.using(room=room),))


def embedding(width, *, factored=False, gathered="float32"):
    """rows = table[indices]; gradient = zeros.at[indices].add(d); table -= gradient."""
    step = Step()
    table = step.weight("table", COUNT, width)
    indices = step.input(B, 1, dtype="int32")
    rows = step.op(Kind.GATHER, (table, indices), (B, width), dtype=gathered)
    step.phase = Phase.BACKWARD
    zeros = step.op(Kind.BROADCAST, (), (COUNT, width))
    gradient = step.op(Kind.SCATTER, (zeros, indices, rows), (COUNT, width))
    step.phase = Phase.UPDATE
    sums = (step.op(Kind.REDUCE, (gradient,), (COUNT,)),) if factored else ()
    step.new_value(table, step.op(Kind.ELEMENTWISE, (table, gradient, *sums), (COUNT, width), primitive="sub"))
    return step.workload()


def made(workload):
    """(kind, dtype, width) of what each operation writes."""
    ends = [(op.kind, workload.tensors[op.writes[0]]) for op in workload.ops]
    return [(kind, tensor.dtype, tensor.shape[-1]) for kind, tensor in ends]


def test_rows_that_fill_tiles_stay_as_they_are():
    workload = embedding(128)
    assert embedding_layout(workload, profile(ROOM), 0) is workload


def test_a_table_whose_copy_has_no_room_on_the_chip_stays_as_it_is():
    wide, narrow = embedding(16), embedding(16, gathered="bfloat16")
    assert Affine(128) not in {width for _, _, width in made(embedding_layout(wide, profile(ROOM - 1), 0))}
    assert Affine(128) in {width for _, _, width in made(embedding_layout(narrow, profile(ROOM - 1), 0))}


@pytest.mark.parametrize(("length", "width", "laid"), [(50, 32, (128, 32)), (8, 16, (8, 128))])
def test_what_is_scattered_into_such_a_table_was_laid_out_otherwise(length, width, laid):
    step = Step()
    table = step.weight("table", COUNT, width)
    indices = step.input(B, length, dtype="int32")
    rows = step.op(Kind.GATHER, (table, indices), (B, length, width))
    step.phase = Phase.BACKWARD
    zeros = step.op(Kind.BROADCAST, (), (COUNT, width))
    step.op(Kind.SCATTER, (zeros, indices, rows), (COUNT, width))
    found = embedding_layout(step.workload(), profile(ROOM - 1), 0)
    *_, copy, scatter = found.ops
    assert [round(dim.fixed) for dim in found.tensors[copy.reads[0]].shape[1:]] == list(laid)
    assert [round(dim.fixed) for dim in found.tensors[scatter.reads[-1]].shape[1:]] == [length, width]


def test_a_narrow_table_is_copied_as_it_is_gathered_and_its_gradient_copied_back():
    found = made(embedding_layout(embedding(16, gathered="bfloat16"), profile(ROOM), 0))
    assert found == [
        (Kind.COPY, "bfloat16", Affine(128)),  # of the table
        (Kind.GATHER, "bfloat16", Affine(16)),
        (Kind.BROADCAST, "float32", Affine(16)),
        (Kind.COPY, "bfloat16", Affine(128)),  # of what is scattered
        (Kind.SCATTER, "float32", Affine(128)),
        (Kind.COPY, "float32", Affine(16)),
        (Kind.ELEMENTWISE, "float32", Affine(16)),
    ]


def test_zeros_to_scatter_into_are_not_there_before():
    ops = embedding_layout(embedding(16), profile(ROOM), 0).ops
    zeros = next(op.writes[0] for op in ops if op.kind is Kind.BROADCAST)
    assert all(zeros not in op.reads for op in ops)


def test_an_update_that_sums_rows_works_on_whole_rows():
    workload = embedding_layout(embedding(16, factored=True), profile(ROOM), 0)
    assert made(workload)[-3:] == [
        (Kind.REDUCE, "float32", Affine(COUNT)),
        (Kind.ELEMENTWISE, "float32", Affine(128)),
        (Kind.COPY, "float32", Affine(16)),
    ]
    *_, update, back = workload.ops
    table_copy = next(op.writes[0] for op in workload.ops if op.kind is Kind.COPY)
    assert table_copy in update.reads
    assert back.writes == (workload.variables[0].result,)
