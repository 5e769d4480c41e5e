"""What the compilers themselves say of the models of `lowered.py`: built with weights, trained on one batch, and then
`model.train_step` handed to `jax.jit` by hand, while JAX says that its device is the target. Nothing of autoplan is
imported. Prints JSON: bytes by model and target.
"""

import json
import os
import sys
from contextlib import ExitStack
from types import SimpleNamespace
from unittest import mock

os.environ |= {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
os.environ |= {"TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0"}
os.environ |= {"TPU_ACCELERATOR_TYPE": "v4-8"}

import jax
import lowered
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

GPU = """
gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152 threads_per_core_limit: 2048
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  registers_per_core_limit: 65536 registers_per_block_limit: 65536 {chip}
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 1 }}
runtime_version {{ major: 12 minor: 8 }}
device_description_str: "{name}"
"""
A100 = """
  core_count: 108 fpus_per_core: 64 clock_rate_ghz: 1.41 memory_bandwidth: 2039040000000 l2_cache_size: 41943040
  device_memory_size: 85100068864 shared_memory_per_core: 167936 shared_memory_per_block_optin: 166912
  cuda_compute_capability { major: 8 minor: 0 }
"""
H100 = """
  core_count: 132 fpus_per_core: 128 clock_rate_ghz: 1.98 memory_bandwidth: 3352320000000 l2_cache_size: 52428800
  device_memory_size: 84942979072 shared_memory_per_core: 233472 shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 minor: 0 }
"""
TARGETS = {
    "tpu-v4-8": ("tpu", {"topology_name": "v4:2x2x1", "chip_config_name": "megacore"}),
    "tpu-v5e-4": ("tpu", {"topology_name": "v5e:2x2"}),
    "tpu-v6e-4": ("tpu", {"topology_name": "v6e:2x2"}),
    "gpu-a100-80gb-x2": (
        "cuda",
        {"topology_name": "a100", "topology": "1x1x2", "target_config": GPU.format(chip=A100, name="NVIDIA A100")},
    ),
    "gpu-h100-80gb-x2": (
        "cuda",
        {"topology_name": "h100", "topology": "1x1x2", "target_config": GPU.format(chip=H100, name="NVIDIA H100")},
    ),
}


def said(model, batch, platform, arguments):
    """Bytes of the program that `fit` would run, data-parallel over all devices of the target."""
    devices = topologies.get_topology_desc(platform=platform, **arguments).devices
    mesh = Mesh(np.array(devices), ("data",))
    whole, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
    state = model._get_jax_state(
        trainable_variables=True, non_trainable_variables=True, optimizer_variables=True, metrics_variables=True
    )
    state = jax.tree.map(lambda one: jax.ShapeDtypeStruct(one.shape, one.dtype, sharding=whole), state)
    batch = jax.tree.map(lambda one: jax.ShapeDtypeStruct(one.shape, one.dtype, sharding=split), batch)
    stay = jax.tree.map(lambda one: one.sharding, state)
    step = jax.jit(model.train_step, donate_argnums=0, out_shardings=(None, stay))
    with as_on(platform, arguments):
        lowered_step = step.lower(state, batch)
    figures = lowered_step.compile().memory_analysis()
    return [
        figures.argument_size_in_bytes,
        figures.output_size_in_bytes,
        figures.alias_size_in_bytes,
        figures.temp_size_in_bytes,
    ]


def as_on(platform, arguments):
    """Let all of this process, and Keras with it, believe that JAX runs on the target."""
    kind = {"cuda": "gpu"}.get(platform, platform)
    stack = ExitStack()
    stack.enter_context(mock.patch("jax.devices", lambda *_: [SimpleNamespace(platform=kind)]))
    stack.enter_context(mock.patch("jax.default_backend", lambda: kind))
    if kind == "gpu":
        cudnn = "jax._src.cudnn.fused_attention_stablehlo."
        own = 9.0 if arguments["topology_name"] == "h100" else 8.0
        stack.enter_context(mock.patch(cudnn + "check_cudnn_version", lambda: 91000))
        stack.enter_context(mock.patch(cudnn + "check_compute_capability", lambda wanted: own >= float(wanted)))
        stack.enter_context(mock.patch(cudnn + "is_cuda_compute_capability_equal", lambda asked: own == float(asked)))
    return stack


def main(asked):
    """Compile the pairs `model target` that are asked for."""
    found = {}
    for name in dict.fromkeys(one.split()[0] for one in asked):
        model, batch = lowered.MODELS[name](), lowered.DATA[name]()
        model.train_on_batch(*batch)
        for target, (platform, arguments) in TARGETS.items():
            if f"{name} {target}" in asked:
                found[f"{name} {target}"] = said(model, batch, platform, arguments)
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
