"""FLOPs against formulas on paper, for every way in which a compiler writes a product."""

import json

import pytest

from cost_models.errors import WorkloadError
from cost_models.workload.workload import Kind
from tests.builders.hlo_texts import only, program

M, K, N = 24, 40, 56


def instruction(shapes, result, rest):
    lines = [f"%a{i} = {shape} parameter({i})" for i, shape in enumerate(shapes)]
    operands = ", ".join(f"%a{i}" for i in range(len(shapes)))
    return program("\n".join([*lines, f"ROOT %r = {result} {rest.replace('OPERANDS', operands)}"]))


def priced(shapes, result, rest):
    op = only(instruction(shapes, result, rest))
    return op.compiled.product_flops, tuple(size.fixed for size in op.gemm), op.kind, op.compiled.dtype


def test_a_dot_is_2mkn():
    found = priced(
        [f"bf16[{M},{K}]", f"bf16[{K},{N}]"],
        f"f32[{M},{N}]",
        "dot(OPERANDS), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
    )
    assert found == (2 * M * K * N, (1, M, N, K), Kind.DOT, "bfloat16")


def test_a_batched_dot_is_so_many_products():
    rest = "dot(OPERANDS), lhs_batch_dims={0}, lhs_contracting_dims={1}, rhs_batch_dims={0}, rhs_contracting_dims={2}"
    found = priced([f"f32[6,{K},{M}]", f"f32[6,{N},{K}]"], f"f32[6,{M},{N}]", rest)
    assert found == (2 * 6 * M * K * N, (6, M, N, K), Kind.DOT, "float32")


def test_cublas_states_what_it_contracts_and_its_scratch_is_no_result():
    config = {
        "gemm_backend_config": {
            "dot_dimension_numbers": {
                "lhs_contracting_dimensions": ["1"],
                "rhs_contracting_dimensions": ["1"],
                "lhs_batch_dimensions": [],
                "rhs_batch_dimensions": [],
            }
        }
    }
    rest = f'custom-call(OPERANDS), custom_call_target="__cublas$lt$matmul", backend_config={json.dumps(config)}'
    text = instruction([f"bf16[{M},{K}]", f"bf16[{N},{K}]"], f"(bf16[{M},{N}], s8[4194304])", rest)
    op = only(text)
    assert op.compiled.product_flops == 2 * M * K * N
    assert op.compiled.moved_bytes == 2 * (M * K + N * K + M * N)


def convolution(labels, window, more=""):
    return f"convolution(OPERANDS), window={{{window}}}, dim_labels={labels}{more}"


def test_a_convolution_counts_output_positions_times_the_window():
    rest = convolution("b01f_01io->b01f", "size=3x3 stride=2x2 pad=0_1x0_1")
    found = priced(["f32[5,16,16,8]", "f32[3,3,8,32]"], "f32[5,8,8,32]", rest)
    assert found == (2 * (5 * 8 * 8) * 32 * (9 * 8), (1, 5 * 8 * 8, 32, 9 * 8), Kind.CONV, "float32")


def test_the_gradient_of_strides_counts_no_holes():
    """The gradient of a stride of two is a convolution over an input with holes: a quarter of its positions work."""
    rest = convolution("b01f_01oi->b01f", "size=3x3 pad=2_1x2_1 lhs_dilate=2x2 rhs_reversal=1x1")
    found = priced(["f32[5,8,8,32]", "f32[3,3,8,32]"], "f32[5,16,16,8]", rest)
    assert found[0] == 2 * (5 * 16 * 16) * 8 * (9 * 32) // 4


def test_a_depthwise_convolution_is_one_thin_product_a_channel():
    rest = convolution("b01f_01io->b01f", "size=3x3 pad=1_1x1_1", ", feature_group_count=32")
    found = priced(["f32[5,8,8,32]", "f32[3,3,1,32]"], "f32[5,8,8,32]", rest)
    assert found[:3] == (2 * 5 * 8 * 8 * 32 * 9, (32, 5 * 8 * 8, 1, 9), Kind.CONV)


def test_the_gradient_of_a_depthwise_kernel_groups_the_batch():
    rest = convolution("f01b_i01o->01bf", "size=8x8 pad=1_1x1_1", ", batch_group_count=32")
    found = priced(["f32[5,8,8,32]", "f32[5,8,8,32]"], "f32[3,3,1,32]", rest)
    assert found[0] == 2 * 5 * 8 * 8 * 32 * 9


