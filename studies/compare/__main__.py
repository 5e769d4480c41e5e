"""Does `autoplan compare` answer in a minute for all TPUs and GPUs, and do the compilers agree?

    python -m studies.compare [CASE ...]

Cases: resnet50 and decoder_1b compare every TPU and GPU of the catalogue (analytic). resnet50-compiled and
decoder_1b-compiled compile for three kinds of hardware. Without a case: the two analytic cases.
"""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

from studies import harness

HERE = Path(__file__).resolve().parent
TARGET_SECONDS = 60.0
SOURCES = ("resnet50", "decoder_1b")
COMPILED = "-compiled"
ASKED = {
    "resnet50": "tpu-v5e-4,gpu-a100-80gb,gpu-h100-80gb-x8",
    "decoder_1b": "tpu-v5p-8,gpu-a100-80gb,gpu-h100-80gb-x8",
}
COLUMNS = ["case", "wall seconds", "processor seconds", "TPUs", "GPUs", "trains on", "sharded state", "evidence"]


def processor_seconds() -> float:
    """Return the user and system seconds of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def compare(case: str) -> dict[str, Any]:
    """Run one comparison in a new process. Returns its row: the time, and counts of the rows of its answer."""
    source = case.removesuffix(COMPILED)
    asked = ["--evidence", "compiled", "--hardware", ASKED[source]] if case.endswith(COMPILED) else []
    before = processor_seconds()
    with harness.lab() as lab:
        # The lab returns stderr and stdout together. Progress is on stderr; the JSON document starts with a brace.
        ran = lab.autoplan("compare", str(HERE / f"{source}.py"), *asked, "--format", "json")
    answer = json.loads(ran.output[ran.output.index("\n{") :])
    rows = answer["rows"]
    tiers = {tier: sum(row["evidence"] == tier for row in rows) for tier in ("analytic", "compiled")}
    print_rows(rows)
    return {
        "case": case,
        "wall seconds": ran.seconds,
        "processor seconds": processor_seconds() - before,
        "TPUs": sum(row["chip"].startswith("tpu-") for row in rows),
        "GPUs": sum(row["chip"].startswith("gpu-") for row in rows),
        "trains on": sum(row["trains"] is True for row in rows),
        "sharded state": sum(bool(row["trains"] and row["config"]["layout"]["shard_state"]) for row in rows),
        "evidence": ", ".join(f"{count} {tier}" for tier, count in tiers.items() if count),
    }


def print_rows(rows: list[dict[str, Any]]) -> None:
    """Print the rows of a comparison, in its order."""
    table = [
        {
            "hardware": row["hardware"],
            "verdict": row["verdict"],
            "batch": f"{row['config']['batch']['global']}x{row['config']['batch']['accumulation']}",
            "precision": row["config"]["precision"],
            "GiB": row["memory"]["needed_bytes"] / 2**30,
            "of": row["memory"]["capacity_bytes"] / 2**30,
            "samples/s": row["samples_per_second"],
            "MFU": row["mfu"],
            "USD/M samples": row["usd_per_million_samples"],
            "evidence": row["evidence"],
        }
        for row in rows
        if row["config"]
    ]
    harness.print_table(table, list(table[0]))


def main() -> None:
    parser = harness.parser("studies.compare", __doc__)
    parser.add_argument("cases", nargs="*")
    known = {f"{source}{tier}": None for tier in ("", COMPILED) for source in SOURCES}
    wanted = parser.parse_args().cases or list(SOURCES)
    harness.header("Does `autoplan compare` answer in a minute for all TPUs and GPUs?")
    rows = []
    for case in harness.chosen(known, wanted):
        origin = harness.provenance()
        rows.append(compare(case))
        harness.write_rows(HERE / "results.csv", [{**rows[-1], **origin}], "case")
    harness.print_table(rows, COLUMNS)
    for row in rows:
        if not row["case"].endswith(COMPILED):
            verdict = "met" if row["wall seconds"] < TARGET_SECONDS else "missed"
            print(f"{row['case']}: {row['wall seconds']:.0f} s of {TARGET_SECONDS:.0f}: {verdict}")


if __name__ == "__main__":
    main()
