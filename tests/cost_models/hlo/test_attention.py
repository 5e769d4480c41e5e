"""Custom calls of attention, as XLA:GPU and XLA:TPU write them: FLOPs by hand."""

import pytest

from cost_models.workload.affine import Affine
from cost_models.workload.workload import Kind
from tests.builders.hlo_texts import only, program, read

B, N, T, S, H = 8, 4, 256, 128, 64
PRODUCT = 2 * B * N * T * S * H


def cudnn(target, mask="NO_MASK", dimensions=(B, N, T, S)):
    listed = ", ".join(f'"{size}"' for size in dimensions)
    config = (
        '{"cudnn_fmha_backend_config": {"intermediate_tensor_shape": '
        f'{{"element_type": "BF16", "dimensions": [{listed}]}}, "mask_type": "{mask}"}}}}'
    )
    return program(
        f"""%q = bf16[{B},{T},{N},{H}] parameter(0)
        %k = bf16[{B},{S},{N},{H}] parameter(1)
        %v = bf16[{B},{S},{N},{H}] parameter(2)
        ROOT %r = (bf16[{B},{N},{T},{H}]{{3,1,2,0}}, f32[{B},{N},{T}], u8[0]) custom-call(%q, %k, %v), \
custom_call_target="{target}", backend_config={config}""".replace("\\\n", "")
    )


@pytest.mark.parametrize(
    ("target", "mask", "primitive", "flops"),
    [
        ("__cudnn$fmhaSoftmax", "NO_MASK", "attention_forward", 2 * PRODUCT),
        ("__cudnn$fmhaSoftmax", "CAUSAL", "attention_forward_causal", PRODUCT),
        ("__cudnn$fmhaScaleBiasSoftmaxBackward", "PADDING", "attention_backward", 5 * PRODUCT),
    ],
)
def test_cudnns_attention_has_two_products_forward_and_five_backward(target, mask, primitive, flops):
    op = only(cudnn(target, mask))
    assert (op.kind, op.primitive) == (Kind.ATTENTION, primitive)
    assert op.gemm == tuple(map(Affine, (B * N, T, S, H)))
    assert op.flops == Affine(flops)
    assert (op.compiled.product_flops, op.compiled.dtype) == (flops, "bfloat16")
    assert op.compiled.moved_bytes == 2 * (2 * B * T * N * H + 2 * B * S * N * H) + 4 * B * N * T


def test_a_call_that_does_not_state_its_scores_is_counted_by_its_bytes():
    workload = read(cudnn("__cudnn$fmhaSoftmax", dimensions=(B, T)))
    assert [one.primitive for one in workload.unknown_ops] == ["__cudnn$fmhaSoftmax"]


def splash(part, positions=""):
    operands = "%n, %q, %k, %s, %t" + (", %p" if positions else "")
    return program(
        f"""%n = s8[1,2,2] parameter(0)
        %q = bf16[{B},{N},{T},{H}] parameter(1)
        %k = bf16[{B},{N},{S},{H}] parameter(2)
        %s = s32[{B},{T},128] parameter(3)
        %t = s32[{B},8,{S}] parameter(4)
        %p = s32[{T},128] parameter(5)
        ROOT %splash = bf16[{B},{N},{T},{H}] custom-call({operands}), custom_call_target="tpu_custom_call", """
        f'metadata={{op_name="jit(train_step)/splash_mha_{part}_segmented/pallas_call"}}'
    )


@pytest.mark.parametrize(
    ("part", "primitive", "products"),
    [("fwd", "attention_forward", 2), ("dq", "attention_backward_queries", 3), ("dkv", "attention_backward_keys", 4)],
)
def test_splash_attention_has_seven_products_backward_in_two_kernels(part, primitive, products):
    full, causal = only(splash(part)), only(splash(part, positions="given"))
    assert (full.kind, full.primitive, full.flops) == (Kind.ATTENTION, primitive, Affine(products * PRODUCT))
    assert (causal.primitive, causal.flops) == (primitive + "_causal", Affine(products * PRODUCT // 2))
    assert full.gemm == causal.gemm == tuple(map(Affine, (B * N, T, S, H)))


def test_a_kernel_of_another_name_is_no_attention():
    assert only(splash("sort")).kind is Kind.CUSTOM


def test_text_of_several_lines_ends_no_computation():
    """Pallas writes its metadata so, in every instruction that came from the kernel."""
    noted = 'frontend_attributes={kernel_metadata={\n"block_q": 128\n}}, metadata={op_name="jit(f)/a/add"}'
    text = program(f"%a = f32[4] parameter(0)\nROOT %r = f32[4] add(%a, %a), {noted}")
    text = text.replace("  }}, metadata", "}}, metadata").replace('  "block_q"', '"block_q"')
    op = only(text)
    assert (op.primitive, op.layer) == ("add", "a")
