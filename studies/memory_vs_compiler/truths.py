"""Results of the compilers: one row of `results.csv` per compiled point, written after each compilation."""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from studies.memory_vs_compiler.points import Point

RESULTS = Path(__file__).resolve().parent / "results.csv"
COLUMNS = [
    *("target", "model", "precision", "optimizer", "batch", "accumulation", "attention"),
    *("total_bytes", "argument_bytes", "output_bytes", "alias_bytes", "temporary_bytes", "peak_bytes", "code_bytes"),
    *("heap_bytes", "compiler_options", "refused"),
]
_KEY = COLUMNS.index("total_bytes")
_CHIP = 129 * 2**20
"""The most bytes on the chip of a TPU, as compiled programs show it."""
_LEAST_KNOWN = 0.035
"""The most that what must fit may differ from its middle in a row that is compared, as a share."""


@dataclass(frozen=True)
class Truth:
    """A compiled point. `total_bytes` is None if the compiler refused; the column `refused` has the reason."""

    point: Point
    total_bytes: int | None
    figures: tuple[str, ...]

    def figure(self, name: str) -> int | None:
        """Return a figure in bytes; None where the compiler does not state it."""
        text = self.figures[COLUMNS.index(f"{name}_bytes") - _KEY]
        return int(text) if text else None

    @property
    def must_fit_bytes(self) -> int:
        """Return the bytes that must fit into a device: the middle of `range_bytes`."""
        return round(sum(self.range_bytes) / 2)

    @property
    def range_bytes(self) -> tuple[float, float]:
        """Return the least and the most bytes that must fit into a device, which are equal if all figures are known.

        On TPUs they are argument + output - alias + heap + code (`CompiledMemory`). Rows that were compiled before the
        heap was read have bounds of it. The temporaries are the heap and its gaps, or more: the compiler takes for gaps
        what a buffer passes on to another one. The peak is what lives at once in the heap, on the chip and in state.
        """
        total, peak = self.total_bytes or 0, self.figure("peak") or 0
        if self.point.target == "CPU":  # XLA:CPU's peak leaves temporaries out
            return total, total
        if not self.point.target.startswith("TPU"):
            return max(total, peak), max(total, peak)
        temporary, heap, code = self.figure("temporary") or 0, self.figure("heap"), self.figure("code") or 0
        state = total - temporary
        if heap is not None:
            return state + heap + code, state + heap + code
        most, least = (temporary + min(temporary, peak - state)) / 2, max(temporary / 2, peak - state - _CHIP)
        return state + code + min(least, most), state + code + most

    @property
    def is_known(self) -> bool:
        """Return whether a row was compiled, and what must fit is known well enough to compare an estimate with it."""
        low, high = self.range_bytes
        return self.total_bytes is not None and high - low <= 2 * _LEAST_KNOWN * self.must_fit_bytes


def known() -> list[Truth]:
    """Return the rows of `results.csv`, in order."""
    if not RESULTS.exists():
        return []
    with RESULTS.open(newline="") as file:
        return [_read(line) for line in csv.reader(file) if line[0] != COLUMNS[0]]


def compiled() -> list[Truth]:
    """Return the rows that can be compared with estimates, without refused ones."""
    return [one for one in known() if one.is_known]


def prepare() -> None:
    """Keep JAX on the CPU. Must be called before JAX creates a backend."""
    from autoplan.worker import aot_compile
    from cost_models.hardware.compile_targets import compiler_target
    from cost_models.hardware.lookup import cluster

    aot_compile.configure_process(compiler_target(cluster("cpu")))


def compile_missing(asked: Iterable[Point], seconds: float) -> None:
    """Compile the points that have no row yet, or one that cannot be compared, in order, until the seconds are over."""
    prepare()
    started, there = time.monotonic(), {one.point for one in known() if one.is_known or one.total_bytes is None}
    for point in asked:
        if point in there:
            continue
        if time.monotonic() - started > seconds:
            print("the time is over", flush=True)
            return
        begun = time.monotonic()
        row = _compiled(point)
        _write(row)
        print(f"{time.monotonic() - begun:6.1f} s  {','.join(row)}", flush=True)


def _read(line: list[str]) -> Truth:
    return Truth(Point.read(line[:_KEY]), int(line[_KEY]) if line[_KEY] else None, tuple(line[_KEY:]))


def _write(row: list[str]) -> None:
    """Put a row in the place of that of the same point, or at the end."""
    rows = list(csv.reader(RESULTS.open(newline=""))) if RESULTS.exists() else [COLUMNS]
    places = [index for index, line in enumerate(rows) if line[:_KEY] == row[:_KEY]]
    rows = [row if index in places else line for index, line in enumerate(rows)] + ([] if places else [row])
    with RESULTS.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def _compiled(point: Point) -> list[str]:
    import gc

    import jax
    import keras

    from autoplan.errors import AutoplanError
    from autoplan.worker import aot_compile

    keras.backend.clear_session()
    jax.clear_caches()
    gc.collect()
    try:
        found = with_model(point, _asked).evidence
    except (aot_compile.ProgramTooLarge, aot_compile.CompilerRejection, AutoplanError, ValueError) as error:
        return [*point.plain(), *[""] * 9, " ".join(str(error).split())[:160]]
    said = found.memory
    figures = (
        *(said.total_bytes, said.argument_bytes, said.output_bytes, said.alias_bytes),
        *(said.temporary_bytes, said.peak_bytes, said.code_bytes, said.temporary_heap_bytes),
    )
    options = " ".join(f"{name}={value}" for name, value in found.compiler_options.items())
    return [*point.plain(), *["" if figure is None else str(figure) for figure in figures], options, ""]


def _asked(model: Any, point: Point) -> Any:
    from autoplan.worker import aot_compile
    from autoplan.worker.synthetic_data import synthetic_specs
    from cost_models.execution import platform_of
    from cost_models.hardware.compile_targets import compiler_target

    target, platform = compiler_target(point.cluster), platform_of(point.config, point.cluster)
    specs = synthetic_specs(model, point.batch)
    return aot_compile.compile_train_step(model, specs, point.config, target, platform, {})


def with_model(point: Point, use: Callable[[Any, Point], Any]) -> Any:
    """Return `use(model, point)` for the point's model, whose weights are abstract."""
    from autoplan.worker.trace.abstract_variables import abstract_variables

    with abstract_variables():
        from studies.memory_vs_compiler.models import built

        model = built(point.model, point.precision, point.optimizer, point.accumulation, point.attention)
        return use(model, point)
