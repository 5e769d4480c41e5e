"""Compiles the programs whose texts lie here, for chips that are not here: python tests/cost_models/hlo/make.py

They were made with jax 0.10.2, libtpu 0.0.42.1 and jax-cuda12-plugin 0.10.2 on 2026-11-30. What nobody reads was cut
from the texts: tables of source files; of `backend_config` all but the keys in KEPT, and of windows all but the cycles.
"""

import json
import os
import re
from pathlib import Path

os.environ |= {"JAX_PLATFORMS": "cpu", "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1", "TPU_SKIP_MDS_QUERY": "1"}
os.environ |= {"TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
os.environ["XLA_FLAGS"] = "--xla_gpu_enable_triton_gemm=false"

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

HERE = Path(__file__).resolve().parent
KEPT = ("window_config", "gemm_backend_config", "known_trip_count", "fusion_backend_config")
TABLES = re.compile(r"\n(FileNames|FunctionNames|FileLocations|StackFrames)\n(?:\d+ .*\n)+")
A100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152 shared_memory_per_core: 167936
  threads_per_core_limit: 2048 core_count: 108 fpus_per_core: 64 block_dim_limit_x: 2147483647 block_dim_limit_y: 65535
  block_dim_limit_z: 65535 memory_bandwidth: 1555200000000 l2_cache_size: 41943040 clock_rate_ghz: 1.41
  device_memory_size: 42331013120 shared_memory_per_block_optin: 166912
  cuda_compute_capability { major: 8 minor: 0 } registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 1 }
runtime_version { major: 12 minor: 8 }
device_description_str: "NVIDIA A100-SXM4-40GB"
"""


def recurrent_loss(w, x, y):
    def cell(h, x_t):
        return jnp.tanh(x_t @ w["x"] + h @ w["h"]), None

    h, _ = lax.scan(cell, jnp.zeros((x.shape[1], 64)), x)
    return jnp.mean((h @ w["o"] - y) ** 2)


def dense_loss(w, x, y):
    h = jax.nn.relu(jax.nn.relu(x @ w["a"]) @ w["b"])
    return jnp.mean((h @ w["c"] - y) ** 2)


def convolution_loss(w, x, y):
    """A convolution with strides and a depthwise one."""
    names = ("NHWC", "HWIO", "NHWC")
    h = jax.nn.relu(lax.conv_general_dilated(x, w["k"], (2, 2), "SAME", dimension_numbers=names))
    h = lax.conv_general_dilated(h, w["d"], (1, 1), "SAME", dimension_numbers=names, feature_group_count=32)
    return jnp.mean((jnp.mean(jax.nn.relu(h), (1, 2)) @ w["o"] - y) ** 2)


RECURRENT = (recurrent_loss, {"x": (32, 64), "h": (64, 64), "o": (64, 8)}, (12, 32, 32), (32, 8), P(None, "data"))
CONVOLUTION = (
    convolution_loss,
    {"k": (3, 3, 3, 32), "d": (3, 3, 1, 32), "o": (32, 16)},
    *((32, 16, 16, 3), (32, 16), P("data")),
)


def dense(width):
    weights = {"a": (width, width), "b": (width, width), "c": (width, 8)}
    return dense_loss, weights, (256, width), (256, 8), P("data")


PROGRAMS = {
    "v5e_loop": ("v5e:2x2", 4, RECURRENT, False, "float32"),
    "v5e_sharded": ("v5e:2x2", 4, dense(512), True, "bfloat16"),
    "v5e_convolution": ("v5e:2x2", 1, CONVOLUTION, False, "bfloat16"),
    "v7x_sparse_core": ("TPU7x:2x2x1", 8, dense(256), False, "bfloat16"),
    "a100_loop": ("a100", 1, RECURRENT, False, "float32"),
    "a100_sharded": ("a100", 8, dense(256), True, "bfloat16"),
    "a100_convolution": ("a100", 8, CONVOLUTION, False, "bfloat16"),
}


def devices(chip, count):
    if chip != "a100":
        return topologies.get_topology_desc(platform="tpu", topology_name=chip).devices[:count]
    from jax._src import xla_bridge

    xla_bridge.discover_pjrt_plugins()
    described = {"topology_name": chip, "topology": f"1x1x{count}", "target_config": A100}
    return topologies.get_topology_desc(platform="cuda", **described).devices


def compiled(chip, count, program, sharded, dtype):
    """One step of gradient descent: data parallel, the weights whole or split over the devices."""
    loss, weights, *shapes, split = program
    mesh = Mesh(np.array(devices(chip, count)), ("data",))
    of_weights = NamedSharding(mesh, P("data") if sharded else P())
    w = {name: jax.ShapeDtypeStruct(shape, dtype, sharding=of_weights) for name, shape in weights.items()}
    x, y = (
        jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))
        for shape, spec in zip(shapes, (split, P("data")), strict=True)
    )

    def train_step(w, x, y):
        value, gradients = jax.value_and_grad(loss)(w, x, y)
        return value, jax.tree.map(lambda old, gradient: old - 0.1 * gradient, w, gradients)

    out = (None, dict.fromkeys(weights, of_weights))
    return jax.jit(train_step, donate_argnums=0, out_shardings=out).lower(w, x, y).compile().as_text()


def shortened(text):
    lines = []
    for line in re.sub(r" stack_frame_id=\d+", "", TABLES.sub("\n", text)).splitlines():
        before, mark, config = line.partition(", backend_config=")
        if mark:
            kept = {key: value for key, value in json.loads(config).items() if key in KEPT}
            if "window_config" in kept:
                kept["window_config"] = {"estimated_cycles": kept["window_config"]["estimated_cycles"]}
            line = before + (f"{mark}{json.dumps(kept, separators=(',', ':'))}" if kept else "")
        lines.append(line)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    for name, how in PROGRAMS.items():
        (HERE / f"{name}.txt").write_text(shortened(compiled(*how)))
