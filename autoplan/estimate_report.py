"""The answer of `estimate` as text: memory by component, time by component, what bounds it, and whether it fits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType

from autoplan import figures
from autoplan.report import heading, open_table
from cost_models.config import TrainConfig

MEMORY_PARTS = {
    "parameters": "trainable weights",
    "non_trainable": "weights that no gradient changes, such as BatchNorm's statistics",
    "gradients": "of the weights, as far as they live at once",
    "optimizer": "its slots, such as Adam's two moments",
    "accumulators": "summed gradients between updates",
    "weight_copies": "weights in the compute dtype, under mixed precision",
    "activations": "kept from the forward pass for the backward pass",
    "workspace": "temporaries of single operations",
    "inputs": "the batch itself",
    "collective_buffers": "what is sent between devices",
    "host": "on the host, not counted in the total",
}
TIME_PARTS = {
    "compute_seconds": "arithmetic",
    "memory_seconds": "moving bytes to and from main memory",
    "communication_seconds": "collectives between devices",
    "overhead_seconds": "launching and dispatching",
}


def estimated(estimate: Mapping[str, Any], *, explain: bool = False) -> RenderableType:
    """One configuration on one hardware. `explain` adds what each part holds, and operations that are not known."""
    return Group(
        f"{_config(estimate)} on {estimate['hardware']}. "
        f"Every figure is {estimate['evidence']}: nothing was run or measured.",
        heading("Memory, a device"),
        _memory(estimate["memory"], explain),
        _fits(estimate["memory"]),
        heading("Time"),
        _time(estimate["time"], explain),
        *_coverage(estimate.get("coverage") or {}, explain),
    )


def _config(estimate: Mapping[str, Any]) -> str:
    return TrainConfig.from_dict(estimate["config"]).describe()


def _memory(memory: Mapping[str, Any], explain: bool) -> RenderableType:
    per_device: Mapping[str, Any] = memory["per_device_bytes"]
    total = per_device.get("total")
    table = open_table("", "size", "share", *(["what it holds"] if explain else []))
    for name, meaning in MEMORY_PARTS.items():
        size = per_device.get(name)
        if not size and not explain:
            continue
        part = figures.percent(size / total) if size and total and name != "host" else ""
        table.add_row(name.replace("_", " "), figures.size(size), part, *([meaning] if explain else []))
    low, high = per_device.get("total_low"), per_device.get("total_high")
    interval = "" if low is None or high is None else f"{figures.size(low)} to {figures.size(high)}"
    table.add_section()
    table.add_row("total", figures.size(total), "", *([f"interval: {interval}"] if explain and interval else []))
    return (
        table
        if explain or not interval
        else Group(table, f"The total lies between {interval.replace(' to ', ' and ')}.")
    )


def _fits(memory: Mapping[str, Any]) -> str:
    capacity = memory.get("capacity_bytes")
    if capacity is None:
        return "Whether it fits is not known: the usable memory of this device is not published."
    headroom = memory.get("headroom") or 0.0
    usable = figures.size(int(capacity * (1 - headroom)))
    room = f"{usable} of {figures.size(capacity)}, with {figures.percent(headroom)} kept free"
    if memory.get("fits"):
        return f"It fits: a device offers {room}."
    return f"It does not fit: a device offers {room}."


def _time(time: Mapping[str, Any], explain: bool) -> RenderableType:
    table = open_table("", "figure", *(["what it is"] if explain else []))

    def row(name: str, figure: str, meaning: str) -> None:
        table.add_row(name, figure, *([meaning] if explain else []))

    row("micro-step", figures.seconds(time.get("micro_step_seconds")), "one batch, forward and backward")
    row("update", figures.seconds(time.get("update_seconds")), "one change of the weights")
    for name, meaning in TIME_PARTS.items():
        row("  " + name.removesuffix("_seconds"), figures.seconds(time.get(name)), meaning)
    row("samples/s", figures.rate(time.get("samples_per_second")), "over all devices")
    row("MFU", figures.percent(time.get("mfu")), "model FLOPs over the devices' peak")
    row("bound by", str(time.get("bound") or figures.NOT_KNOWN), "the largest part")
    return table


def _coverage(coverage: Mapping[str, Any], explain: bool) -> list[RenderableType]:
    unknown = [str(name) for name in coverage.get("unknown_ops") or []]
    if unknown:
        kinds = figures.counted(len(unknown), "kind of operation is", "kinds of operation are")
        return [f"\n{kinds} not known and counted by bytes alone: {figures.listed(unknown)}."]
    return ["\nEvery operation of the training program is known to the cost model."] if explain else []
