"""Attention in one kernel, as Keras chooses it for devices that are not here: FLOPs, operands and results by hand."""

import keras
import pytest

from cost_models.hardware.platform import HOST, TargetPlatform
from cost_models.workload.affine import Affine
from cost_models.workload.workload import Kind, Phase, walk
from tests.models.attending import A100, BATCH, H100, HEAD, HEADS, LENGTH, TPU, V100, kept, traced


def attention(workload):
    return [op for op in walk(workload.ops) if op.kind is Kind.ATTENTION]


def has_scores(workload):
    return any(dims(workload, end)[-2:] == (LENGTH, LENGTH) for op in walk(workload.ops) for end in op.writes)


def dims(workload, tensor):
    return tuple(round(dim.at(BATCH)) for dim in workload.tensors[tensor].shape)


@pytest.mark.parametrize(("causal", "suffix", "share"), [(False, "", 1), (True, "_causal", 2)])
def test_a_gpu_from_ampere_on_has_one_kernel_of_attention_for_each_pass(causal, suffix, share):
    workload = kept(A100, causal)
    forward, backward = attention(workload)
    assert (forward.primitive, backward.primitive) == ("attention_forward" + suffix, "attention_backward" + suffix)
    assert (forward.phase, backward.phase) == (Phase.FORWARD, Phase.BACKWARD)
    product = 2 * HEADS * LENGTH * LENGTH * HEAD
    assert forward.flops == Affine(0, 2 * product // share)
    assert backward.flops == Affine(0, 5 * product // share)
    assert not has_scores(workload)


def test_cudnns_attention_keeps_its_result_and_one_number_for_each_query_and_head():
    workload = kept(A100, True)
    forward, backward = attention(workload)
    heads = (BATCH, LENGTH, HEADS, HEAD)
    assert [dims(workload, end) for end in forward.reads] == [heads] * 3
    assert [dims(workload, end) for end in forward.writes] == [heads, (BATCH, HEADS, LENGTH)]
    assert [workload.tensors[end].dtype for end in forward.writes] == ["bfloat16", "float32"]
    assert set(forward.writes) < set(backward.reads)
    assert [dims(workload, end) for end in backward.writes] == [heads] * 3


def test_attention_in_one_kernel_has_the_models_flops_of_the_products_that_it_replaces():
    assert kept(A100, True).model_flops == kept(HOST, True).model_flops
    row_sums = Affine(0, 2 * HEADS * LENGTH * HEAD)  # splash attention sums results times gradients by a product
    assert kept(TPU, False).model_flops == kept(HOST, False).model_flops + row_sums


def test_a_masked_attention_reads_its_mask_as_a_bias_and_writes_its_gradient():
    forward, backward = attention(traced(A100, causal=False, mask="pairs"))
    assert len(forward.reads) == 4
    assert len(backward.writes) == 4


@pytest.mark.parametrize(
    ("platform", "how"),
    [
        (HOST, {}),
        (V100, {}),
        (A100, {"dtype": "float32"}),
        (A100, {"dropout": 0.1}),
        (A100, {"head": 136}),
        (A100, {"mask": "keys", "causal": False}),
        (TargetPlatform("gpu"), {}),
    ],
    ids=["CPU", "before Ampere", "float32", "dropout", "wide heads", "padded keys", "not NVIDIA's"],
)
def test_elsewhere_scores_are_in_memory(platform, how):
    workload = traced(platform, **{"causal": True} | how)
    assert not attention(workload)
    assert has_scores(workload)


def test_hopper_takes_wider_heads():
    assert len(attention(traced(H100, causal=True, head=136))) == 2


def test_a_tpu_has_splash_attention_in_three_kernels_and_a_causal_mask_even_where_the_layer_has_none():
    workload = kept(TPU, False)
    names = [op.primitive for op in attention(workload)]
    suffixes = ("forward", "backward_queries", "backward_keys")
    assert sorted(names) == sorted(f"attention_{suffix}_causal" for suffix in suffixes)
    product = 2 * HEADS * LENGTH * LENGTH * HEAD
    flops = {op.primitive: op.flops for op in attention(workload)}
    assert flops["attention_forward_causal"] == Affine(0, product)
    assert flops["attention_backward_queries_causal"] == Affine(0, 3 * product // 2)
    assert flops["attention_backward_keys_causal"] == Affine(0, 2 * product)


def test_a_causal_layer_on_a_tpu_falls_back_because_its_mask_is_traced():
    workload = kept(TPU, True)
    assert not attention(workload)
    assert has_scores(workload)


def test_a_layer_without_flash_attention_has_none_anywhere():
    keras.config.disable_flash_attention()
    try:
        assert not attention(traced(A100, causal=True))
    finally:
        keras.config.enable_flash_attention()