@pytest.mark.parametrize(
    ("labels", "window", "shapes", "result", "groups"),
    [
        # XLA:TPU's attention: batch and heads are spatial dimensions that step over holes
        (
            *("0b1f_0o1i->01bf", "size=8x4 stride=7x3 lhs_dilate=8x4"),
            *([f"bf16[8,{M},4,{K}]", f"bf16[8,{N},4,{K}]"], f"bf16[8,4,{M},{N}]", 8 * 4),
        ),
        (
            *("01bf_01io->01bf", "size=8x4 stride=8x4 pad=7_7x3_3 lhs_dilate=7x3 rhs_reversal=1x1"),
            *([f"bf16[8,4,{M},{K}]", f"bf16[8,4,{K},{N}]"], f"bf16[8,4,{M},{N}]", 8 * 4),
        ),
        (
            *("01bf_01io->01bf", "size=2x2 stride=2x1 pad=1_1x0_0 lhs_dilate=1x2 rhs_reversal=1x0"),
            *([f"bf16[2,2,{M},{K}]", f"bf16[2,2,{K},{N}]"], f"bf16[2,2,{M},{N}]", 2 * 2),
        ),
        # a projection into heads: the window of four slides over an input of one
        (
            *("0bf1_i1o0->0b1f", "size=1x4 pad=0_0x3_3 rhs_reversal=0x1"),
            *([f"bf16[8,{M},{K},1]", f"bf16[{K},4,{N},1]"], f"bf16[8,{M},4,{N}]", 8 * 4),
        ),
    ],
)
def test_a_product_that_is_written_as_a_convolution_counts_as_the_product(labels, window, shapes, result, groups):
    rest = convolution(labels, window, ', metadata={op_name="jit(train_step)/jvp(attention)/dot_general"}')
    flops, _, kind, _ = priced(shapes, result, rest)
    assert flops == 2 * groups * M * K * N
    assert kind is Kind.DOT


@pytest.mark.parametrize(
    ("target", "operands", "result"),
    [
        ("__cudnn$convForward", ["f32[5,16,16,8]", "f32[32,3,3,8]"], "f32[5,8,8,32]"),
        ("__cudnn$convBackwardInput", ["f32[5,8,8,32]", "f32[32,3,3,8]"], "f32[5,16,16,8]"),
        ("__cudnn$convBackwardFilter", ["f32[5,16,16,8]", "f32[5,8,8,32]"], "f32[32,3,3,8]"),
    ],
)
def test_cudnn_counts_the_same_forward_and_backward(target, operands, result):
    window = "window={size=3x3 stride=2x2}, dim_labels=b01f_o01i->b01f"
    rest = f'custom-call(OPERANDS), {window}, custom_call_target="{target}"'
    op = only(instruction(operands, f"({result}, u8[0])", rest))
    assert op.compiled.product_flops == 2 * (5 * 8 * 8) * 32 * (9 * 8)
    assert op.kind is Kind.CONV


def test_onednn_takes_its_operands_in_order():
    rest = 'custom-call(OPERANDS), custom_call_target="__onednn$matmul"'
    assert priced([f"f32[3,{M},{K}]", f"f32[{K},{N}]"], f"f32[3,{M},{N}]", rest)[0] == 2 * 3 * M * K * N


def test_a_kernel_whose_author_states_its_cost_is_believed():
    config = json.dumps({"custom_call_config": {"body": "TUzv", "cost_estimate": {"flops": 1234}}})
    rest = f'custom-call(OPERANDS), custom_call_target="tpu_custom_call", backend_config={config}'
    op = only(instruction(["f32[8]"], "f32[8]", rest))
    assert op.flops.fixed == 1234
    assert op.compiled.moved_bytes == 64


@pytest.mark.parametrize(
    ("shapes", "result", "rest", "flops"),
    [
        (["f32[8,16]"] * 2, "f32[8,16]", "multiply(OPERANDS)", 128),
        (["f32[8,16]"], "f32[8,16]", "tanh(OPERANDS)", 128),
        (["f32[8,16]", "f32[]"], "f32[8]", "reduce(OPERANDS), dimensions={1}, to_apply=%add", 128),
        (["f32[8,16]"], "f32[16,8]", "transpose(OPERANDS), dimensions={1,0}", 0),
        (["f32[8,16]"], "f32[8,16]", "sort(OPERANDS), dimensions={1}, to_apply=%less", 128 * 4),
        (["f32[8,16]", "f32[]"], "f32[4,16]", "reduce-window(OPERANDS), window={size=2x1 stride=2x1}", 64 * 2),
        (["f32[8,16]"], "c64[8,16]", "fft(OPERANDS), fft_type=FFT, fft_length={16}", 5 * 128 * 4),
        (["u64[2]"], "(u64[2], u32[100])", "rng-bit-generator(OPERANDS), algorithm=rng_default", 50 * 100),
    ],
)
def test_other_arithmetic_counts_as_the_traces_count_it(shapes, result, rest, flops):
    op = only(instruction(shapes, result, rest))
    assert op.flops.fixed == flops
    assert op.compiled.product_flops == 0


def test_a_convolution_that_names_no_dimensions_is_an_error():
    with pytest.raises(WorkloadError, match="convolution %r does not name its dimensions"):
        only(instruction(["f32[5,8,8,8]", "f32[3,3,8,8]"], "f32[5,8,8,8]", "convolution(OPERANDS)"))
