"""Reads published rows and decides, from a row alone, whether its memory is estimated or why it is left out."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

from cost_models import Batch, Layout, Mesh, Precision, Remat, RematMode, TrainConfig
from cost_models.hardware.cluster import Cluster
from cost_models.hardware.description import from_mapping
from cost_models.hardware.lookup import cluster
from studies.time_vs_published.cases import Excluded
from studies.time_vs_published.traces import Traced

HERE = Path(__file__).resolve().parent
_BYTES = {"GiB": 2**30, "MiB": 2**20, "GB": 10**9}
_BASES = {
    "a100-40gb": "gpu-a100-40gb", "a100": "gpu-a100-80gb", "h100": "gpu-h100-80gb", "h200": "gpu-h100-80gb",
    "v100": "gpu-v100-32gb", "rtx-20": "gpu-rtx-2080ti", "quadro-rtx": "gpu-rtx-2080ti", "titan-rtx": "gpu-rtx-2080ti",
    "gtx-1080ti": "gpu-v100-16gb", "rtx-30": "gpu-rtx-3090", "rtx-a": "gpu-a6000", "a40": "gpu-a6000", "a10": "gpu-a10",
    "tpu-v5e": "tpu-v5e-1",
}  # fmt: skip
"""Chips of the catalogue by the first letters of a row's, with the same rules of memory. Cards before Ampere share
theirs."""
_SIZE = re.compile(r"-(\d+)gb")
_BERT = {"base": {"d_model": 768, "heads": 12, "layers": 12, "ffn": 3072, "vocab": 30522}}
_BERT["large"] = {"d_model": 1024, "heads": 16, "layers": 24, "ffn": 4096, "vocab": 30522}


class Stack(StrEnum):
    """The software that ran a row.

    LIBRARY      PyTorch without a compiler: a kernel for each layer and pass, whose operands are kept
    WITHOUT_NORM the same, but the model writes its norms with single operations (litgpt)
    WITHOUT_GELU the same, but it writes GELU so (NVIDIA DeepLearningExamples, PyTorch BERT, `modeling.py`, `bias_gelu`)
    COMPILED     PyTorch with a compiler that fuses; stated by XLA's rules
    """

    LIBRARY = "library"
    WITHOUT_NORM = "library without norms"
    WITHOUT_GELU = "library without GELU"
    COMPILED = "compiled"


@dataclass(frozen=True)
class Case:
    """A row to estimate.

    family           group of the tables
    figure           the kind of the published figure (`sources.csv`)
    fused_attention  whether scores stay on the chip
    keeps_gradients  whether all gradients stay allocated between micro-steps: PyTorch before 2.0 fills them with zeros,
                     and accumulation adds to them
    peak_bytes       the published figure; None: only the outcome is known
    context_bytes    the part of it that the source says is the driver's context
    outcome          "ok" or "oom"
    remat            the rematerialization of the estimate, "none" or "full"
    is_bound         whether the row's own rematerialization lies between the two
    """

    row: str
    source: str
    family: str
    model: str
    traced: Traced
    hw: str
    devices: int
    batch: int
    stack: Stack
    outcome: str
    peak_bytes: float | None
    context_bytes: float
    fused_attention: bool = False
    keeps_gradients: bool = True
    shard_state: bool = False
    remat: str = "none"
    is_bound: bool = False

    @property
    def config(self) -> TrainConfig:
        """The configuration of the row, for Keras on JAX."""
        data = self.devices if self.shard_state else 1
        return TrainConfig(
            Batch(self.batch, data),
            precision=Precision(self.traced.precision),
            mesh=Mesh(data),
            layout=Layout(self.shard_state),
            remat=Remat(RematMode(self.remat)),
        )

    @property
    def place(self) -> Cluster:
        """The devices of the row, as far as the estimate depends on them."""
        return device(self.hw)

    @property
    def live_bytes(self) -> float | None:
        """The published figure less the stated context."""
        return None if self.peak_bytes is None else self.peak_bytes - self.context_bytes


def read() -> tuple[list[Case], list[Excluded]]:
    """Return the published rows to estimate and those left out."""
    found = [one for row in table("published.csv") for one in _sorted(row)]
    return [one for one in found if isinstance(one, Case)], [one for one in found if isinstance(one, Excluded)]


@cache
def device(hw: str) -> Cluster:
    """Return one device with the memory that the row's name says. Other figures are the base chip's."""
    base = next(name for start, name in _BASES.items() if hw.startswith(start))
    size = _SIZE.search(hw)
    if size is None:
        return cluster(base)
    known, memory_bytes = cluster(base).to_dict(), int(size[1]) * 2**30
    known["chip"] |= {"memory_bytes": memory_bytes, "usable_memory_bytes": memory_bytes}
    return from_mapping(known)


@cache
def sources() -> dict[str, dict[str, str]]:
    """Return the rows of `sources.csv` by source."""
    return {row["source"]: row for row in table("sources.csv")}


def table(name: str) -> Iterator[dict[str, str]]:
    """Return the rows of a file of this folder."""
    with (HERE / name).open(newline="", encoding="utf-8") as file:
        yield from csv.DictReader(file)


_NEVER = {
    "tpu-wiki": "a decoder with an embedding in each layer; its shape is not in the rows",
    "mar": "a diffusion model whose shape is not in the rows",
    "tpu-oom": "widths of the MLP or of the whole model are not in the rows",
}


def _sorted(row: dict[str, str]) -> list[Case] | list[Excluded]:
    """Return the estimates of a row, or why there are none."""
    found = _NEVER[row["source"]] if row["source"] in _NEVER else _READERS[row["source"]](row)
    if isinstance(found, str):
        return [Excluded(row["id"], row["source"], found)]
    return found if isinstance(found, list) else [found]


def _case(row: dict[str, str], family: str, traced: Traced) -> Case:
    peak = float(row["peak"]) * _BYTES[row["unit"]] if row["peak"] else None
    context = float(sources()[row["source"]]["context_mib"]) * 2**20
    devices, batch = int(row["n"] or 1), int(row["micro_batch"])
    return Case(
        row["id"], row["source"], family, row["model"], traced, row["hw"], devices, batch, Stack.LIBRARY,
        row["outcome"], peak, context,
    )  # fmt: skip


def _hf(row: dict[str, str]) -> Case | str:
    if row["optimizer"] not in ("adamw", "adafactor"):
        return "moments of 8 bits have no counterpart"
    precision = {"fp32": "float32", "fp16-amp": "mixed_float16"}[row["precision"]]
    options = json.dumps({"arch": _BERT["large"], "remat": row["remat"] == "full"})
    traced = Traced("classifier", int(row["seq"]), precision, row["optimizer"], options)
    if row["remat"] == "full":
        return replace(_case(row, "BERT, blocks recomputed", traced), remat="full")
    return _case(row, "BERT", traced)


def _lambda(row: dict[str, str]) -> Case | str:
    precision = "float32" if row["precision"] == "fp32" else "mixed_float16"
    if row["model"].startswith("bert"):
        arch = _BERT[row["model"].partition("-")[2]] | {"plain": True}
        traced = Traced("encoder", int(row["seq"]), precision, "adam", json.dumps({"arch": arch, "head": "span"}))
        return replace(_case(row, "BERT", traced), stack=Stack.WITHOUT_GELU)
    return _case(row, "ResNet-50", Traced("resnet", 224, precision, "sgd", json.dumps({"depth": 50}), 8))


_GATED = {"gated": True}
_GEMMA = {"gated": True, "act": "gelu", "head_dim": 256, "vocab": 256000}
_LITGPT: dict[str, dict[str, Any]] = {
    "falcon-7b": {"d_model": 4544, "heads": 71, "kv_heads": 1, "layers": 32, "ffn": 18176, "vocab": 65024}
    | {"parallel": True, "shared_norm": True},
    "gemma-2b": {"d_model": 2048, "heads": 8, "kv_heads": 1, "layers": 18, "ffn": 16384} | _GEMMA,
    "gemma-7b": {"d_model": 3072, "heads": 16, "layers": 28, "ffn": 24576} | _GEMMA,
    "gemma2-2b": {"d_model": 2304, "heads": 8, "kv_heads": 4, "layers": 26, "ffn": 9216, "softcap": 50.0} | _GEMMA,
    "gemma2-9b": {"d_model": 3584, "heads": 16, "kv_heads": 8, "layers": 42, "ffn": 14336, "softcap": 50.0} | _GEMMA,
    "llama-2-7b": {"d_model": 4096, "heads": 32, "layers": 32, "ffn": 11008, "vocab": 32000} | _GATED,
    "llama-3.1-8b": {"d_model": 4096, "heads": 32, "kv_heads": 8, "layers": 32, "ffn": 14336, "vocab": 128256} | _GATED,
    "llama-3.2-3b": {"d_model": 3072, "heads": 24, "kv_heads": 8, "layers": 28, "ffn": 8192, "vocab": 128256} | _GATED,
    "mistral-7b-v0.2": {"d_model": 4096, "heads": 32, "kv_heads": 8, "layers": 32, "ffn": 14336, "vocab": 32000}
    | _GATED,
    "stablelm-base-alpha-3b": {"d_model": 4096, "heads": 32, "layers": 16, "ffn": 16384, "vocab": 50688}
    | {"parallel": True, "bias": True, "rotary": 0.25},
    "tiny-llama": {"d_model": 2048, "heads": 32, "kv_heads": 4, "layers": 22, "ffn": 5632, "vocab": 32000} | _GATED,
}
"""Shapes of the models by the folder of `config_hub/finetune` (`litgpt/config.py` at 26857050)."""
_QUERY_AND_VALUE = {"rank": 32, "dropout": 0.05, "of": ["q", "v"]}
_EVERYWHERE = ["q", "k", "v", "all"]
_LORA: dict[str, dict[str, Any]] = {
    "gemma-2b": {"rank": 8, "dropout": 0.1, "of": _EVERYWHERE},
    "gemma-7b": {"rank": 16, "dropout": 0.1, "of": _EVERYWHERE},
    "gemma2-2b": {"rank": 8, "dropout": 0.1, "of": _EVERYWHERE},
    "gemma2-9b": {"rank": 16, "dropout": 0.1, "of": _EVERYWHERE},
    "tiny-llama": {"rank": 32, "dropout": 0.05, "of": _EVERYWHERE},
}
"""Settings of `lora.yaml`; other models have those of `_QUERY_AND_VALUE`."""
_ALL_TRAINED = {"rank": 0, "dropout": 0.0, "of": []}
_SHARDED = ("gemma-2b", "llama-2-7b", "stablelm-base-alpha-3b")
"""Models whose rows with all weights ran on several devices: FSDP with rematerialized blocks
(`litgpt/finetune/full.py`)."""

_CONTRADICTED = ("llama-3.2-3b",)
"""Models whose figure contradicts `full.yaml` (AdamW, one device): 3.2 billion weights, gradients and two moments of 16
bits are 25.7 GB, more than the device has; 16.51 GB are published."""


def _litgpt(row: dict[str, str]) -> Case | str:
    if row["quant"] or row["mode"] == "qlora":
        return "weights of 4 bits have no counterpart"
    folder = row["section"].removeprefix("config_hub/finetune ").partition("/")[0]
    if folder not in _LITGPT:
        return "the length of the samples is not in the row"
    full = row["mode"] == "full"
    if full and folder in _SHARDED:
        return "blocks gathered from other devices and rematerialized (FSDP)"
    if full and folder in _CONTRADICTED:
        return "the figure is less than the bytes of weights, gradients and moments that its settings need"
    lora = _ALL_TRAINED if full else _LORA.get(folder, _QUERY_AND_VALUE)
    options = json.dumps({"arch": _LITGPT[folder], "lora": lora})
    traced = Traced("finetuned", int(row["seq"]), "bfloat16", "adamw", options)
    family = "decoder, all weights" if full else "decoder, LoRA"
    case = replace(_case(row, family, traced), model=folder, stack=Stack.WITHOUT_NORM)
    return replace(case, devices=1, fused_attention="softcap" not in _LITGPT[folder])


def _torchtitan(row: dict[str, str]) -> list[Case] | str:
    if set(json.loads(row["parallel"])) - {"fsdp"}:
        return "tensor, context or pipeline parallelism"
    if row["precision"] != "bf16":
        return "products of 8 bits"
    arch = json.loads(row["arch"]) | {"gated": True, "untied": True}
    stack = Stack.COMPILED if "compile" in row["technique"] else Stack.LIBRARY
    return [_bound(row, arch, stack, remat) for remat in ("full", "none")]


def _bound(row: dict[str, str], arch: dict[str, Any], stack: Stack, remat: str) -> Case:
    options = json.dumps({"arch": arch, "remat": remat == "full"})
    traced = Traced("decoder", int(row["seq"]), "mixed_bfloat16", "adamw", options)
    case = replace(_case(row, "decoder, FSDP", traced), stack=stack, remat=remat, is_bound=True, shard_state=True)
    return replace(case, fused_attention=True, keeps_gradients=False)


_READERS: dict[str, Callable[[dict[str, str]], Case | list[Case] | str]]
_READERS = {"hf-perf": _hf, "lambda": _lambda, "litgpt": _litgpt, "torchtitan": _torchtitan}
