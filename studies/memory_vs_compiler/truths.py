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
    *("compiler_options", "refused"),
]
_KEY = COLUMNS.index("total_bytes")


@dataclass(frozen=True)
class Truth:
    """A compiled point. `total_bytes` is None if the compiler refused; the column `refused` has the reason."""

    point: Point
    total_bytes: int | None
    figures: tuple[str, ...]

    @property
    def peak_bytes(self) -> int | None:
        """Return XLA's peak memory; None on CPUs, where XLA reports only arguments and outputs."""
        peak = self.figures[COLUMNS.index("peak_bytes") - _KEY]
        return int(peak) if peak and self.point.target != "CPU" else None

    @property
    def must_fit_bytes(self) -> int:
        """Return the bytes that must fit into a device. XLA:TPU accepts a program by its peak (`CompiledMemory`)."""
        peak = self.peak_bytes or 0
        return peak if peak and self.point.target.startswith("TPU") else max(self.total_bytes or 0, peak)


def known() -> list[Truth]:
    """Return the rows of `results.csv`, in order."""
    if not RESULTS.exists():
        return []
    with RESULTS.open(newline="") as file:
        return [_read(line) for line in csv.reader(file) if line[0] != COLUMNS[0]]


def compiled() -> list[Truth]:
    """Return the rows that were compiled, without refused ones."""
    return [one for one in known() if one.total_bytes is not None]


def prepare() -> None:
    """Keep JAX on the CPU. Must be called before JAX creates a backend."""
    from autoplan.worker import aot_compile
    from cost_models.hardware.compile_targets import compiler_target
    from cost_models.hardware.lookup import cluster

    aot_compile.configure_process(compiler_target(cluster("cpu")))


def compile_missing(asked: Iterable[Point], seconds: float) -> None:
    """Compile the points that have no row yet, in order, until the seconds are over."""
    prepare()
    started, there = time.monotonic(), {one.point for one in known()}
    for point in asked:
        if point in there:
            continue
        if time.monotonic() - started > seconds:
            print("the time is over", flush=True)
            return
        begun = time.monotonic()
        row = _compiled(point)
        _append(row)
        print(f"{time.monotonic() - begun:6.1f} s  {','.join(row)}", flush=True)


def _read(line: list[str]) -> Truth:
    return Truth(Point.read(line[:_KEY]), int(line[_KEY]) if line[_KEY] else None, tuple(line[_KEY:]))


def _append(row: list[str]) -> None:
    new = not RESULTS.exists()
    with RESULTS.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([COLUMNS, row] if new else [row])


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
        return [*point.plain(), *[""] * 8, " ".join(str(error).split())[:160]]
    said = found.memory
    figures = (
        *(said.total_bytes, said.argument_bytes, said.output_bytes, said.alias_bytes),
        *(said.temporary_bytes, said.peak_bytes, said.code_bytes),
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
