"""Formats the result of `autoplan estimate` as text: memory and time by component, bottleneck, whether it fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType

from autoplan import formatting
from autoplan.machine.compiler_packages import rules_note
from autoplan.machine.local_hardware import LOCAL
from autoplan.plan.records import CompiledMemory, CompilerEvidence, Failure
from autoplan.reports.plan_table import heading, notes_section, open_table
from autoplan.tuning.estimates.configuration import ConfigurationEstimate, compiled_sizes
from cost_models.accuracy import SHARE, Accuracy
from cost_models.estimate import Estimate, Explanation
from cost_models.memory import Capacity, MemoryCost
from cost_models.time.cost import TimeCost
from cost_models.workload.workload import UnknownOp

MEMORY_PARTS = {
    "parameters": "trainable weights",
    "non_trainable": "weights without a gradient, such as BatchNormalization's statistics",
    "gradients": "gradients of the weights that are live at the peak",
    "optimizer": "optimizer state, such as Adam's two moments",
    "accumulators": "summed gradients between updates",
    "weight_copies": "weights in the compute dtype, under mixed precision",
    "activations": "all other buffers of a micro-step that are live at the peak",
    "workspace": "scratch of library kernels",
    "inputs": "the batch, and arrays captured by the program",
    "other_batches": "batches that fit holds on the device beside the one at work: the next one",
    "collective_buffers": "parameters gathered from other devices",
    "host": "host memory, not counted in the total",
}
TIME_PARTS = {
    "compute": "kernels whose arithmetic takes longer than their memory traffic",
    "memory": "kernels whose memory traffic takes longer",
    "communication": "collectives that do not overlap with computation",
    "overhead": "launching kernels, and the host's work for each program",
}


HELD = "Whether it fits is decided by what the compiler compares with the device's memory:"
COMPILED_PARTS = {
    "argument": "state and batch, as the program receives them",
    "output": "state and logs, as it returns them",
    "alias": "the part of the output that reuses donated arguments",
    "temporary": "intermediate buffers",
    "temporary_heap": "what they take of the device's memory; XLA:TPU counts gaps twice in temporary",
    "host": "host memory, not counted in the total",
    "code": "the program itself, not counted in the total",
    "peak": "the most that is allocated at once, by the compiler's own count",
}


def estimated(estimate: ConfigurationEstimate, *, explain: bool = False) -> RenderableType:
    """Return one configuration on one kind of hardware as text.

    explain  adds the contents of each part, and operations that are not known
    """
    analytic = estimate.analytic
    named = f"{estimate.config.describe()} on {analytic.hardware}."
    if isinstance(estimate.compiled, Failure):
        return Group(
            f"{named} The compiler refused it: {estimate.compiled.message}.",
            f"The estimate was {formatting.size(analytic.memory.total)} per device (analytic).",
        )
    if estimate.compiled is not None:
        return _compiled(named, analytic, estimate.compiled, estimate.notes, explain=explain)
    return Group(
        f"{named} Nothing was run or measured: every figure is {estimate.evidence}.",
        heading("Memory per device"),
        _memory(analytic.memory, explain),
        *([f"{estimate.largest[:1].upper()}{estimate.largest[1:]}."] if estimate.largest else []),
        _fits(analytic),
        *_validation(analytic),
        heading("Time"),
        _time(analytic.time, explain, probed=analytic.hardware == LOCAL),
        _band(analytic.time, analytic.accuracy),
        *_largest(estimate.explanation),
        *_coverage(analytic.unknown_ops, explain),
        *notes_section((*estimate.notes, *filter(None, [rules_note()]))),
    )


def _compiled(
    named: str, analytic: Estimate, compiler: CompilerEvidence, notes: Sequence[str], *, explain: bool
) -> RenderableType:
    """Return the compiler's figures beside the estimate."""
    table = open_table("", "size", *(["what it holds"] if explain else []))
    sizes = compiled_sizes(compiler)
    for name, meaning in COMPILED_PARTS.items():
        table.add_row(name, formatting.size(sizes.get(name)), *([meaning] if explain else []))
    table.add_section()
    total, program, needed = (getattr(compiler.memory, f"{name}_bytes") for name in ("total", "program", "must_fit"))
    table.add_row("total", formatting.size(total), *(["argument + output - alias + temporary"] if explain else []))
    took = formatting.duration(compiler.lower_seconds + compiler.compile_seconds)
    verdict = "It fits" if analytic.capacity.fits(needed) else "It does not fit"
    return Group(
        f"{named} {compiler.target} compiled the training program in {took}; nothing was run.",
        heading("Memory per device (compiled)"),
        table,
        f"{verdict}: it needs up to {formatting.size(needed)}, and {_offered(analytic.capacity)}.",
        *([f"{HELD} {formatting.size(program)}."] if program != total else []),
        *_other_batches(compiler.memory),
        *_validation(analytic),
        f"The estimate was {formatting.size(analytic.memory.total)} (analytic).",
        *_compiled_time(compiler.time, explain),
        *_exchanged(compiler.collectives),
        *_compiler_notes(compiler),
        *notes_section(notes),
    )


