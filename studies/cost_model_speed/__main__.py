"""How fast are the cost models, and how large a model can be traced?

    python -m studies.cost_model_speed                      # all questions
    python -m studies.cost_model_speed trace|table|read     # one question; the rows of the others stay in results.csv

trace   a decoder with 69 billion parameters (`decoder.py`), traced in a new process
table   a million candidates of one model: every precision, rematerialization and mesh, with many batches and
        accumulations, in one table; rows drawn at random are compared with `memory` and `step_time`
read    a workload of 117,000 operations (the decoder with 240 blocks), read and checked from plain values

"met by CPU seconds" uses the CPU seconds of all threads, which do not depend on other processes. The column "seconds"
has the wall time.
"""

from __future__ import annotations

import gc
import json
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cost_models import (
    Batch,
    Candidates,
    Cluster,
    Layout,
    Mesh,
    Precision,
    Remat,
    RematMode,
    Table,
    TrainConfig,
    Workload,
    memory,
    price,
    step_time,
)
from cost_models.hardware.lookup import cluster
from cost_models.workload.serialization import workload_from_dict
from studies import harness

HERE = Path(__file__).resolve().parent
GIB = 2**30
MOST_TRACE_SECONDS, MOST_TRACE_BYTES = 60.0, 3 * GIB
MOST_TABLE_SECONDS, ROWS = 2.0, 1_000_000
MOST_READ_SECONDS, READINGS = 0.5, 5
PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16", "bfloat16")
HARDWARE = {"gpu-h100-80gb-x8-n8": (*range(1, 9), *range(16, 65, 8)), "tpu-v5e-256": tuple(2**n for n in range(9))}
"""For each hardware, the devices on the data axis."""
LOCAL_BATCHES = tuple(range(1, 41))
COMPARED = 1000


def trace(size: str, kinds: Sequence[str], folder: Path) -> tuple[float, dict[str, Any], list[Workload]]:
    """Trace in a new process. Returns its seconds, the figures that it prints, and the workloads."""
    out = folder / "workloads.json"
    command = [sys.executable, "-m", f"{__package__}.trace", str(out), *kinds]
    seconds, _, answer = harness.timed_command(command, folder, {"SIZE": size})
    return seconds, json.loads(answer), [workload_from_dict(one) for one in json.loads(out.read_text())]


def traced_row() -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="autoplan-study-") as folder:
        seconds, found, _ = trace("70b", ["mixed_bfloat16/none"], Path(folder))
    peak = found["peak bytes"]
    return {
        "question": "trace",
        "seconds": seconds,
        "CPU seconds": found["CPU seconds"],
        "peak GiB": peak / GIB,
        "parameters": found["parameters"],
        "operations": found["operations"],
        "unknown operations": found["unknown operations"],
        "met by CPU seconds": found["CPU seconds"] < MOST_TRACE_SECONDS and peak < MOST_TRACE_BYTES,
        **harness.provenance(),
    }


def structures(workloads: Sequence[Workload], meshes: Sequence[int]) -> list[TrainConfig]:
    """Return every precision and rematerialization on every mesh, with replicated and with sharded state."""
    kinds = [(Precision(w.precision), Remat(RematMode(w.remat))) for w in workloads]
    layouts = [(data, sharded) for data in meshes for sharded in (False, True) if data > 1 or not sharded]
    return [
        TrainConfig(Batch(1, data), precision=precision, remat=remat, mesh=Mesh(data), layout=Layout(sharded))
        for precision, remat in kinds
        for data, sharded in layouts
    ]


def differing(table: Table, workloads: Sequence[Workload], on: Cluster) -> int:
    """Count the rows, of COMPARED rows drawn at random, that differ from `memory` and `step_time`."""
    of_kind = {(w.precision, w.remat): w for w in workloads}
    wrong = 0
    for row in random.Random(0).sample(range(len(table)), COMPARED):
        config = table.candidates.config(row)
        workload = of_kind[config.precision.value, config.remat.mode.value]
        answers = memory(workload, config, on), step_time(workload, config, on)
        wrong += answers != (table.memory_of(row), table.time_of(row))
    return wrong


def table_row(hardware: str, workloads: Sequence[Workload]) -> dict[str, Any]:
    on = cluster(hardware)
    kinds = structures(workloads, HARDWARE[hardware])
    accumulations = range(1, 2 + ROWS // (len(kinds) * len(LOCAL_BATCHES)))
    began = time.process_time()
    ends = LOCAL_BATCHES[0], LOCAL_BATCHES[-1]  # small and large batches have different kernels
    price(workloads, Candidates.grid(kinds, ends, [1, 2]), on)  # computes fusion and liveness of each structure once
    analysed = time.process_time()
    candidates = Candidates.grid(kinds, LOCAL_BATCHES, accumulations)
    started, by_clock = time.process_time(), time.perf_counter()
    table = price(workloads, candidates, on)
    priced, seconds = time.process_time() - started, time.perf_counter() - by_clock
    wrong = differing(table, workloads, on)
    return {
        "question": f"table {hardware}",
        "seconds": seconds,
        "CPU seconds": priced,
        "CPU seconds of fusion and liveness, once a trace": (analysed - began) / len(workloads),
        "operations": len(workloads[0].ops),
        "structures": len(kinds),
        "local batches": len(LOCAL_BATCHES),
        "accumulations": len(accumulations),
        "rows": len(table),
        "rows compared": COMPARED,
        "rows that differ": wrong,
        "met by CPU seconds": priced < MOST_TABLE_SECONDS and len(table) >= ROWS and len(kinds) >= 200 and not wrong,
        **harness.provenance(),
    }


def table_rows() -> list[dict[str, Any]]:
    kinds = [f"{precision}/{mode.value}" for precision in PRECISIONS for mode in RematMode]
    with tempfile.TemporaryDirectory(prefix="autoplan-study-") as folder:
        workloads = trace("small", kinds, Path(folder))[2]
    return [table_row(hardware, workloads) for hardware in HARDWARE]


def read_row() -> dict[str, Any]:
    """Time the reading of plain values, as `json.loads` returns them; the best of several readings counts."""
    with tempfile.TemporaryDirectory(prefix="autoplan-study-") as folder:
        out = Path(folder) / "workloads.json"
        trace("deep", ["mixed_bfloat16/none"], Path(folder))
        plain = json.loads(out.read_text())[0]
    by_clock, by_cpu = [], []
    for _ in range(READINGS):
        gc.collect()
        started, began = time.perf_counter(), time.process_time()
        workload = workload_from_dict(plain)
        by_cpu.append(time.process_time() - began)
        by_clock.append(time.perf_counter() - started)
        operations = len(workload.ops)
        del workload  # else the next reading would be charged for freeing it
    return {
        "question": "read",
        "seconds": min(by_clock),
        "CPU seconds": min(by_cpu),
        "operations": operations,
        "met by CPU seconds": min(by_cpu) < MOST_READ_SECONDS,
        **harness.provenance(),
    }


def main() -> None:
    parser = harness.parser("studies.cost_model_speed", __doc__)
    parser.add_argument("question", nargs="*", default=["trace", "table", "read"])
    asked = parser.parse_args().question
    harness.header("How fast are the cost models, and how large a model can be traced?")
    for name, rows_of in (("trace", lambda: [traced_row()]), ("table", table_rows), ("read", lambda: [read_row()])):
        if name in asked:
            rows = rows_of()
            harness.write_rows(HERE / "results.csv", rows, "question")
            harness.print_table(rows, [name for name in rows[0] if name not in harness.provenance()])


if __name__ == "__main__":
    main()
