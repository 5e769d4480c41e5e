"""Seconds of a published row, by `cost_models` with the row's software as an option."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from cost_models import Batch, Layout, MemoryCost, Mesh, Precision, Remat, RematMode, TrainConfig, Workload
from cost_models.hardware.cluster import Cluster
from cost_models.hardware.efficiency import Efficiency
from cost_models.memory import program_memory
from cost_models.time.cost import TimeCost
from cost_models.time.exchange import CONTENTION, BucketedExchange
from cost_models.time.software import Kernels, Software
from cost_models.time.step import step_time, step_time_of_layers
from studies.time_vs_published import chips
from studies.time_vs_published.cases import Case
from studies.time_vs_published.traces import Traced, workload

_SLOWER_IN_2020 = {"layers": 1.68, "xla": 1.85}
"""How much longer than at 90% of the bandwidth kernels of transformers took in 16 bits on a V100 in 2020.

A layer of BERT-large took 9.14 ms forward and backward in PyTorch for 8 x 512 tokens, 18.43 ms for 96 x 128, and 8.4 ms
for 8 x 512 in TensorFlow with XLA (spcl/substation, README; Ivanov et al. 2021, arXiv 2007.00072). As counted here its
products take 3.89 and 10.27 ms, and its other kernels 2.00 and 3.74 ms in PyTorch and 2.43 ms with XLA. Both sizes in
PyTorch together leave 1.9 ms for launching, which those who train large batches do not wait for.
"""
_KERNELS = {"layers": Kernels.LAYERS, "operations": Kernels.OPERATIONS}
_TRANSFORMERS_OF_2020 = ("encoder", "electra")


@dataclass(frozen=True)
class Predicted:
    """The estimate of a row."""

    time: TimeCost
    model_flops: float

    @property
    def seconds(self) -> float:
        """Return the seconds of a micro-step, with its share of the update if gradients are accumulated."""
        return self.time.micro_step_seconds

    @property
    def exposed_seconds(self) -> float:
        """Return the seconds of collectives that do not overlap, and of waiting for the slowest device."""
        return self.time.communication_seconds


def predict(case: Case, folder: Path, without: frozenset[str] = frozenset()) -> Predicted:
    """Predict a row. `without` names rules that are switched off."""
    place = chips.machine(case.chip, case.devices, case.devices_per_host, bridged=case.bridged)
    config = config_of(case)
    options: dict[str, Any] = {"software": software_of(case, place, without), "efficiency": efficiency_of(case, place)}
    if not case.layers:
        model = loaded(case.traced, folder)
        return Predicted(step_time(model, config, place, **options), model.model_flops.at(case.batch))
    one, two = (loaded(case.traced.with_layers(count), folder) for count in (1, 2))
    first, second = (model.model_flops.at(case.batch) for model in (one, two))
    time = step_time_of_layers(one, two, case.layers, config, place, **options)
    return Predicted(time, first + (case.layers - 1) * (second - first))


def config_of(case: Case) -> TrainConfig:
    """Return the row's configuration."""
    full = '"remat": true' in case.traced.options
    return TrainConfig(
        Batch(case.batch, case.devices, case.accumulation),
        precision=Precision(case.traced.precision),
        mesh=Mesh(case.devices),
        layout=Layout(case.shard_state),
        remat=Remat(RematMode.FULL if full else RematMode.NONE),
    )


def software_of(case: Case, place: Cluster, without: frozenset[str] = frozenset()) -> Software:
    """Return the software stack of a row."""
    is_gpu = place.chip.kind == "gpu"
    exchange = BucketedExchange(
        gather_bytes=case.gather_bytes,
        reduce_bytes=case.reduce_bytes,
        overlaps=case.overlaps,
        contention=CONTENTION if is_gpu and "contention" not in without else 0.0,
    )
    half = case.traced.precision != "float32"
    of_2020 = case.of_2020 and case.traced.kind in _TRANSFORMERS_OF_2020 and half
    return Software(
        kernels=_KERNELS.get(case.stack, Kernels.BACKEND),
        biases_apart=case.biases_apart,
        fused_attention=bool(case.attention),
        exact_float32=case.exact_float32,
        nchw=case.nchw,
        memory_bound_slowdown=_SLOWER_IN_2020[case.stack] if of_2020 else 1.0,
        optimizer=case.update,
        updates_once=True,
        exchange=exchange,
        without=without,
    )


def efficiency_of(case: Case, place: Cluster) -> Efficiency:
    """Return what the row's kernels reach on its chip."""
    found = chips.efficiency(case.chip, place, attention="" if case.attention == "chip" else case.attention)
    if case.stack == "layers" and case.traced.precision != "float32" and not case.nchw:
        # cuDNN of those years had `conv2d_grouped_direct_kernel` and `wgrad2d_grouped_direct_kernel` for grouped ones
        # in 16 bits with channels last, which leave the matrix units idle (profile in pytorch issue 34977).
        return replace(found, has_grouped_conv=False)
    return found


@lru_cache(maxsize=64)
def loaded(what: Traced, folder: Path) -> Workload:
    """Return a workload from the folder of traces."""
    return workload(what, folder)


def predict_memory(case: Case, folder: Path) -> tuple[float, bool]:
    """Return (bytes at the peak, whether they fit) of a row on one device, by the memory model for Keras on JAX."""
    place = chips.machine(case.chip, 1, 1)
    config = TrainConfig(Batch(case.batch), precision=Precision(case.traced.precision))
    if not case.layers:
        cost = program_memory(loaded(case.traced, folder), config, place)
    else:
        cost = _extrapolated(case, config, place, folder)
    return float(cost.total), cost.total_high <= place.chip.memory_bytes


def _extrapolated(case: Case, config: TrainConfig, place: Cluster, folder: Path) -> MemoryCost:
    one, two = (program_memory(loaded(case.traced.with_layers(count), folder), config, place) for count in (1, 2))
    return one * (2 - case.layers) + two * (case.layers - 1)