def _other_batches(memory: CompiledMemory) -> list[str]:
    """Return what must fit beside the program, if anything."""
    if not memory.other_batches_bytes:
        return []
    program, others = formatting.size(memory.program_bytes), formatting.size(memory.other_batches_bytes)
    return [f"The program needs {program} (compiled); fit holds the next batch of {others} beside it (analytic)."]


def _compiled_time(time: TimeCost | None, explain: bool) -> list[RenderableType]:
    if time is None:
        return []
    title = "Time (roofline model of the compiled program: analytic rates, nothing was run)"
    return [heading(title), _time(time, explain), _band(time, None)]


def _exchanged(collectives: Sequence[Mapping[str, Any]]) -> list[RenderableType]:
    if not collectives:
        return []
    table = open_table("collective", "axis", "count", "bytes")
    for one in collectives:
        kind = str(one["kind"]).replace("_", "-")
        table.add_row(kind, str(one["axis"]), formatting.counted(one["count"], "time"), formatting.size(one["bytes"]))
    return [heading("Collectives in a micro-step (compiled)"), table]


def _compiler_notes(compiler: CompilerEvidence) -> list[RenderableType]:
    options = [f"{name}={value}" for name, value in compiler.compiler_options.items()]
    notes = [f"It was compiled with {formatting.listed(options)}."] if options else []
    if compiler.estimated_cycles is not None:
        notes.append(f"The compiler's own estimate is {compiler.estimated_cycles:,} cycles a micro-step.")
    return [*notes, *compiler.notes]


def _memory(memory: MemoryCost, explain: bool) -> RenderableType:
    table = open_table("", "size", "share", *(["what it holds"] if explain else []))
    for name, meaning in MEMORY_PARTS.items():
        size = getattr(memory, name)
        if not size and not explain:
            continue
        part = _share(size, memory.total) if size and name != "host" else ""
        table.add_row(
            name.replace("non_", "non-").replace("_", " "), formatting.size(size), part, *([meaning] if explain else [])
        )
    low, high = formatting.size(memory.total_low), formatting.size(memory.total_high)
    table.add_section()
    table.add_row("total", formatting.size(memory.total), "", *([f"interval: {low} to {high}"] if explain else []))
    return table if explain else Group(table, f"The total is between {low} and {high}.")


def _offered(capacity: Capacity) -> str:
    free = f" ({formatting.percent(capacity.headroom)} stays free)" if capacity.headroom else ""
    usable, device = formatting.size(capacity.usable_bytes), formatting.size(capacity.device_bytes)
    return f"{usable} of a device's {device} may be used{free}"


