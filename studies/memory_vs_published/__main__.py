"""How close are memory estimates to published peak memory?

    python -m studies.memory_vs_published [--cache FOLDER] [--sources A,B]   # estimate every row, write results.csv
    python -m studies.memory_vs_published --summary                          # the tables of README.md
    python -m studies.memory_vs_published --rows SOURCE                      # every row of a source
    python -m studies.memory_vs_published --excluded                         # rows left out, with the reasons

Models are built in Keras with abstract variables and traced; nothing is trained. Traces are kept in the cache.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from studies import harness


def main() -> None:
    parser = harness.parser("studies.memory_vs_published", __doc__)
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "autoplan-memory-vs-published")
    parser.add_argument("--sources", default="", help="estimate the rows of these sources alone")
    parser.add_argument("--summary", action="store_true", help="print the tables of README.md")
    parser.add_argument("--rows", metavar="SOURCE", help="print every row of a source")
    parser.add_argument("--excluded", action="store_true", help="print the rows that are left out")
    asked = parser.parse_args()
    os.environ |= {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    from studies.memory_vs_published import results, summary

    if asked.excluded:
        summary.print_excluded()
    elif asked.rows:
        summary.print_rows(asked.rows)
    else:
        if not asked.summary:
            results.write(asked.cache, set(filter(None, asked.sources.split(","))))
        summary.show()


if __name__ == "__main__":
    main()
