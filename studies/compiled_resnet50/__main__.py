"""Does `autoplan estimate --evidence compiled` give the same bytes for ResNet-50 as calling the compiler by hand?

    python -m studies.compiled_resnet50

`plain.py` builds the model with weights, trains it on one batch, and compiles `model.train_step` with `jax.jit` for the
four devices of tpu-v4-8. It does not import autoplan. Needs `pip install 'autoplan[compilers]'`.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from studies import harness

HERE = Path(__file__).resolve().parent
QUESTION = ("--hardware", "tpu-v4-8", "--batch-size", "512", "--evidence", "compiled", "--format", "json")
PARTS = ("argument", "output", "alias", "temporary")


def main() -> None:
    harness.parser("studies.compiled_resnet50", __doc__).parse_args()
    harness.header("ResNet-50, batch 512, tpu-v4-8: bytes of the compiled training step, by hand and by autoplan")
    answers = {}
    commands = {
        "by hand": [str(HERE / "plain.py")],
        "autoplan": ["-m", "autoplan", "estimate", str(HERE / "model.py"), *QUESTION],
    }
    for name, command in commands.items():
        with tempfile.TemporaryDirectory(prefix="autoplan-study-") as folder:
            seconds, peak, answer = harness.timed_command([sys.executable, *command], Path(folder))
        found = json.loads(answer)
        found = found["memory"]["per_device_bytes"] if "memory" in found else found
        answers[name] = {"who": name, **{part: found[part] for part in PARTS}, "seconds": seconds, "held": peak}
    rows = [{**row, **harness.provenance()} for row in answers.values()]
    harness.write_rows(HERE / "results.csv", rows, "who")
    harness.print_table(rows, ["who", *PARTS, "seconds"])
    same = all(len({row[part] for row in rows}) == 1 for part in PARTS)
    print("met: the same bytes" if same else "missed: they differ")


if __name__ == "__main__":
    main()
