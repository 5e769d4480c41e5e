"""How accurate is the analytic memory estimate, compared with XLA's own figures for present and absent chips?

    python -m studies.memory_vs_compiler --summary                          # print the tables
    python -m studies.memory_vs_compiler --again [TRACES] [--target NAME]   # estimate compiled points again
    python -m studies.memory_vs_compiler --compile [SECONDS] [--target NAME] [--model NAME]
                                                                            # compile points that have no row
    python -m studies.memory_vs_compiler --without RULE [--traces TRACES]   # measure one rule of cost_models.xla
    python -m studies.memory_vs_compiler --ledger [--traces TRACES]         # measure every rule, write ledger.csv
    python -m studies.memory_vs_compiler --same                             # compare with the programs of lowering.py

TRACES is a folder outside of the checkout where traces are stored for later runs.
"""

from __future__ import annotations

import os
from pathlib import Path

from studies import harness

HERE = Path(__file__).resolve().parent
NO_OPTIMIZATION = "--xla_backend_optimization_level=0"
"""Turns off LLVM's optimization of kernels. It runs after buffer assignment, so that the figures do not change."""


def prepare() -> None:
    os.environ |= {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"}
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {NO_OPTIMIZATION}".strip()


def main() -> None:
    parser = harness.parser("studies.memory_vs_compiler", __doc__)
    parser.add_argument("--compile", nargs="?", type=float, const=float("inf"), metavar="SECONDS")
    parser.add_argument("--target", action="append", help="compile, estimate or measure only for this target")
    parser.add_argument("--model", action="append", help="compile only this model")
    parser.add_argument("--again", nargs="?", const="", metavar="TRACES")
    parser.add_argument("--summary", action="store_true")
    parser.add_argument("--without", action="append", metavar="RULE")
    parser.add_argument("--ledger", action="store_true")
    parser.add_argument("--traces", type=Path)
    parser.add_argument("--same", action="store_true")
    asked = parser.parse_args()
    prepare()
    if asked.compile is not None:
        from studies.memory_vs_compiler import truths
        from studies.memory_vs_compiler.points import points

        chosen = (p for p in points() if not asked.target or p.target in asked.target)
        truths.compile_missing((p for p in chosen if not asked.model or p.model in asked.model), asked.compile)
    if asked.again is not None:
        from studies.memory_vs_compiler import estimates

        estimates.write(Path(asked.again) if asked.again else None, asked.target or ())
    if asked.ledger or asked.without:
        from studies.memory_vs_compiler import ledger

        ledger.measure(asked.without or ledger.measurable(), asked.traces, asked.target or ())
        ledger.note_unmeasured()
    if asked.same:
        from studies.memory_vs_compiler import same_program, truths

        truths.prepare()
        same_program.compile_missing()
        same_program.show()
    if asked.summary or asked.again is not None:
        from studies.memory_vs_compiler import summary

        summary.show()


if __name__ == "__main__":
    main()
