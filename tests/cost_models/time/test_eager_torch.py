"""Kernels of a library against bytes counted by hand, in elements of (batch, rows, columns)."""

from dataclasses import replace

import pytest

from cost_models.time.eager_torch import library_kernels
from cost_models.time.kernels import kernel_table
from cost_models.workload.affine import Affine
from cost_models.workload.workload import Kind, Phase
from cost_models.xla.buffers.schedule import Updates
from cost_models.xla.profiles.choice import compiler_profile
from tests.builders.workloads import B, Step, attention

ROWS, COLUMNS = 64, 512
BIG, ROW = 8 * ROWS * COLUMNS, 8 * ROWS  # elements at a batch of 8


def moved(workload, layer, phase=Phase.FORWARD):
    """Bytes of each kernel of a layer and pass."""
    found = library_kernels(workload)
    table = kernel_table(found, compiler_profile("gpu"), Updates.AT_ONCE)
    owners = [(op.layer, op.phase) for op in found.ops if op.kind is not Kind.BARRIER]
    assert len(owners) == len(table.runs)
    sizes = table.bytes_at(8)
    return [size for size, owner in zip(sizes, owners, strict=True) if owner == (layer, phase)]


def elementwise(step, *reads, dtype="float16"):
    return step.op(Kind.ELEMENTWISE, reads, (B, ROWS, COLUMNS), dtype=dtype, flops=Affine(0, ROWS * COLUMNS))


def softmax(step, x):
    """exp(x) / sum(exp(x)) over the columns, whose sums float32 keeps."""
    step.layer = "softmax"
    powers = elementwise(step, x)
    sums = step.op(Kind.REDUCE, (powers,), (B, ROWS))
    return elementwise(step, powers, sums), sums


def test_a_row_stays_on_the_chip():
    step = Step()
    x = step.input(B, ROWS, COLUMNS, dtype="float16")
    weights, _ = softmax(step, x)
    step.layer = "next"
    end = elementwise(step, weights)
    assert moved(step.workload(end), "softmax") == [2 * BIG + 2 * BIG]


def test_sums_over_columns_need_a_kernel_of_their_own():
    step = Step()
    x = step.input(B, ROWS, COLUMNS, dtype="float16")
    step.layer = "norm"
    wide = elementwise(step, x, dtype="float32")
    mean = step.op(Kind.REDUCE, (wide,), (COLUMNS,))
    out = elementwise(step, wide, mean)
    step.layer = "next"
    end = elementwise(step, out)
    assert moved(step.workload(end), "norm") == [2 * BIG + 4 * COLUMNS, 2 * BIG + 2 * BIG]


def test_a_backward_pass_reads_operands_and_not_what_lay_between():
    step = Step()
    x = step.input(B, ROWS, COLUMNS, dtype="float16")
    step.layer = "activation"
    between = elementwise(step, x, dtype="float32")
    out = elementwise(step, between)
    step.layer = "next"
    end = elementwise(step, out)
    step.phase = Phase.BACKWARD
    gradient = elementwise(step, end)
    step.layer = "activation"
    back = elementwise(step, gradient, between)
    step.layer = "before"
    last = elementwise(step, back)
    workload = step.workload(last)
    assert moved(workload, "activation") == [2 * BIG + 2 * BIG]
    assert moved(workload, "activation", Phase.BACKWARD) == [2 * BIG + 2 * BIG + 2 * BIG]


def test_masks_of_dropout_are_kept():
    step = Step()
    x, key = step.input(B, ROWS, COLUMNS, dtype="float16"), step.input(2, dtype="uint32")
    step.layer = "dropout"
    bits = step.op(Kind.RANDOM, (key,), (B, ROWS, COLUMNS), dtype="uint32", flops=Affine(0, 50 * ROWS * COLUMNS))
    mask = elementwise(step, bits, dtype="bool")
    out = elementwise(step, mask, x)
    step.layer = "next"
    end = elementwise(step, out)
    step.phase = Phase.BACKWARD
    gradient = elementwise(step, end)
    step.layer = "dropout"
    back = elementwise(step, mask, gradient)
    step.layer = "before"
    last = elementwise(step, back)
    workload = step.workload(last)
    assert moved(workload, "dropout") == [8 + 2 * BIG + BIG + 2 * BIG]
    assert moved(workload, "dropout", Phase.BACKWARD) == [BIG + 2 * BIG + 2 * BIG]
    random = next(op for op in library_kernels(workload).ops if op.layer == "dropout")
    assert random.flops.at(1) == (50 / 2 + 2) * ROWS * COLUMNS


