"""Which calls of attention Keras computes in one kernel, by shapes, masks and hardware."""

from __future__ import annotations

import pytest

from autoplan.plan.attention_calls import AttentionCall


def call(length=256, width=64, source=None, value=None, **more):
    query, key = [1, length, 4, width], [1, source or length, 4, width]
    return AttentionCall(layer="one", query=query, key=key, value=[*key[:3], value or width], **more)


@pytest.mark.parametrize(
    ("dtype", "capability", "width", "fuses"),
    [
        ("bfloat16", 8.0, 128, True),
        ("float16", 8.0, 128, True),
        ("float32", 8.0, 128, False),
        ("bfloat16", 7.5, 128, False),
        ("bfloat16", None, 128, False),
        ("bfloat16", 8.0, 256, False),
        ("bfloat16", 9.0, 256, True),
        ("bfloat16", 9.0, 264, False),
        ("bfloat16", 8.0, 20, False),
    ],
)
def test_a_gpu_fuses_16_bit_attention_of_some_widths(dtype, capability, width, fuses):
    assert call(width=width).fuses_on_gpu(dtype, capability) is fuses
    assert call(width=width, causal=True, masked=True).fuses_on_gpu(dtype, capability) is fuses


def test_values_of_another_width_need_hopper():
    assert [call(value=32).fuses_on_gpu("bfloat16", one) for one in (8.0, 9.0)] == [False, True]


@pytest.mark.parametrize(
    ("one", "fuses"),
    [
        (call(128), True),
        (call(384), True),
        (call(196), False),
        (call(64), False),
        (call(256, causal=True), False),
        (call(256, masked=True), False),
        (call(256, source=128), False),
        (AttentionCall(layer="of unknown shapes"), True),
    ],
)
def test_a_tpu_fuses_attention_to_all_positions_of_whole_blocks(one, fuses):
    assert one.fuses_on_tpu is fuses
