"""The answer of `estimate` as text: memory by component, time by component, what bounds it, and whether it fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType

from autoplan import formatting
from autoplan.machine.local_hardware import LOCAL
from autoplan.reports.plan_table import heading, open_table, to_know
from cost_models.config import TrainConfig

MEMORY_PARTS = {
    "parameters": "trainable weights",
    "non_trainable": "weights that no gradient changes, such as BatchNorm's statistics",
    "gradients": "of the weights, as many as live at the peak",
    "optimizer": "its slots, such as Adam's two moments",
    "accumulators": "summed gradients between updates",
    "weight_copies": "weights in the compute dtype, under mixed precision",
    "activations": "everything else that a micro-step makes, alive at the peak",
    "workspace": "scratch of library kernels",
    "inputs": "the batch, and arrays that the program closes over",
    "collective_buffers": "parameters gathered from other devices",
    "host": "memory of the host, not counted in the total",
}
TIME_PARTS = {
    "compute_seconds": "kernels whose arithmetic takes longer than their memory traffic",
    "memory_seconds": "kernels whose memory traffic takes longer",
    "communication_seconds": "collectives that no computation hides",
    "overhead_seconds": "launching kernels, and the host's work for each program",
}


HELD = "What is held against the device is the compiler's own peak, of what is there at once:"
COMPILED_PARTS = {
    "argument": "state and batch, as the program receives them",
    "output": "state and logs, as it hands them back",
    "alias": "of the output, what takes the place of donated arguments",
    "temporary": "what lives between",
    "host": "memory of the host, not counted in the total",
    "code": "the program itself, not counted in the total",
    "peak": "the compiler's own count of what lives at once",
}


def estimated(estimate: Mapping[str, Any], *, explain: bool = False) -> RenderableType:
    """One configuration on one hardware. `explain` adds what each part holds, and operations that are not known."""
    if estimate["evidence"] == "compiled":
        return _compiled(estimate, explain=explain)
    return Group(
        f"{_config(estimate)} on {estimate['hardware']}. "
        f"Every figure is {estimate['evidence']}: nothing was run or measured.",
        heading("Memory, a device"),
        _memory(estimate["memory"], explain),
        _fits(estimate["memory"]),
        heading("Time"),
        _time(estimate["time"], explain, probed=estimate["hardware"] == LOCAL),
        _band(estimate["time"], estimate.get("accuracy")),
        *_largest(estimate.get("explanation") or {}),
        *_coverage(estimate.get("coverage") or {}, explain),
        *to_know(estimate.get("notes") or []),
    )


def _compiled(estimate: Mapping[str, Any], *, explain: bool) -> RenderableType:
    """What the compiler said, beside what was estimated."""
    memory, analytic = estimate["memory"], estimate["analytic"]
    compiler = estimate.get("compiler")
    total, estimated_total = memory["per_device_bytes"]["total"], analytic["memory"]["per_device_bytes"]["total"]
    said = f"{_config(estimate)} on {estimate['hardware']}. "
    if compiler is None:
        return Group(
            f"{said}The compiler refused it: {estimate['failure']['message']}.",
            f"Estimated were {formatting.size(estimated_total)} a device (analytic).",
        )
    table = open_table("", "size", *(["what it holds"] if explain else []))
    for name, meaning in COMPILED_PARTS.items():
        table.add_row(name, formatting.size(memory["per_device_bytes"].get(name)), *([meaning] if explain else []))
    table.add_section()
    table.add_row("total", formatting.size(total), *(["argument + output - alias + temporary"] if explain else []))
    took = formatting.duration(compiler["lower_seconds"] + compiler["compile_seconds"])
    return Group(
        f"{said}{compiler['target']} compiled the training program in {took}; nothing was run.",
        heading("Memory, a device (compiled)"),
        table,
        _fits({**memory, "per_device_bytes": {**memory["per_device_bytes"], "total_high": memory["must_fit_bytes"]}}),
        *([f"{HELD} {formatting.size(memory['must_fit_bytes'])}."] if memory["must_fit_bytes"] != total else []),
        f"Estimated were {formatting.size(estimated_total)} (analytic).",
        *_compiled_time(estimate, explain),
        *_exchanged(compiler["collectives"]),
        *_told(compiler),
        *to_know(estimate.get("notes") or []),
    )


def _compiled_time(estimate: Mapping[str, Any], explain: bool) -> list[RenderableType]:
    if estimate["time"] is None:
        return []
    title = "Time (the compiled program under the roofline: analytic rates, nothing was run)"
    return [heading(title), _time(estimate["time"], explain), _band(estimate["time"], None)]


def _exchanged(collectives: Sequence[Mapping[str, Any]]) -> list[RenderableType]:
    if not collectives:
        return []
    table = open_table("collective", "axis", "count", "bytes")
    for one in collectives:
        kind = str(one["kind"]).replace("_", "-")
        table.add_row(kind, str(one["axis"]), formatting.counted(one["count"], "time"), formatting.size(one["bytes"]))
    return [heading("What devices exchange in a micro-step (compiled)"), table]


def _told(compiler: Mapping[str, Any]) -> list[RenderableType]:
    options = [f"{name}={value}" for name, value in compiler["compiler_options"].items()]
    told = [f"It was compiled with {formatting.listed(options)}."] if options else []
    if compiler["estimated_cycles"] is not None:
        told.append(f"The compiler's own guess is {compiler['estimated_cycles']:,} cycles a micro-step.")
    return [*told, *compiler["notes"]]


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
        part = _share(size, total) if size and name != "host" else ""
        table.add_row(name.replace("_", " "), formatting.size(size), part, *([meaning] if explain else []))
    low, high = per_device.get("total_low"), per_device.get("total_high")
    interval = "" if low is None or high is None else f"{formatting.size(low)} to {formatting.size(high)}"
    table.add_section()
    table.add_row("total", formatting.size(total), "", *([f"interval: {interval}"] if explain and interval else []))
    return (
        table
        if explain or not interval
        else Group(table, f"The total lies between {interval.replace(' to ', ' and ')}.")
    )


def _fits(memory: Mapping[str, Any]) -> str:
    capacity, upper = memory.get("capacity_bytes"), memory["per_device_bytes"].get("total_high")
    if capacity is None:
        return "Whether it fits is not known: the usable memory of this device is not published."
    headroom = memory.get("headroom") or 0.0
    offered = f"{formatting.size(int(capacity * (1 - headroom)))} of a device's {formatting.size(capacity)}"
    kept = f" ({formatting.percent(headroom)} is kept free)" if headroom else ""
    if not memory.get("fits") and memory.get("may_fit"):
        between = f"{formatting.size(memory['per_device_bytes'].get('total_low'))} to {formatting.size(upper)}"
        ask = "--evidence compiled asks the compiler."
        return f"It may fit: it needs {between}, and may use {offered}{kept}; {ask}"
    verdict = "It fits" if memory.get("fits") else "It does not fit"
    return f"{verdict}: it may need {formatting.size(upper)}, and may use {offered}{kept}."


def _time(time: Mapping[str, Any], explain: bool, *, probed: bool = False) -> RenderableType:
    table = open_table("", "figure", "share", *(["what it is"] if explain else []))
    whole = time.get("micro_step_seconds")

    def row(name: str, figure: str, meaning: str, share: str = "") -> None:
        table.add_row(name, figure, share, *([meaning] if explain else []))

    row("micro-step", formatting.seconds(whole), "one batch, forward and backward; the sum of the four parts")
    for name, meaning in TIME_PARTS.items():
        part = time.get(name)
        row("  " + name.removesuffix("_seconds"), formatting.seconds(part), meaning, _share(part, whole))
    row("update", formatting.seconds(time.get("update_seconds")), "one change of the weights")
    row("samples/s", formatting.rate(time.get("samples_per_second")), "over all devices")
    peak = "peak that was probed, no data sheet's" if probed else "peak"
    meaning = f"model FLOPs over the devices' {peak}; recomputation does not count"
    row("MFU, of the probed peak" if probed else "MFU", formatting.percent(time.get("mfu")), meaning)
    row("bound by", str(time.get("bound") or formatting.NOT_KNOWN), "the largest of the four parts")
    return table


def _band(time: Mapping[str, Any], accuracy: Mapping[str, Any] | None) -> str:
    """How far the time may be off, by the rows of a study; else that nobody knows."""
    seconds = time.get("micro_step_seconds")
    if accuracy is None or seconds is None:
        return "How far this time may be off is not known: no study has enough measurements of such hardware."
    low, high = accuracy["low_ratio"], accuracy["high_ratio"]
    shown = f"{formatting.percent(accuracy['share'])} of {accuracy['rows']} {accuracy['of']}"
    return (
        f"The micro-step probably takes {formatting.seconds_range(seconds * low, seconds * high)}: "
        f"{shown} took {low:g} "
        f"to {high:g} times what was predicted ({accuracy['source']})."
    )


def _share(part: float | None, whole: float | None) -> str:
    if part is None or not whole:
        return ""
    share = part / whole
    return "<0.1%" if 0 < share < 0.001 else formatting.percent(share)


def _coverage(coverage: Mapping[str, Any], explain: bool) -> list[RenderableType]:
    unknown = coverage.get("unknown_ops") or []
    if unknown:
        told = formatting.listed(
            [f"{one['primitive']} ({formatting.counted(one['count'], 'time')})" for one in unknown]
        )
        return [f"\nCounted by their bytes alone, because no rule knows them: {told}."]
    return ["\nEvery operation of the training program is known to the cost model."] if explain else []


def _largest(explanation: Mapping[str, Any]) -> list[RenderableType]:
    """The temporaries that make the memory peak."""
    tensors = explanation.get("largest_tensors") or []
    if not tensors:
        return []
    table = open_table("layer", "for", "shape", "size")
    for tensor in tensors:
        shape = "x".join(map(str, tensor["shape"])) or "scalar"
        table.add_row(
            tensor["layer"], tensor["purpose"], f"{tensor['dtype']} {shape}", formatting.size(tensor["bytes"])
        )
    return [heading("The largest temporaries at the memory peak"), table]
