"""Values that XLA keeps in float32 in a step of a narrow dtype, on small chains."""

from dataclasses import replace

import pytest

from cost_models.workload.workload import ACROSS, NARROW_SUM, UNEVEN_PAD, Kind, Op
from cost_models.xla.passes.float_normalization import float_normalization
from cost_models.xla.profiles.choice import compiler_profile
from tests.builders.workloads import B, Step

X = 256
NARROW = frozenset({"bfloat16"})
PROFILE = replace(compiler_profile("gpu"), narrow=NARROW)
WITHOUT_NATIVE, ALL_NATIVE = replace(PROFILE, native=frozenset()), replace(PROFILE, narrow=frozenset())
ON_CPU = float_normalization.using(products=True, rounds=True)


def elementwise(step, reads, primitive, dtype="bfloat16"):
    return step.op(Kind.ELEMENTWISE, reads, (B, X), dtype=dtype, primitive=primitive)


def primitives_and_dtypes(workload):
    return [(op.primitive, *(workload.tensors[end].dtype for end in (*op.reads, *op.writes))) for op in workload.ops]


def test_a_chain_carries_float32_and_only_what_a_product_reads_is_rounded():
    step = Step()
    x, w = step.input(B, X, dtype="bfloat16"), step.weight("w", X, X, dtype="bfloat16")
    y = elementwise(step, (elementwise(step, (x, x), "mul"),), "tanh")
    end = step.op(Kind.DOT, (y, w), (B, X), dtype="bfloat16", primitive="dot_general")
    assert primitives_and_dtypes(float_normalization(step.workload(end), PROFILE, 0)) == [
        ("mul", "bfloat16", "bfloat16", "float32"),
        ("tanh", "float32", "float32"),
        ("convert_element_type", "float32", "bfloat16"),
        ("dot_general", "bfloat16", "bfloat16", "bfloat16"),
    ]


def test_down_and_up_again_is_the_value_that_was_there_before():
    step = Step()
    x = step.input(B, X)
    down = elementwise(step, (x,), "convert_element_type")
    up = elementwise(step, (down,), "convert_element_type", dtype="float32")
    end = elementwise(step, (up,), "neg", dtype="float32")
    view, negated = float_normalization(step.workload(end), PROFILE, 0).ops  # nobody reads the rounded one
    assert (view.kind, view.reads, negated.reads) == (Kind.VIEW, (x,), (up,))


def test_what_the_device_has_units_for_stays_narrow():
    step = Step()
    end = elementwise(step, (x := step.input(B, X, dtype="bfloat16"), x), "max")
    workload = step.workload(end)
    assert float_normalization(workload, PROFILE, 0) == workload


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_long_chains_are_expanded_in_float32_whatever_the_dtype(dtype):
    step = Step()
    x = step.input(B, X, dtype=dtype)
    end = step.op(Kind.EXPENSIVE, (x,), (B, X), dtype=dtype, primitive="erfc")
    assert primitives_and_dtypes(float_normalization(step.workload(end), PROFILE, 0)) == [
        ("erfc", dtype, "float32"),
        ("convert_element_type", "float32", dtype),
    ]


def test_float16_has_arithmetic_of_its_own():
    step = Step()
    end = elementwise(step, (x := step.input(B, X, dtype="float16"), x), "add", dtype="float16")
    workload = step.workload(end)
    assert float_normalization(workload, PROFILE, 0) == workload


def test_comparisons_of_narrow_values_read_what_their_operands_are_the_rounding_of():
    step = Step()
    x = step.input(B, X, dtype="bfloat16")
    y = elementwise(step, (x, x), "mul")
    end = elementwise(step, (y,), "is_finite", dtype="bool")
    product, finite = float_normalization(step.workload(end), PROFILE, 0).ops
    assert finite.reads == product.writes


def test_where_products_run_in_float32_they_read_it():
    step = Step()
    x, w = step.input(B, X, dtype="float16"), step.weight("w", X, X, dtype="float16")
    end = step.op(Kind.DOT, (x, w), (B, X), dtype="float16", primitive="dot_general")
    assert primitives_and_dtypes(float_normalization.using(products=True)(step.workload(end), ALL_NATIVE, 0)) == [
        ("convert_element_type", "float16", "float32"),
        ("convert_element_type", "float16", "float32"),
        ("dot_general", "float32", "float32", "float32"),
        ("convert_element_type", "float32", "float16"),
    ]


def test_bodies_of_loops_are_widened_too():
    step = Step()
    x = step.input(B, X, dtype="bfloat16")
    end = elementwise(step, (x, x), "mul")
    body = tuple(step.ops)
    step.ops = [Op(Kind.LOOP, "scan", (x,), (end,), repeat=3, body=body, results=(end,))]
    (found,) = float_normalization(step.workload(end), PROFILE, 0).ops
    assert [op.primitive for op in found.body] == ["mul", "convert_element_type"]