def test_a_library_may_have_kernels_for_some_layers_and_passes_alone():
    step = Step()
    x = step.input(B, COLUMNS)
    for layer in ("norm", "activation"):
        step.layer = layer
        x = step.op(Kind.ELEMENTWISE, (step.op(Kind.ELEMENTWISE, (x,), (B, COLUMNS)),), (B, COLUMNS))
    found = library_kernels(step.workload(x), has_kernel=_is_norm)
    assert [(op.layer, op.kind) for op in found.ops] == [
        ("norm", Kind.CUSTOM), ("activation", Kind.ELEMENTWISE), ("activation", Kind.ELEMENTWISE), ("", Kind.BARRIER),
    ]  # fmt: skip


def _is_norm(layer, phase):
    return layer == "norm" and phase is Phase.FORWARD


def test_layers_with_products_keep_their_kernels_and_write_what_they_hand_on():
    step = Step()
    w, x = step.weight("w", COLUMNS, COLUMNS), step.input(B, COLUMNS)
    step.layer = "dense"
    y = step.dot(x, w, (B, COLUMNS), B, COLUMNS, COLUMNS)
    biased = step.op(Kind.ELEMENTWISE, (y,), (B, COLUMNS))
    step.layer = "activation"
    a = step.op(Kind.ELEMENTWISE, (biased,), (B, COLUMNS))
    step.layer = "another"
    end = step.op(Kind.ELEMENTWISE, (a,), (B, COLUMNS))
    found = library_kernels(step.workload(end))
    assert [op.kind for op in found.ops] == [
        Kind.DOT, Kind.ELEMENTWISE, Kind.CUSTOM, Kind.CUSTOM, Kind.BARRIER,
    ]  # fmt: skip
    assert found.ops[-1].reads == (biased, a)


def test_every_kernel_reads_what_came_before_it():
    step = Step()
    x = step.input(B, ROWS, COLUMNS, dtype="float16")
    first, _ = softmax(step, x)
    step.layer = "between"
    second = elementwise(step, first)
    step.layer = "softmax"
    third = elementwise(step, second)
    step.layer = "end"
    found = library_kernels(step.workload(elementwise(step, third)))
    known = {x}
    for op in found.ops:
        assert known.issuperset(op.reads)
        known.update(op.writes)
    assert [op.layer for op in found.ops[:-1]] == ["softmax", "between", "softmax", "end"]


@pytest.mark.parametrize("layer", ["", "compile_loss/crossentropy"])
def test_what_is_no_layer_and_the_loss_stay_as_they_are(layer):
    step = Step()
    x = step.input(B, ROWS, COLUMNS, dtype="float16")
    step.layer = layer
    both = elementwise(step, elementwise(step, x))
    found = library_kernels(step.workload(both))
    assert [op.kind for op in found.ops] == [Kind.ELEMENTWISE, Kind.ELEMENTWISE, Kind.BARRIER]


def test_causal_attention_is_still_found():
    """Its mask is made in the layer around the products, which therefore keeps its operations."""
    made = attention(1024, causal=True)
    around = tuple(op if op.kind is Kind.DOT else replace(op, layer="attention") for op in made.ops)
    found = library_kernels(replace(made, ops=around))
    assert [op.primitive for op in found.ops[:-1]] == [op.primitive for op in made.ops]
    assert kernel_table(found, compiler_profile("gpu"), Updates.AT_ONCE).attention.causal


def biased_dense(step):
    """x w + b, whose sum another layer reads."""
    w, b = step.weight("w", COLUMNS, COLUMNS), step.weight("b", COLUMNS)
    x = step.input(B, COLUMNS)
    step.layer = "dense"
    y = step.dot(x, w, (B, COLUMNS), B, COLUMNS, COLUMNS)
    biased = step.op(Kind.ELEMENTWISE, (y, step.op(Kind.BROADCAST, (b,), (B, COLUMNS))), (B, COLUMNS), primitive="add")
    step.layer = "next"
    return y, biased, step.op(Kind.ELEMENTWISE, (biased,), (B, COLUMNS))


def test_a_product_adds_its_bias():
    step = Step()
    y, biased, end = biased_dense(step)
    found = library_kernels(step.workload(end))
    product = next(op for op in found.ops if op.kind is Kind.DOT)
    assert product.writes == (biased,)
    assert all(y not in op.writes and y not in op.reads for op in found.ops)
    apart = library_kernels(step.workload(end), biases_apart=True)
    assert next(op for op in apart.ops if op.kind is Kind.DOT).writes == (y,)


def test_a_product_that_something_else_reads_is_written():
    step = Step()
    y, biased, end = biased_dense(step)
    other = step.op(Kind.ELEMENTWISE, (y, end), (B, COLUMNS))
    found = library_kernels(step.workload(other))
    assert next(op for op in found.ops if op.kind is Kind.DOT).writes == (y,)
    assert any(biased in op.writes for op in found.ops)