def _fits(estimate: Estimate) -> str:
    offered, upper = _offered(estimate.capacity), formatting.size(estimate.memory.total_high)
    if not estimate.fits and estimate.may_fit:
        between = f"{formatting.size(estimate.memory.total_low)} to {upper}"
        ask = "--evidence compiled checks it with the compiler."
        return f"It may fit: it needs {between}, and {offered}. {ask}"
    verdict = "It fits" if estimate.fits else "It does not fit"
    return f"{verdict}: it needs up to {upper}, and {offered}."


def _validation(estimate: Estimate) -> list[RenderableType]:
    """Return whether the script's validation fits, where it sets how many rows are validated at once."""
    found = estimate.validation
    if found is None:
        return []
    of, upper = f"Validation ({found.rows:,} rows at once)", formatting.size(found.memory.total_high)
    if found.fits:
        return [f"{of} fits: it needs up to {upper} (analytic)."]
    verdict = "may not fit" if found.may_fit else "does not fit"
    fewer = "" if found.fitting_rows is None else f"; {found.fitting_rows:,} rows at once fit (validation_batch_size)"
    return [f"{of} {verdict}: it needs up to {upper} (analytic){fewer}."]


def _time(time: TimeCost, explain: bool, *, probed: bool = False) -> RenderableType:
    table = open_table("", "figure", "share", *(["what it is"] if explain else []))
    whole = time.micro_step_seconds

    def row(name: str, figure: str, meaning: str, share: str = "") -> None:
        table.add_row(name, figure, share, *([meaning] if explain else []))

    row("micro-step", formatting.seconds(whole), "forward and backward of one batch; the sum of the four parts")
    for name, meaning in TIME_PARTS.items():
        part: float = getattr(time.parts, name)
        row(f"  {formatting.TIME_PARTS[name]}", formatting.seconds(part), meaning, _share(part, whole))
    row("update", formatting.seconds(time.update_seconds), "one change of the weights")
    row("samples/s", formatting.rate(time.samples_per_second), "over all devices")
    peak = "measured peak, not a data sheet's" if probed else "peak"
    meaning = f"model FLOPs divided by the devices' {peak}; recomputation does not count"
    row("MFU (of probed peak)" if probed else "MFU", formatting.percent(time.mfu), meaning)
    row("bound by", formatting.TIME_PARTS[time.bound], "the largest of the four parts")
    return table


def _band(time: TimeCost, accuracy: Accuracy | None) -> str:
    """Return the accuracy band of the time by the rows of a study, or that no study covers it."""
    seconds = time.micro_step_seconds
    if accuracy is None:
        return "The accuracy of this time is not known: no study has enough measurements of such hardware."
    low, high = accuracy.low, accuracy.high
    return (
        f"The micro-step probably takes {formatting.seconds_range(seconds * low, seconds * high)}: "
        f"in a study of {accuracy.rows} {accuracy.of}, {formatting.percent(SHARE)} took {low:g} to {high:g} times the "
        f"estimated time ({accuracy.source})."
    )


def _share(part: float, whole: float) -> str:
    if not whole:
        return ""
    share = part / whole
    return "<0.1%" if 0 < share < 0.001 else formatting.percent(share)


def _coverage(unknown: Sequence[UnknownOp], explain: bool) -> list[RenderableType]:
    if unknown:
        listed = formatting.listed([f"{one.primitive} ({formatting.counted(one.count, 'time')})" for one in unknown])
        return [f"\nOperations that no rule covers, so only their memory traffic is counted: {listed}."]
    return ["\nThe cost model covers every operation of the training program."] if explain else []


def _largest(explanation: Explanation | None) -> list[RenderableType]:
    """Return the temporaries that make the memory peak as a table."""
    if explanation is None or not explanation.largest_tensors:
        return []
    table = open_table("layer", "for", "shape", "size")
    for tensor in explanation.largest_tensors:
        shape = "x".join(map(str, tensor.shape)) or "scalar"
        table.add_row(tensor.layer, tensor.purpose, f"{tensor.dtype} {shape}", formatting.size(tensor.bytes))
    return [heading("The largest temporaries at the memory peak"), table]