def test_where_every_result_is_rounded_each_reader_converts_it_up_again():
    step = Step()
    x, w = step.input(B, X, dtype="bfloat16"), step.weight("w", X, X, dtype="bfloat16")
    y = elementwise(step, (elementwise(step, (x,), "exp"),), "tanh")
    end = step.op(Kind.DOT, (y, w), (B, X), dtype="bfloat16", primitive="dot_general")
    up, down = ("convert_element_type", "bfloat16", "float32"), ("convert_element_type", "float32", "bfloat16")
    assert primitives_and_dtypes(ON_CPU(step.workload(end), replace(PROFILE, native=frozenset()), 0)) == [
        *(up, ("exp", "float32", "float32"), down),
        *(up, ("tanh", "float32", "float32"), down),
        *(up, up, ("dot_general", "float32", "float32", "float32"), down),
    ]


def test_what_the_step_itself_converts_up_of_a_product_is_the_product():
    step = Step()
    x, w = step.input(B, X, dtype="bfloat16"), step.weight("w", X, X, dtype="bfloat16")
    y = step.op(Kind.DOT, (x, w), (B, X), dtype="bfloat16", primitive="dot_general")
    up = elementwise(step, (y,), "convert_element_type", dtype="float32")
    ops = ON_CPU(step.workload(up), replace(PROFILE, native=frozenset()), 0).ops
    product = next(op for op in ops if op.kind is Kind.DOT)
    assert (ops[-1].kind, ops[-1].reads) == (Kind.VIEW, product.writes)


def test_a_product_in_another_order_is_read_across_by_what_reads_it_in_float32():
    step = Step()
    x, w = step.input(B, X, dtype="bfloat16"), step.weight("w", X, X, dtype="bfloat16")
    y = step.op(Kind.DOT, (x, w), (X, B), dtype="bfloat16", primitive="dot_general")
    turned = step.op(Kind.VIEW, (y,), (B, X), dtype="bfloat16", primitive="transpose")
    end = elementwise(step, (turned,), "convert_element_type", dtype="float32")
    ops = cpu(step, end).ops
    product = next(op for op in ops if op.kind is Kind.DOT)
    assert (ops[-1].primitive, ops[-1].reads, ops[-1].writes) == (ACROSS, product.writes, (end,))
    assert all(product.writes[0] not in op.reads for op in ops[:-1])  # and nothing rounds it


def cpu(step, *outputs):
    return ON_CPU(step.workload(*outputs), replace(PROFILE, native=frozenset()), 0)


def test_what_a_convolution_pads_by_itself_is_converted_before():
    step = Step()
    x, w = step.input(B, X, dtype="bfloat16"), step.weight("w", 3, X)
    padded = step.op(Kind.MOVE, (x,), (B, X + 1), dtype="bfloat16", primitive=UNEVEN_PAD)
    end = step.op(Kind.CONV, (padded, w), (B, X), dtype="bfloat16")
    assert primitives_and_dtypes(cpu(step, end))[1:3] == [
        ("convert_element_type", "bfloat16", "float32"),
        (UNEVEN_PAD, "float32", "float32"),
    ]


def test_a_sum_of_narrow_values_reads_what_a_product_reads_converted():
    for conversions in (1, 2):
        step = Step()
        x, other = (step.input(B, X, dtype="bfloat16") for _ in range(2))
        total = step.op(Kind.REDUCE, (x,), (X,), dtype="bfloat16", primitive="reduce_sum")
        read = x if conversions == 1 else other
        end = step.op(Kind.DOT, (read, step.weight("w", X, X)), (B, X), dtype="bfloat16")
        made = primitives_and_dtypes(cpu(step, total, end))
        assert made.count(("convert_element_type", "bfloat16", "float32")) == conversions
        assert (NARROW_SUM, "float32", "float32") in made  # no library sums it


def test_what_a_loop_takes_parts_of_is_converted_before_the_loop():
    step = Step()
    stack, other = step.input(9, B, X, dtype="bfloat16"), step.input(B, X, dtype="bfloat16")
    part, out = step.tensor(B, X, dtype="bfloat16"), step.tensor(B, X)
    body = (Op(Kind.MOVE, "dynamic_slice", (stack,), (part,)),)
    step.ops.append(Op(Kind.LOOP, "scan", (stack, other), (out,), repeat=9, body=body, results=(part,)))
    conversion, loop = cpu(step, out).ops
    assert (conversion.primitive, conversion.reads) == ("convert_element_type", (stack,))
    assert loop.reads == (*conversion.writes, other)
    assert loop.body[0].reads == conversion.writes


@pytest.mark.parametrize("order", ["transpose", "flatten"])
def test_what_a_product_reads_in_another_order_is_converted_before(order):
    step = Step()
    x, w = step.input(B, 4, X, dtype="bfloat16"), step.weight("w", X, X)
    moved = step.op(Kind.MOVE, (x,), (B, 4, X), dtype="bfloat16", primitive=order)
    end = step.op(Kind.DOT, (moved, w), (B, 4, X), dtype="bfloat16")
    assert primitives_and_dtypes(cpu(step, end)) == [
        ("convert_element_type", "bfloat16", "float32"),
        (order, "float32", "float32"),
        ("dot", "float32", "float32", "float32"),
        ("convert_element_type", "float32", "bfloat16"),
    ]
