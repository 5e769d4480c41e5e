"""Reads published rows and decides, from a row alone, whether it is estimated or why it is left out."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from cost_models.time.software import OptimizerKernels
from studies.time_vs_published import zoo
from studies.time_vs_published.traces import Traced

HERE = Path(__file__).resolve().parent
_DTYPES = {
    "fp32": "float32", "tf32": "float32", "fp32(tf32 on Ampere+)": "float32", "float32": "float32",
    "amp": "mixed_float16", "fp16": "mixed_float16", "fp16-amp": "mixed_float16", "amp-fp16": "mixed_float16",
    "amp_bf16": "mixed_bfloat16", "bf16/PURE": "mixed_bfloat16", "bf16": "mixed_bfloat16", "bf16-TE": "mixed_bfloat16",
}  # fmt: skip
_CHIPS = {
    "a100-40gb": "gpu-a100-40gb", "a100-40gb-sxm": "gpu-a100-40gb", "a100-40gb-sxm(aws p4d)": "gpu-a100-40gb",
    "a100-40gb-pcie": "gpu-a100-40gb-pcie", "a100-80gb": "gpu-a100-80gb", "a100-80gb-sxm": "gpu-a100-80gb",
    "a100-80gb-pcie": "gpu-a100-80gb-pcie", "h100-80gb": "gpu-h100-80gb", "h100-80gb-sxm": "gpu-h100-80gb",
    "h100-80gb-pcie": "gpu-h100-80gb-pcie", "h100-80gb-sxm(a3-highgpu-8g)": "gpu-h100-80gb",
    "v100-16gb-sxm": "gpu-v100-16gb", "v100-32gb-sxm": "gpu-v100-32gb", "v100-32gb": "gpu-v100-32gb",
    "v100-32gb-sxm(dgx2)": "v100-sxm3", "rtx-2080ti-11gb": "gpu-rtx-2080ti", "rtx-3090-24gb": "gpu-rtx-3090",
    "rtx-3090": "gpu-rtx-3090", "rtx-4090-24gb": "gpu-rtx-4090", "rtx-a6000-48gb": "gpu-a6000",
    "rtx-6000ada-48gb": "gpu-rtx-6000-ada", "a10-24gb": "gpu-a10", "h100-96gb-hbm2e-500w": "h100-hbm2e",
    "quadro-rtx8000-48gb": "quadro-rtx-8000", "quadro-rtx6000-24gb": "quadro-rtx-6000", "titan-rtx-24gb": "titan-rtx",
    "rtx-3080-10gb": "rtx-3080", "rtx-a5000-24gb": "rtx-a5000", "a40-48gb": "a40",
    "tpu-v4": "tpu-v4", "tpu-v5e": "tpu-v5e", "tpu-v5p": "tpu-v5p", "tpu-v6e": "tpu-v6e",
}  # fmt: skip
_BERT = {"base": {"d_model": 768, "heads": 12, "layers": 12, "ffn": 3072, "vocab": 30522}}
_BERT["large"] = {"d_model": 1024, "heads": 16, "layers": 24, "ffn": 4096, "vocab": 30522}
_LLAMA = {"gated": True, "untied": True}


_BERT_ADAM = OptimizerKernels(34, 22, waits=True)
"""Norm 1, first moment 5, second 5, quotient 7, decay 5, step 7; clipping of all gradients 3, zeroing 1 (NVIDIA
DeepLearningExamples, PyTorch BERT, `optimization.py` and `run_squad.py` in float32; every norm is read back)."""
_APEX = OptimizerKernels(13.5)
"""Apex O2: gradients to float32 1.5, norm and clipping 3, FusedAdam 7, weights to float16 1.5, zeroing 0.5."""
_HF_ADAMW = OptimizerKernels(22, 9)
"""Moments 10, root 4, step 4, clipping 3, zeroing 1 (transformers 4.1x, `optimization.py`)."""
_TORCH_ADAMW = OptimizerKernels(21)
"""Decay 2, moments 8, root and correction 6, step 4, zeroing 1 (`torch.optim.adamw`, for lists of tensors)."""
_SGD = OptimizerKernels(12, 5)
"""Decay 3, momentum 5, step 3, zeroing 1 (`torch.optim.sgd` before it took lists)."""
_RMSPROP_EMA = OptimizerKernels(28, 13)
"""Decay 3, square 5, root 4, momentum 5, step 3, zeroing 1, and 7 for the average of weights and statistics (NVIDIA
DeepLearningExamples, PyTorch ConvNets, EfficientNet)."""


@dataclass(frozen=True)
class Case:
    """A row to estimate.

    layers            blocks of a transformer (traced with one and with two); 0 for other models
    stack             "xla"; "compiled" (another compiler that fuses); "layers" (one library kernel per layer and pass,
                      as PyTorch without a compiler); "operations" (one kernel per operation, as TensorFlow without one)
    attention         the library of a fused attention kernel: "triton", "flash-2", "chip" (the fastest known), or ""
    nchw              whether 16-bit convolutions are channels-first, which matrix units do not support
    of_2020           whether the kernels are from about 2020
    bridged           whether bridges join pairs of cards
    biases_apart      whether biases are added by separate kernels, as in PyTorch before 1.12
    overlaps          whether gradients are exchanged during the backward pass; TensorFlow's XLA exchanges them after it
    framework         the framework, with its version
    gather_bytes      bytes per element when weights are gathered
    reduce_bytes      bytes per element when gradients are reduced
    measured_seconds  seconds of one micro-step
    update            kernels of the optimizer; None: one kernel per variable, as traced
    exact_float32     whether matrix products do not use TF32: PyTorch's default, which NVIDIA's containers change
    peak_bytes        the published peak memory of a device; 0 if not published
    """

    row: str
    source: str
    family: str
    model: str
    traced: Traced
    layers: int
    chip: str
    devices: int
    devices_per_host: int
    batch: int
    accumulation: int
    shard_state: bool
    stack: str
    attention: str
    nchw: bool
    gather_bytes: int
    reduce_bytes: int
    measured_seconds: float
    peak_bytes: float = 0.0
    outcome: str = "ok"
    exact_float32: bool = False
    update: OptimizerKernels | None = None
    of_2020: bool = False
    bridged: bool = False
    overlaps: bool = True
    biases_apart: bool = False
    framework: str = ""


@dataclass(frozen=True)
class Excluded:
    """A row that is not estimated, with the reason."""

    row: str
    source: str
    reason: str


def read() -> tuple[list[Case], list[Excluded]]:
    """Return the published rows to estimate and those left out."""
    found = [_sorted(row) for row in _rows()]
    return [one for one in found if isinstance(one, Case)], [one for one in found if isinstance(one, Excluded)]


def _rows() -> Iterator[dict[str, Any]]:
    for name in ("published.csv", "timm.csv"):
        with (HERE / name).open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                yield row if "source" in row else row | {"source": "timm", "id": _timm_id(row)}


def _timm_id(row: dict[str, str]) -> str:
    return f"timm-{row['model']}-{'nchw' if row['memory_format'] == 'nchw' else 'nhwc'}-{row['img_size']}"


_NEVER = {
    "korthikanti2022": "tensor and pipeline parallel: Keras has no counterpart of sequence-parallel layers",
    "megatron-bridge": "float8 and float4 kernels, tensor and pipeline parallel: no Keras counterpart",
    "flax": "wall time with evaluation, checkpoints and compilation in it",
    "levanter": "the batch is not published",
    "habana-ascend": "no published figures of these chips are in the catalogue",
    "litgpt": "throughput over texts of unknown lengths; the rows only have memory",
    "tpu-wiki": "a custom per-layer-embedding decoder with kernels of its own; its shape is not in the rows",
    "tpu-oom": "memory messages, no time",
    "mar": "a diffusion model whose shape is not in the rows",
}
_NO_MODEL = {
    "ssd300-rn50": "input-bound by augmentation on the host, and a loss with matching of its own",
    "nnunet-2d": "patch sizes and widths are not in the rows",
    "nnunet-3d": "patch sizes and widths are not in the rows",
    "transformer-big-mt": "batches of tokens in sentences of unknown lengths",
    "unet-medical(572->388)": "input-bound: one image a micro-step, augmented on the host",
}


def _sorted(row: dict[str, Any]) -> Case | Excluded:
    def out(reason: str) -> Excluded:
        return Excluded(row["id"], row["source"], reason)

    if row["source"] in _NEVER or row["model"] in _NO_MODEL:
        return out(_NEVER.get(row["source"]) or _NO_MODEL[row["model"]])
    if "SUSPECT" in (row.get("note") or ""):
        return out(f"flagged in the data: {row['note'].partition('SUSPECT')[2].strip(': ')}")
    if row["source"] != "timm" and row["hw"] not in _CHIPS:
        return out(f"the {row['hw']} is not among the chips that this study prices")
    if row["precision"] not in _DTYPES:
        return out(f"{row['precision']} is not among the precisions that are built here (8 bits have no counterpart)")
    return _READERS[row["source"]](row, out)


def _timm(row: dict[str, Any], out: Any) -> Case | Excluded:
    found = zoo.timm(row["model"])
    if found is None:
        return out("no counterpart in Keras (pruned, routed, or normalised by layers of its own)")
    kind, options = found
    if kind in ("vit", "mixer"):
        options = options | {"autocast": True}
    traced = Traced(kind, int(row["img_size"]), "mixed_float16", "nesterov", json.dumps(options), 8)
    family = "transformer" if kind in ("vit", "mixer") else "convolutional"
    batch = int(row["batch"])
    return replace(
        _plain(row, traced, family),
        chip="gpu-rtx-3090",
        batch=batch,
        nchw=row["memory_format"] == "nchw" and family == "convolutional",
        update=_SGD,
        biases_apart=True,
        measured_seconds=batch / float(row["samples_per_s"]),
    )


def _plain(row: dict[str, Any], traced: Traced, family: str) -> Case:
    """Return a case of one device with kernels of PyTorch without a compiler."""
    return Case(
        row["id"], row["source"], family, row["model"], traced, 0, _CHIPS.get(row.get("hw", ""), ""), 1, 1, 1, 1,
        shard_state=False, stack="layers", attention="", nchw=False, gather_bytes=4, reduce_bytes=4,
        measured_seconds=0.0, peak_bytes=_peak(row), framework=row.get("framework") or "",
    )  # fmt: skip


def _peak(row: dict[str, Any]) -> float:
    if row.get("peak_mem_mib_nvsmi"):
        return float(row["peak_mem_mib_nvsmi"]) * 2**20
    return float(row.get("peak_mem_gib") or 0) * 2**30


def _arch(row: dict[str, Any], **more: Any) -> dict[str, Any]:
    arch = json.loads(row["arch"])
    arch.pop("mlp", None)
    return {**arch, **more}


def _decoder(row: dict[str, Any], arch: dict[str, Any], **changes: Any) -> Case:
    layers = arch["layers"]
    options = json.dumps({"arch": arch | {"layers": 1}, "remat": row.get("remat") == "full"})
    traced = Traced("decoder", int(row["seq"]), _DTYPES[row["precision"]], "adamw", options)
    devices = int(row["n"])
    case = replace(_plain(row, traced, "transformer"), layers=layers, devices=devices, devices_per_host=min(8, devices))
    case = replace(
        case,
        batch=int(float(row["micro_batch"])),
        shard_state=True,
        gather_bytes=2,
        **({"attention": "chip"} | changes),
    )
    if row["tokens_per_s_per_device"]:
        rate = float(row["tokens_per_s_per_device"]) / int(row["seq"])
        case = replace(case, measured_seconds=case.batch / rate)
    return case


_FLASH_2 = "flash-2"
_OF_2024 = ("H100 80GB BF16 (Large Scale, >= 128 GPUs)",)
"""The table for which `submit_benchmarks.py` installed flash-attn 2.4 (commit 5e85bd62d, January 2024).

