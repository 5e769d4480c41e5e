"""Does a mesh of 8 simulated devices train the same as one device, and how efficient is it?

    python -m studies.mesh [--trials N]

The devices are simulated on this CPU. The efficiency describes the mesh on this CPU, not on real devices.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from autoplan.plan.records import Plan
from studies import harness

HERE = Path(__file__).resolve().parent
SCRIPT = str(HERE / "train.py")
DEVICES = 8
UPDATES = 20
BATCH = 256
TOLERANCE = 1e-5
_TRAINED = re.compile(r"^trained: (.*)$", re.MULTILINE)
_SIZE = re.compile(r"(\d+): ([0-9,]+) samples/s \((\d+)%\)")


def trained(ran: harness.Ran) -> dict[str, Any]:
    """Return what the script prints at its end: the number of devices that hold its weights, and its losses."""
    found = _TRAINED.search(ran.output)
    if found is None:
        raise harness.StudyFailed(f"the script printed no result:\n{ran.tail()}")
    value: dict[str, Any] = json.loads(found.group(1))
    return value


def losses(lab: harness.Lab, trials: int) -> list[dict[str, Any]]:
    """Tune with the mesh pinned, then train 20 epochs of one update each, on the mesh and on one device."""
    # float32, so that losses can be compared at 1e-5; the other knobs are free.
    pins = ("--fix", f"mesh=data={DEVICES}", "--fix", "precision=float32")
    plan, _ = lab.tune(SCRIPT, "--devices", str(DEVICES), *pins, "--trials", str(trials), name="pinned")
    short = ["--samples", str(BATCH), "--epochs", str(UPDATES)]
    one = trained(lab.python(SCRIPT, *short))
    many = trained(lab.train(SCRIPT, arguments=short, name="pinned"))
    pairs = list(zip(one["losses"], many["losses"], strict=True))
    worst = max(abs(a - b) / abs(a) for a, b in pairs)
    print(f"plan: {harness.plan_row(plan)['plan']}; weights on {one['devices']} device(s) without the plan")
    print(f"and on {many['devices']} (simulated) with it")
    print(
        f"largest relative difference of a loss over {len(pairs)} updates: {worst:.2e}, target {TOLERANCE:.0e}: ",
        end="",
    )
    print("met" if worst <= TOLERANCE and many["devices"] == DEVICES else "missed", flush=True)
    return [
        {"key": f"update/{number}", "what": "loss", "one device": a, f"{DEVICES} simulated devices": b}
        | {"relative difference": abs(a - b) / abs(a)}
        for number, (a, b) in enumerate(pairs, start=1)
    ]


def efficiency(lab: harness.Lab, trials: int) -> list[dict[str, Any]]:
    """Tune only the mesh. The plan then has a note on how the training scales."""
    options = ("--devices", str(DEVICES), "--only", "mesh", "--trials", str(trials))
    plan, _ = lab.tune(SCRIPT, *options, name="scaling")
    note = scaling_note(plan)
    print(f"\nplan with only the mesh tuned: {harness.plan_row(plan)['plan']}\n{note}")
    return scaling_rows(note)


def scaling_rows(note: str) -> list[dict[str, Any]]:
    """Return one row per number of devices in a note on scaling."""
    label = note[note.find("(") + 1 : note.find(")")]
    return [
        {"key": f"devices/{size}", "what": "efficiency", "devices": int(size), "evidence": label}
        | {"samples/s": rate.replace(",", ""), "efficiency %": int(share)}
        for size, rate, share in _SIZE.findall(note)
    ]


def scaling_note(plan: Plan) -> str:
    """Return the note of the plan on 1, 2, 4 and 8 devices."""
    found = [note for note in plan.notes if note.startswith("throughput and efficiency")]
    if not found:
        raise harness.StudyFailed(f"the plan has no note on efficiency; its notes: {plan.notes}")
    return found[0]


def main() -> None:
    parser = harness.parser("studies.mesh", __doc__)
    parser.add_argument("--trials", type=int, default=6)
    arguments = parser.parse_args()
    harness.header("Does a mesh train the same as one device, and how efficient is it? All devices are simulated")
    origin = harness.provenance()
    with harness.lab() as lab:
        for part in (losses, efficiency):
            rows = part(lab, arguments.trials)
            harness.write_rows(HERE / "results.csv", [{**row, **origin} for row in rows], key="key")
    harness.print_table(rows, ["devices", "samples/s", "efficiency %", "evidence"])


if __name__ == "__main__":
    main()
