"""Compiles real training steps for absent chips with Keras and JAX alone; nothing of `autoplan` is imported.

    python -m studies.memory_vs_compiler.lowering FILE [--target NAME] [--model NAME]

Adds to a CSV the bytes that each compiler states, for cases that have no row. Keras's questions for the platform are
answered by replacing the names by which it asks. `python -m studies.memory_vs_compiler --same` compiles the same cases
with the product and compares all figures.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import yaml

FIGURES = {
    "argument_bytes": "argument_size_in_bytes",
    "output_bytes": "output_size_in_bytes",
    "alias_bytes": "alias_size_in_bytes",
    "temporary_bytes": "temp_size_in_bytes",
    "peak_bytes": "peak_memory_in_bytes",
}
COLUMNS = ["target", "devices", "model", *FIGURES, "refused"]
DEVICES = (1, 4)
PRECISION, BATCH = "mixed_bfloat16", 8
TARGETS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "A100": ("cuda", "gpu-a100-80gb", {"topology": "1x1x8"}),
    "H100": ("cuda", "gpu-h100-80gb", {"topology": "1x1x8"}),
    "TPU v4": ("tpu", "v4:2x2x1", {"chip_config_name": "megacore", "chips_per_host_bounds": [2, 2, 1]}),
    "TPU v5e": ("tpu", "v5e:2x2", {"chips_per_host_bounds": [2, 2, 1]}),
}
_DESCRIPTIONS = Path(__file__).parents[2] / "cost_models" / "hardware" / "devices" / "xla_gpu.yaml"
"""Data of OpenXLA about GPUs."""


def _block(x: Any, attention: Any, **call: Any) -> Any:
    from keras import layers

    y = layers.LayerNormalization()(x)
    x = x + attention(y, y, **call)
    y = layers.Dense(4 * x.shape[-1], "gelu")(layers.LayerNormalization()(x))
    return x + layers.Dense(x.shape[-1])(y)


def _language(length: int, attention: Callable[[], Any], causal: bool) -> tuple[Any, Any]:
    import keras
    from keras import layers

    tokens = keras.Input((length,), dtype="int32")
    x = layers.Embedding(4096, 256)(tokens)
    for _ in range(1):
        x = _block(x, attention(), **({"use_causal_mask": True} if causal else {}))
    x = layers.LayerNormalization()(x)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    if causal:
        return keras.Model(tokens, layers.Dense(4096)(x)), loss
    return keras.Model(tokens, layers.Dense(4)(layers.GlobalAveragePooling1D()(x))), loss


def _vit(side: int) -> tuple[Any, Any]:
    import keras
    from keras import layers

    pixels = keras.Input((side, side, 3))
    x = layers.Conv2D(256, 16, strides=16)(pixels)
    x = layers.Reshape(((side // 16) ** 2, 256))(x)
    for _ in range(1):
        x = _block(x, layers.MultiHeadAttention(8, 32))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return keras.Model(pixels, layers.Dense(100)(layers.GlobalAveragePooling1D()(x))), loss


def _gru() -> tuple[Any, Any]:
    import keras
    from keras import layers

    x = inputs = keras.Input((128, 64))
    for _ in range(2):
        x = layers.GRU(256, return_sequences=True)(x)
    return keras.Model(inputs, layers.Dense(4)(x)), "mse"


def _heads() -> Any:
    from keras import layers

    return layers.MultiHeadAttention(8, 32)


def _grouped() -> Any:
    from keras import layers

    return layers.GroupQueryAttention(32, 8, 2)


MODELS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "decoder": lambda: _language(512, _heads, causal=True),
    "encoder": lambda: _language(512, _heads, causal=False),
    "vit_196": lambda: _vit(224),
    "vit_256": lambda: _vit(256),
    "gqa_decoder": lambda: _language(512, _grouped, causal=True),
    "gru": _gru,
    "encoder_unfused": lambda: _language(512, _heads, causal=False),
    "vit_256_unfused": lambda: _vit(256),
}
UNFUSED = "_unfused"
"""Cases after `keras.config.disable_flash_attention()`, as plans have it on TPUs, where one kernel would be causal."""


def compiled_model(name: str) -> Any:
    """Return the model of a case, compiled with AdamW."""
    import keras

    keras.config.set_dtype_policy(PRECISION)
    if name.endswith(UNFUSED):
        keras.config.disable_flash_attention()
    else:
        keras.config.enable_flash_attention()
    model, loss = MODELS[name]()
    model.compile(keras.optimizers.AdamW(1e-3), loss)
    return model


class _Jax:
    """The module `jax` of which `devices()` is that of the target."""

    def __init__(self, platform: str) -> None:
        self._platform = platform

    def devices(self) -> list[Any]:
        return [mock.Mock(platform=self._platform)]

    def __getattr__(self, name: str) -> Any:
        import jax

        return getattr(jax, name)


@contextmanager
def _as_on(platform: str) -> Iterator[None]:
    from jax._src.cudnn import fused_attention_stablehlo as cudnn
    from keras.src.backend.jax import nn, numpy

    with mock.patch.object(nn, "jax", _Jax(platform)), mock.patch.object(numpy, "_uses_cpu", return_value=False):
        if platform == "tpu":
            yield
            return
        with (
            mock.patch.object(cudnn, "check_cudnn_version", return_value=91000),
            mock.patch.object(cudnn, "check_compute_capability", return_value=True),
            mock.patch.object(cudnn, "is_cuda_compute_capability_equal", return_value=False),
        ):
            yield


def _gpu_text(name: str) -> str:
    """Return the `GpuTargetConfigProto` of a GPU as text."""
    data = yaml.safe_load(_DESCRIPTIONS.read_text())
    chip = {**data["common"], **data["chips"][name.removeprefix("gpu-")]}
    words, (major, minor) = chip.pop("description"), chip.pop("compute_capability")
    versions = {name: dict(zip(("major", "minor"), pair, strict=True)) for name, pair in data["runtime"].items()}
    fields = " ".join(f"{key}: {value}" for key, value in chip.items())
    dnn, runtime = versions["dnn_version"], versions["runtime_version"]
    return (
        f"gpu_device_info {{ {fields} cuda_compute_capability {{ major: {major} minor: {minor} }} }}\n"
        f'platform_name: "CUDA" device_description_str: "{words}"\n'
        f"dnn_version_info {{ major: {dnn['major']} minor: {dnn['minor']} }}\n"
        f"runtime_version {{ major: {runtime['major']} minor: {runtime['minor']} }}"
    )


def _devices(target: str, count: int) -> list[Any]:
    from jax.experimental import topologies

    platform, name, options = TARGETS[target]
    if platform == "cuda":
        options = {**options, "target_config": _gpu_text(name)}
    return list(topologies.get_topology_desc(platform=platform, topology_name=name, **options).devices[:count])


def compile_case(target: str, devices: int, name: str) -> Any:
    """Return what the compiler states about the memory of a case on each of its devices."""
    import jax
    import keras
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(_devices(target, devices)), ("batch",))
    whole, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("batch"))
    keras.utils.clear_session()
    model = compiled_model(name)
    x = jax.ShapeDtypeStruct((BATCH * devices, *model.inputs[0].shape[1:]), model.inputs[0].dtype, sharding=split)
    outputs = model.outputs[0].shape[1:]
    shape, dtype = (outputs, "float32") if name == "gru" else (outputs[:-1], "int32")
    y = jax.ShapeDtypeStruct((BATCH * devices, *shape), dtype, sharding=split)
    model._symbolic_build(data_batch=(x, y))
    model.optimizer.build(model.trainable_variables)
    groups = (
        model.trainable_variables,
        model.non_trainable_variables,
        model.optimizer.variables,
        model.metrics_variables,
    )
    state = tuple([jax.ShapeDtypeStruct(v.shape, v.value.dtype, sharding=whole) for v in group] for group in groups)
    kept = tuple([whole] * len(group) for group in groups)
    step = jax.jit(model.train_step, donate_argnums=0, out_shardings=(None, kept))
    with _as_on("tpu" if target.startswith("TPU") else "gpu"):
        lowered = step.lower(state, (x, y))
    return lowered.compile().memory_analysis()


def _row(target: str, devices: int, name: str) -> list[str]:
    import jax

    try:
        stated = compile_case(target, devices, name)
    except (jax.errors.JaxRuntimeError, NotImplementedError, ValueError) as error:
        return [target, str(devices), name, *[""] * len(FIGURES), " ".join(str(error).split())[:160].replace(",", ";")]
    return [target, str(devices), name, *(str(getattr(stated, attribute)) for attribute in FIGURES.values()), ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--target", action="append")
    parser.add_argument("--model", action="append")
    asked = parser.parse_args()
    os.environ |= {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"}
    os.environ |= {"TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0"}
    os.environ |= {"ALLOW_MULTIPLE_LIBTPU_LOAD": "1", "TPU_ACCELERATOR_TYPE": "v4-8"}
    known = asked.file.read_text().splitlines() if asked.file.exists() else [",".join(COLUMNS)]
    for target, devices, name in product(asked.target or TARGETS, DEVICES, asked.model or MODELS):
        if name.endswith(UNFUSED) and not target.startswith("TPU"):
            continue  # only on TPUs does one kernel compute other attention
        if any(line.startswith(f"{target},{devices},{name},") for line in known):
            continue
        known.append(",".join(_row(target, devices, name)))
        print(known[-1], flush=True)
        asked.file.write_text("\n".join(known) + "\n")


if __name__ == "__main__":
    main()
