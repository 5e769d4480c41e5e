"""How long does it take to compile a decoder with 7 billion parameters for absent chips, and how much memory?

    python -m studies.compiled_decoder                        # both targets
    python -m studies.compiled_decoder gpu-h100-80gb-x8       # one target; the other row stays in results.csv

The training step is AdamW in mixed_bfloat16 with global batch 16; state is split over the devices, and each block is
rematerialized. Needs `pip install 'autoplan[compilers]'`. Memory is the proportional set size of the command and all
its descendants.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from studies import harness

HERE = Path(__file__).resolve().parent
GIB = 2**30
TARGETS = {"gpu-h100-80gb-x8": (60.0, 2 * GIB), "tpu-v5p-16": (240.0, 10 * GIB)}
"""The largest compile time in seconds and the largest memory in bytes that meet the target."""
QUESTION = ("--shard-state", "--precision", "mixed_bfloat16", "--batch-size", "16", "--evidence", "compiled")


def row(hardware: str, size: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "autoplan", "estimate", str(HERE / "decoder.py"), "--hardware", hardware]
    with tempfile.TemporaryDirectory(prefix="autoplan-study-") as folder:
        asked = [*command, *QUESTION, "--format", "json"]
        seconds, peak, answer = harness.timed_command(asked, Path(folder), {"SIZE": size})
    found = json.loads(answer)
    compiler = found["compiler"]
    compiled_seconds = compiler["lower_seconds"] + compiler["compile_seconds"]
    most_seconds, most_bytes = TARGETS[hardware]
    return {
        "hardware": hardware,
        "size": size,
        "compiled in seconds": compiled_seconds,
        "whole command, seconds": seconds,
        "memory here, GiB": peak / GIB,
        "a device needs, GiB": compiler["memory"]["total_bytes"] / GIB,
        "compiler's peak, GiB": (compiler["memory"]["peak_bytes"] or 0) / GIB or None,
        "estimated, GiB": found["analytic"]["memory"]["per_device_bytes"]["total"] / GIB,
        "collectives": "; ".join(f"{one['count']} {one['kind']}" for one in compiler["collectives"]),
        "met": compiled_seconds < most_seconds and peak < most_bytes,
        **harness.provenance(),
    }


def main() -> None:
    parser = harness.parser("studies.compiled_decoder", __doc__)
    parser.add_argument("hardware", nargs="*", default=list(TARGETS))
    parser.add_argument("--size", default="7b")
    arguments = parser.parse_args()
    harness.header(
        "How long does it take to compile a decoder with 7 billion parameters for absent chips, and how much memory?"
    )
    rows = []
    for name in arguments.hardware:
        rows.append(row(name, arguments.size))
        harness.write_rows(HERE / "results.csv", rows, "hardware")
    harness.print_table(rows, [name for name in rows[0] if name not in harness.provenance()])


if __name__ == "__main__":
    main()