The other tables are of 2023 (commits up to c6cfb4284, and b2a43a147), when its default was `--attn_impl triton`.
"""


def _llm_foundry(row: dict[str, Any], out: Any) -> Case | Excluded:
    if row["sharding"] != "FULL_SHARD":
        return out("SHARD_GRAD_OP: weights stay whole between forward and backward; no such layout here")
    pure = row["precision"] == "bf16/PURE"
    arch = _arch(row)
    accumulation = int(float(row["grad_accum"] or 1))
    attention = _FLASH_2 if row["section"] in _OF_2024 else "triton"
    return _decoder(row, arch, accumulation=accumulation, reduce_bytes=2 if pure else 4, attention=attention)


def _torchtitan(row: dict[str, Any], out: Any) -> Case | Excluded:
    parallel = json.loads(row["parallel"])
    if set(parallel) - {"fsdp", "dp"}:
        return out("tensor, context or pipeline parallel")
    stack = "compiled" if "compile" in row["technique"] else "layers"
    return _decoder(row, _arch(row, **_LLAMA), stack=stack, attention=_FLASH_2)  # PyTorch's own is FlashAttention-2


def _maxtext(row: dict[str, Any], out: Any) -> Case | Excluded:
    parallel = json.loads(row["parallel"])
    if parallel.get("tp", 1) > 1:
        return out("tensor parallel")
    if parallel.get("dcn_dp", 1) > 1:
        return out("several slices: state split inside and copied between them; no such layout here")
    if row["remat"] != "full":
        return out(f"remat {row['remat']}: a selection of named tensors")
    case = _decoder(row, _arch(row, **_LLAMA), stack="xla", devices_per_host=1)
    arch = _arch(row, **_LLAMA)
    flops = case.batch * _maxtext_flops(arch, int(row["seq"]))
    return replace(case, measured_seconds=flops / (float(row["tflops_per_device"]) * 1e12))


def _maxtext_flops(arch: dict[str, Any], length: int) -> float:
    """Return the FLOPs of a sample as MaxText does: per token 6 x matrix parameters + 12 x layers x width x length."""
    heads = arch["heads"] * arch.get("head_dim", arch["d_model"] // arch["heads"])
    kv = heads * arch.get("kv_heads", arch["heads"]) // arch["heads"]
    layer = 3 * arch["d_model"] * arch["ffn"] + arch["d_model"] * (2 * heads + 2 * kv)
    matrices = arch["layers"] * layer + arch["d_model"] * arch["vocab"]
    return length * (6.0 * matrices + 12.0 * arch["layers"] * heads * length)


def _recipes(row: dict[str, Any], out: Any) -> Case | Excluded:
    if not row["arch"] or not row["micro_batch"]:
        return out("shape or batch not published, or a mixture of experts")
    if row["remat"] != "full" or row["slices"] not in ("", "1"):
        return out(f"remat {row['remat']}: named tensors kept or moved to the host; or several slices")
    return _decoder(row, _arch(row), stack="xla", devices_per_host=1)


def _nv_dle(row: dict[str, Any], out: Any) -> Case | Excluded:
    if not row["micro_batch"]:
        return out("the batch is not published")
    policy, model = _DTYPES[row["precision"]], row["model"]
    accumulation = int(float(row["grad_accum"] or 1))
    case = _measured(row, _nv_traced(row, model, policy), accumulation)
    stack = "xla" if "XLA" in row["framework"] else "layers"
    if model in ("bert-large", "electra-base") and row["seq"] == "384" and policy == "float32":
        # ELECTRA's `run_squad.sh` asks for XLA in mixed precision alone, and so does BERT's guide ("fp32 false").
        stack = "operations"
    if row["framework"] == "pytorch":
        case = replace(case, update=_RMSPROP_EMA if model.startswith("efficientnet") else _SGD)
    return replace(case, of_2020=True, stack=stack, overlaps=stack != "xla")


def _measured(row: dict[str, Any], traced: Traced, accumulation: int = 1) -> Case:
    devices, batch = int(row["n"]), int(float(row["micro_batch"]))
    family = "transformer" if traced.kind in ("encoder", "electra") else "convolutional"
    return replace(
        _plain(row, traced, family),
        devices=devices,
        devices_per_host=min(16 if "dgx2" in row["hw"] else 8, devices),
        batch=batch,
        accumulation=accumulation,
        layers=json.loads(traced.options)["arch"]["layers"] if family == "transformer" else 0,
        measured_seconds=batch * devices / float(row["samples_per_s"]),
    )


def _nv_traced(row: dict[str, Any], model: str, policy: str) -> Traced:
    image = int(float(row["image"])) if row["image"] else 0
    length = int(float(row["seq"])) if row["seq"] else 0
    if model == "bert-large":
        head = "span" if length == 384 else "words"
        return _encoder("large", length, policy, row["optimizer"], head)
    if model == "electra-base":
        if length == 384:
            return _encoder("base", length, policy, "adamw", "span")
        options = json.dumps({"arch": _BERT["base"], "words": "everywhere"})
        return Traced("electra", length, policy, "lamb", options)
    kinds: dict[str, tuple[str, dict[str, Any], str]] = {
        "resnet50-v1.5": ("resnet", {"depth": 50}, "sgd"),
        "resnext101-32x4d": ("resnet", {"depth": 101, "base": 128, "groups": 32}, "sgd"),
        "efficientnet-b0": ("efficientnet", {"version": "b0"}, "rmsprop"),
        "efficientnet-b4": ("efficientnet", {"version": "b4"}, "rmsprop"),
        "efficientnetv2-s": ("application", {"of": "EfficientNetV2S"}, "rmsprop"),
    }
    kind, settings, optimizer = kinds[model.removesuffix("(keras)")]
    return Traced(kind, image, policy, optimizer, json.dumps(settings), 8)


def _encoder(size: str, length: int, policy: str, optimizer: str, head: str, *, plain: bool = False) -> Traced:
    arch = _BERT[size] | ({"plain": True} if plain else {})
    return Traced("encoder", length, policy, optimizer, json.dumps({"arch": arch, "head": head}))


@cache
def _steady() -> dict[str, float]:
    """Return the seconds of a micro-step by row, for rows with logs (`logs.py`)."""
    with (HERE / "steady.csv").open(newline="", encoding="utf-8") as file:
        return {row["id"]: float(row["seconds"]) for row in csv.DictReader(file)}


def _lambda(row: dict[str, Any], out: Any) -> Case | Excluded:
    policy, model = _DTYPES[row["precision"]], row["model"]
    shared = row["section"].startswith(("results/LambdaCloud_", "results/Linode_")) and "RTX6000" in row["section"]
    if shared and policy == "mixed_float16" and not model.startswith("bert"):
        return out("waits for images decoded on a shared host (its logs, and the same card in a workstation)")
    bert = model.startswith("bert")
    if bert:
        traced = _encoder(model.partition("-")[2], 384, policy, "adam", "span", plain=True)
    else:
        traced = Traced("resnet", 224, policy, "sgd", json.dumps({"depth": 50}), 8)
    half = policy == "mixed_float16"
    case = replace(_measured(row, traced), reduce_bytes=4 if row["precision"] == "amp" or not half else 2)
    if row["id"] in _steady():
        case = replace(case, measured_seconds=_steady()[row["id"]])
    case = replace(case, bridged="NVLink" in row["note"], of_2020="ngc22" not in row["framework"], nchw=not bert)
    case = replace(case, biases_apart=case.of_2020)
    return replace(case, update=(_APEX if half else _BERT_ADAM) if bert else _SGD)


def _keras_bench(row: dict[str, Any], out: Any) -> Case | Excluded:
    if row["mode"] != "fit" or row["model"] != "bert-base":
        return out("generation, low-rank adaptation with most weights frozen, or a model of other packages")
    native = row["framework"] == "native-pytorch-eager"
    case = _measured(row, _encoder("base", 512, "float32", "adamw", "class", plain=native))
    if "torch" in row["framework"]:
        case = replace(case, update=_TORCH_ADAMW)
    stacks = {"keras3-jax": "xla", "keras3-tf": "xla", "native-pytorch-compiled": "compiled", "keras2-tf": "operations"}
    exact = row["framework"] in ("native-pytorch-eager", "keras3-torch-eager")
    return replace(case, stack=stacks.get(row["framework"], "layers"), exact_float32=exact)


def _hf(row: dict[str, Any], out: Any) -> Case | Excluded:
    if row["model"] != "bert-large":
        return out("sentences padded to unknown lengths")
    if row["remat"] not in ("none", ""):
        return out("remat of an encoder with dropout: not in this study's models")
    traced = _encoder("large", int(float(row["seq"])), _DTYPES[row["precision"]], "adamw", "class", plain=True)
    return replace(_measured(row, traced, int(float(row["grad_accum"]))), update=_HF_ADAMW, biases_apart=True)


def _jax_toolbox(row: dict[str, Any], out: Any) -> Case | Excluded:
    parallel = json.loads(row["parallel"])
    if not row["arch"] or set(parallel) - {"dp"}:
        return out("shape not published, or an encoder-decoder over unknown lengths, or other parallelism")
    if "TE" in row["precision"]:
        return out("TransformerEngine: fused kernels with no Keras counterpart")
    case = _decoder(row, _arch(row, vocab=50304, bias=True, positions=True), stack="xla")
    return replace(case, shard_state=False, attention="")


_READERS = {
    "timm": _timm, "llm-foundry": _llm_foundry, "torchtitan": _torchtitan, "maxtext": _maxtext,
    "tpu-recipes": _recipes, "nv-dle": _nv_dle, "lambda": _lambda, "keras-bench": _keras_bench, "hf-perf": _hf,
    "jax-toolbox": _jax_toolbox,
}  # fmt: skip
