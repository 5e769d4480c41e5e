"""How far are memory estimates from what the compilers themselves say, for chips that are here and chips that are not?

    python studies/memory_against_compilers/run.py CHIP MODEL PRECISION BATCH [ACCUMULATION]    # one row
    python studies/memory_against_compilers/run.py --again                                      # re-estimate all rows
    python studies/memory_against_compilers/run.py --summary

CHIP is cpu, gpu (an A100 of 40 GB; needs jax-cuda12-plugin and jax-cuda12-pjrt, and no GPU) or tpu (one v5e device;
needs libtpu, and no TPU). The whole training step is compiled; its figure is argument + output - alias + temp.
"""

from __future__ import annotations

import csv
import os
import statistics
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results.csv"
ROOT = HERE.parents[1]
COLUMNS = [
    *("chip", "model", "precision", "batch", "accumulation", "compiled_bytes", "temporary_bytes"),
    *("estimated_bytes", "low_bytes", "high_bytes"),
]
CHIPS = {"cpu": "cpu", "gpu": "gpu-a100-40gb", "tpu": "tpu-v5e-1"}

# Fields of XLA's own description of the chip (openxla/xla, xla/backends/gpu/target_config/specs, read 2026-11-29).
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


def built(name: str, precision: str, accumulation: int) -> Any:
    import keras
    from models import MODELS

    keras.config.set_dtype_policy(precision)
    model = MODELS[name]()
    if accumulation > 1:
        config = {**model.optimizer.get_config(), "gradient_accumulation_steps": accumulation}
        model.compile(optimizer=type(model.optimizer).from_config(config), loss=model.loss)
    return model


def estimated(model: Any, chip: str, precision: str, batch: int, accumulation: int) -> tuple[int, int, int]:
    from autoplan.worker.synthetic import synthetic_specs
    from autoplan.worker.trace.step import trace_train_step
    from cost_models import Batch, Precision, TrainConfig, memory
    from cost_models.hardware import cluster

    traced = trace_train_step(model, synthetic_specs(model, batch), local_batch=batch, precision=precision)
    config = TrainConfig(Batch(batch, accumulation=accumulation), precision=Precision(precision))
    cost = memory(traced, config, cluster(CHIPS[chip]))
    return cost.total, cost.total_low, cost.total_high


def devices(chip: str) -> list[Any] | None:
    """One compile-only device; None is the machine itself."""
    if chip == "cpu":
        return None
    from jax.experimental import topologies

    if chip == "tpu":
        return list(topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2").devices[:1])
    from jax._src import xla_bridge

    xla_bridge.discover_pjrt_plugins()
    described = {"topology_name": "a100", "topology": "1x1x1", "target_config": A100}
    return list(topologies.get_topology_desc(platform="cuda", **described).devices[:1])


def compiled(model: Any, chip: str, batch: int) -> tuple[int, int]:
    """(total, temporary) bytes of the whole training step."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from autoplan.worker.synthetic import synthetic_specs

    specs = jax.tree.map(lambda spec: jax.ShapeDtypeStruct(spec.shape, spec.dtype), synthetic_specs(model, batch))
    groups = (
        *(model.trainable_variables, model.non_trainable_variables),
        *(model.optimizer.variables, model.metrics_variables),
    )
    state = tuple([jax.ShapeDtypeStruct(v.shape, v.dtype) for v in group] for group in groups)
    where: dict[str, Any] = {}
    if (chosen := devices(chip)) is not None:
        here = NamedSharding(Mesh(np.array(chosen), ("data",)), PartitionSpec())
        of_state, of_data = (jax.tree.map(lambda _: here, part) for part in (state, specs))
        where = {"in_shardings": (of_state, of_data), "out_shardings": (None, of_state)}
    step = jax.jit(model.train_step, donate_argnums=0, **where)
    figures = step.lower(state, specs).compile().memory_analysis()
    resident = figures.argument_size_in_bytes + figures.output_size_in_bytes - figures.alias_size_in_bytes
    return resident + figures.temp_size_in_bytes, figures.temp_size_in_bytes


def row(chip: str, name: str, precision: str, batch: int, accumulation: int, *, known: list[str] | None) -> list[Any]:
    from autoplan.worker.trace.abstract import abstract_variables

    with abstract_variables():
        model = built(name, precision, accumulation)
        estimate = estimated(model, chip, precision, batch, accumulation)
        compiler = known or compiled(model, chip, batch)
    return [chip, name, precision, batch, accumulation, *compiler, *estimate]


def rows() -> list[list[str]]:
    with RESULTS.open(newline="") as file:
        return list(csv.reader(file))[1:]


def write(found: list[list[Any]]) -> None:
    with RESULTS.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *found])


def summary() -> None:
    print("| chip | rows | mean error | worst | inside the interval | at most the upper end |")
    print("| --- | --- | --- | --- | --- | --- |")
    for chip in CHIPS:
        chosen = [list(map(int, line[5:])) for line in rows() if line[0] == chip]
        errors = [100 * (estimate / total - 1) for total, _, estimate, _, _ in chosen]
        inside = sum(low <= total <= high for total, _, _, low, high in chosen)
        below = sum(total <= high for total, _, _, _, high in chosen)
        mean = statistics.mean(map(abs, errors))
        worst = f"{min(errors):+.0f}% to {max(errors):+.0f}%"
        print(f"| {chip} | {len(chosen)} | {mean:.1f}% | {worst} | {inside} | {below} |")


def prepare(chip: str) -> None:
    sys.path.insert(0, str(ROOT))
    os.environ |= {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"}
    os.environ |= {"TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0"}
    if chip == "gpu":  # tiles of Triton's products are searched on a device
        os.environ["XLA_FLAGS"] = "--xla_gpu_enable_triton_gemm=false"


def main(arguments: list[str]) -> None:
    if arguments == ["--summary"]:
        summary()
    elif arguments == ["--again"]:
        prepare("cpu")
        write([row(*line[:3], *map(int, line[3:5]), known=line[5:7]) for line in rows()])
        summary()
    else:
        chip, name, precision, batch, *rest = arguments
        prepare(chip)
        asked = [chip, name, precision, int(batch), int(rest[0]) if rest else 1]
        others = [line for line in rows() if line[:5] != list(map(str, asked))]
        known = next((line[5:7] for line in rows() if line[:5] == list(map(str, asked))), None)
        found = row(*asked, known=known)
        write([*others, found])
        print(",".join(map(str, found)))


if __name__ == "__main__":
    main(sys.argv[1:])
