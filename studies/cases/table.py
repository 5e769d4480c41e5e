"""The table of cases: commands, and what a user must get from them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from studies import harness
from studies.cases.checking import (
    Case,
    Judge,
    Outcome,
    batch_kept,
    code,
    either,
    every,
    no_plan,
    planned,
    refused,
    same_number,
    says,
    silent_about,
    trains_differently,
)

MEANING = "the training's meaning"
PROMISES = "own settings and pins"
FILES = "the user's files"
AS_IT_IS = "judged by what the script does"
REASONS = "reasons"
MESSAGES = "clear messages"

CLAIMS_SAME = (
    r"training gives the same|trains the same|same results|keeps the effective batch, and with it the training"
)
JAX = {"KERAS_BACKEND": "jax"}
TRAIN = "train SCRIPT --plan plan.yaml"
OWN = "python SCRIPT"


def _refused_or_kept(reason: str) -> Judge:
    """A pin of the batch that would change the training is refused with the reason, or the plan trains differently."""
    return every(either(refused(reason), trains_differently()), silent_about(CLAIMS_SAME, run=0))


def _no_false_rescue(reason: str) -> Judge:
    """A rescue finds nothing, or keeps the batch, or says that training differs; and the reason is named."""
    kept = either(every(code(3), no_plan()), every(code(0), batch_kept()), trains_differently())
    return every(kept, says(reason), silent_about(CLAIMS_SAME))


def _remainder_kept() -> Judge:
    """The same final weights; or the batch is held, or rows of the remainder are left out, with the reason."""
    left_out = every(code(0, run=2), says("an epoch (is|are) left out, because .* not padded because", run=0))
    return either(refused("loss"), same_number("checksum", 1, 2), left_out)


def _lines_kept(outcome: Outcome) -> str:
    lines = len((outcome.folder / "trace.txt").read_text().splitlines())
    return "" if lines == 32 else f"trace.txt has {lines} lines instead of 32"


def _path_kept(outcome: Outcome) -> str:
    rows = len(np.load(outcome.folder / "trajectory.npy"))
    return "" if rows == 32 else f"trajectory.npy has {rows} rows instead of 32"


def _status_kept(outcome: Outcome) -> str:
    batches = json.loads((outcome.folder / "status.json").read_text(encoding="utf-8"))["batches"]
    return "" if batches == 32 else f"status.json counts {batches} batches instead of 32"


def _rows_that_passed(outcome: Outcome) -> str:
    """The throughput counts the rows that the batches have: 37 on average."""
    plan = outcome.plan() or {}
    measured = plan["baseline"]["measured"]
    rows = measured["samples_per_second"] * measured["micro_step_seconds"]
    return "" if 30 <= rows <= 44 else f"a micro-step is said to have {rows:.0f} rows instead of about 37"


def _left_or_said(outcome: Outcome) -> str:
    if "of b: float32" in outcome.of(1):
        return ""
    said = re.search("for every model|also for the other models|holds? for it too", outcome.text)
    return "" if said else "the second model is trained in another precision, and nothing says so"


_ON_JAX: Mapping[str, Case] = {
    "remainder of a normalised loss": Case(
        MEANING,
        "remainder_normalised_loss.py",
        ("tune SCRIPT --fix batch.accumulation=4 --trials 2 --budget 240s", OWN, TRAIN),
        _remainder_kept(),
    ),
    "remainder with ignored classes": Case(
        MEANING,
        "remainder_normalised_loss.py",
        ("tune SCRIPT --fix batch.accumulation=4 --trials 2 --budget 240s", OWN, TRAIN),
        _remainder_kept(),
        {"KIND": "ignore_class"},
    ),
    "state that acts late": Case(
        MEANING,
        "late_state.py",
        ("tune SCRIPT --fix batch.accumulation=4 --fix precision=float32 --trials 2 --budget 240s",),
        _refused_or_kept("annealed"),
    ),
    "rescue of a summed loss": Case(
        MEANING,
        "rescue_of_a_summed_loss.py",
        ("tune SCRIPT --memory-limit 1000MiB --trials 5 --budget 240s",),
        _no_false_rescue("as a sum over them does"),
    ),
    "rescue of a loss over the batch": Case(
        MEANING,
        "rescue_of_a_batch_loss.py",
        ("tune SCRIPT --memory-limit 1050MiB --trials 5 --budget 240s",),
        _no_false_rescue("info_nce depends on which rows"),
    ),
    "float16 that skips updates": Case(
        MEANING,
        "float16_skipped_updates.py",
        ("tune SCRIPT --fix precision=mixed_float16 --trials 3 --budget 240s",),
        every(
            says("0 of the 20"),
            planned("verification.numerics", "not_compared"),
            silent_about(CLAIMS_SAME),
            silent_about("similar results|variation between seeds"),
        ),
    ),
    "callback that stops": Case(
        MEANING,
        "stop_after.py",
        ("tune SCRIPT --trials 2 --budget 240s --fix accumulation=2", TRAIN),
        every(code(0, run=0), says("batch hooks of MaxSteps", run=0), says(r"iterations: 40\b", run=1)),
        JAX,
    ),
    "slower pin that trains differently": Case(
        MEANING,
        "pinned_not_compared.py",
        ("tune SCRIPT --trials 2 --budget 240s --fix accumulation=2",),
        every(_refused_or_kept("Pairs depends on which rows"), silent_about("not compared")),
        JAX,
    ),
    "two models": Case(
        MEANING, "two_models.py", ("tune SCRIPT --no-measure --fix precision=mixed_bfloat16", TRAIN), _left_or_said, JAX
    ),
    "own steps_per_execution": Case(
        PROMISES,
        "own_steps_per_execution.py",
        ("tune SCRIPT --trials 2 --budget 240s --only steps_per_execution,precision",),
        every(
            code(0),
            silent_about("excludes? the baseline"),
            either(planned("config.steps_per_execution", 4), planned("verification.faster", True)),
        ),
        JAX,
    ),
    "pin that no trial survives": Case(
        PROMISES,
        "pin_not_kept.py",
        ("tune SCRIPT --trials 2 --budget 240s --fix precision=mixed_bfloat16",),
        every(code(3), no_plan(), says("float32 only"), silent_about("failed by itself")),
        JAX,
    ),
    "pin against EMA": Case(
        PROMISES,
        "pin_refused_ema.py",
        ("tune SCRIPT --fix accumulation=2",),
        every(code(2), says("use_ema"), silent_about("--effective-batch")),
        JAX,
    ),
    "pin against EMA, batch freed": Case(
        PROMISES,
        "pin_refused_ema.py",
        ("tune SCRIPT --fix accumulation=2 --effective-batch 128",),
        every(code(2), says("use_ema"), silent_about("mesh|devices? on the data axis")),
        JAX,
    ),
    "words of an out-of-memory error": Case(
        PROMISES,
        "out_of_memory_words.py",
        ("tune SCRIPT --fix precision=mixed_bfloat16 --trials 3 --budget 240s",),
        every(
            code(3),
            no_plan(),
            says(r"\(not supported: [^()]*: ValueError: the table of 'out of memory' phrases has no bfloat16 column\)"),
            silent_about(r"\(out of memory|ran out of memory"),
        ),
    ),
    "hidden out-of-memory error": Case(
        PROMISES,
        "out_of_memory_words.py",
        ("tune SCRIPT --fix precision=mixed_bfloat16 --trials 3 --budget 240s",),
        every(code(3), no_plan(), says(r"\(out of memory.* API call failed"), silent_about("failed by itself")),
        {"KIND": "hidden"},
    ),
    "callback that writes": Case(
        FILES,
        "batch_writer.py",
        (OWN, "tune SCRIPT --trials 1 --budget 240s"),
        every(code(0), _lines_kept, says("Trace")),
        JAX,
    ),
    "diverges after the fit": Case(
        AS_IT_IS,
        "trial_runs_past_the_fit.py",
        ("tune SCRIPT --trials 2 --budget 240s",),
        every(code(0), planned("evidence", "measured")),
    ),
    "hoards after the fit": Case(
        AS_IT_IS,
        "trial_runs_past_the_fit.py",
        ("tune SCRIPT --trials 3 --budget 240s --memory-limit 4GiB",),
        every(code(0), says("grows")),
        {"KIND": "memory"},
    ),
    "validation memory": Case(
        AS_IT_IS,
        "validation_memory.py",
        ("tune SCRIPT --memory-limit 1GiB --trials 2 --budget 150s --only batch",),
        every(says(r"validation_batch_size=\d+"), planned("validation.fits", False)),
    ),
    "one long batch": Case(
        AS_IT_IS,
        "long_batch.py",
        ("estimate SCRIPT", "tune SCRIPT --trials 2 --budget 240s"),
        every(*(says("largest, 32 x 1024", run=run) for run in (0, 1))),
    ),
    "buckets": Case(
        AS_IT_IS,
        "buckets.py",
        ("tune SCRIPT --effective-batch 64..256 --trials 4 --budget 240s", "tune SCRIPT --trials 2 --budget 240s"),
        every(
            refused("differ in rows and in shape"),
            code(0),
            batch_kept(),
            says("differ in rows and in shape", run=1),
            _rows_that_passed,
            silent_about("MaybeMoveContiguousSlices"),
        ),
    ),
    "seeds of an own layer": Case(
        REASONS,
        "seed_generator_in_own_layer.py",
        ("tune SCRIPT --only batch,jit_compile --fix batch.accumulation=2 --trials 2 --budget 420s",),
        every(code(0), planned("verification.numerics", "within_seed_band"), planned("verification.seeds_compared", 5)),
    ),
    "frozen BatchNormalization": Case(
        REASONS,
        "frozen_batch_norm.py",
        ("tune SCRIPT --no-measure --fix accumulation=2",),
        every(code(0), silent_about("BatchNormalization takes"), silent_about("left out:")),
        JAX,
    ),
    "consumed mask": Case(
        REASONS,
        "mask_consumed.py",
        ("tune SCRIPT --no-measure --fix accumulation=2",),
        every(code(0), silent_about("unmasked"), silent_about("left out:")),
        JAX,
    ),
    "arrays": Case(
        REASONS,
        "arrays_slow_reading.py",
        ("tune SCRIPT --trials 1 --budget 240s",),
        every(code(0), silent_about("faster input|reading the data")),
        JAX,
    ),
    "own optimizers": Case(
        REASONS,
        "own_optimizers_updates.py",
        ("tune SCRIPT --trials 1 --budget 240s", TRAIN),
        every(code(0), silent_about(r"\b0 updates")),
        {"KERAS_BACKEND": "tensorflow"},
    ),
    "layer that is not compiled": Case(
        REASONS,
        "uncompiled_layer.py",
        ("tune SCRIPT --trials 2 --budget 240s",),
        every(code(0), says("RandomCrop"), silent_about("about 100 times")),
        JAX,
    ),
    "calls of a callback": Case(
        REASONS,
        "callback_count.py",
        (
            "tune SCRIPT --no-measure --fix accumulation=1 --fix steps_per_execution=1 --fix precision=float32",
            TRAIN,
        ),
        every(code(0), silent_about("0.25 times"), says("calls of on_train_batch_end: 32", run=1)),
        JAX,
    ),
    "optimizer that is built": Case(
        MESSAGES,
        "built_optimizer.py",
        ("tune SCRIPT --no-measure --fix accumulation=2", TRAIN),
        either(every(code(0), says("iterations: 48", run=1)), code(2)),
        JAX,
    ),
    "focal loss by positives": Case(
        MEANING,
        "positives_loss.py",
        ("tune SCRIPT --trials 2 --budget 240s --fix accumulation=2",),
        _refused_or_kept("focal_by_positives"),
        JAX,
    ),
    "curriculum in a train_step": Case(
        MEANING,
        "curriculum_step.py",
        ("tune SCRIPT --trials 2 --budget 240s --fix accumulation=2",),
        _refused_or_kept("warmth"),
        {"KERAS_BACKEND": "tensorflow"},
    ),
    "own compilation off": Case(
        PROMISES,
        "own_compilation_off.py",
        ("tune SCRIPT --trials 3 --budget 240s --only precision",),
        every(code(0), silent_about("excludes? the baseline"), planned("config.jit_compile", False)),
        JAX,
    ),
    "batch that the model fixes": Case(
        PROMISES,
        "fixed_batch.py",
        ("tune SCRIPT --trials 3 --budget 240s --fix accumulation=2",),
        every(refused(r"\b32\b"), no_plan(), silent_about("failed by itself")),
        JAX,
    ),
    "path of weights": Case(
        FILES,
        "weights_history.py",
        (OWN, "tune SCRIPT --trials 1 --budget 240s"),
        every(code(0), _path_kept, says("Trajectory")),
        JAX,
    ),
    "status of a LambdaCallback": Case(
        FILES,
        "progress_file.py",
        (OWN, "tune SCRIPT --trials 1 --budget 240s"),
        every(code(0), _status_kept, says("LambdaCallback")),
        JAX,
    ),
    "learning rates that grow": Case(
        AS_IT_IS,
        "range_test.py",
        ("tune SCRIPT --trials 2 --budget 240s",),
        every(code(0), planned("evidence", "measured")),
        JAX,
    ),
    "ragged DataLoader": Case(
        AS_IT_IS,
        "ragged_loader.py",
        ("tune SCRIPT --trials 3 --budget 420s --effective-batch 32..128", TRAIN),
        every(
            code(0, run=0),
            code(0, run=1),
            says("batches differ in shape", run=0),
            either(batch_kept(), says("effective batch changes from 32 to .* so results differ", run=0)),
            silent_about(CLAIMS_SAME, run=0),
            silent_about(r"trial \d failed", run=0),
        ),
        {"KERAS_BACKEND": "torch"},
    ),
    "image size left open": Case(
        AS_IT_IS,
        "open_image_size.py",
        (
            "estimate SCRIPT --hardware gpu-a100-40gb",
            "estimate SCRIPT --hardware gpu-a100-40gb --input-shape 224,224,3",
        ),
        every(code(0, run=0), code(0, run=1), says("128", run=0), silent_about("assumed", run=1)),
        JAX,
    ),
    "dropout of zero": Case(
        REASONS,
        "dropout_of_zero.py",
        ("tune SCRIPT --only jit_compile,batch --fix accumulation=2 --trials 2 --budget 420s",),
        every(
            code(0),
            says("Training gives the same results"),
            planned("verification.numerics", "exact"),
            silent_about("seeds|random numbers"),
        ),
        JAX,
    ),
    "schedule of an own class": Case(
        MESSAGES,
        "schedule_of_own_class.py",
        ("tune SCRIPT --no-measure --fix accumulation=2", TRAIN),
        either(every(code(0), says("iterations: 48", run=1)), code(2)),
        JAX,
    ),
    "data without samples": Case(
        MESSAGES,
        "fit_without_data.py",
        ("tune SCRIPT --trials 2 --budget 120s",),
        every(code(2), says("no samples"), no_plan()),
        JAX,
    ),
}
"""The cases on the backend of the script's author."""
ON_EVERY_BACKEND = (
    "remainder of a normalised loss",
    "state that acts late",
    "rescue of a summed loss",
    "callback that stops",
    "callback that writes",
    "seeds of an own layer",
)
"""Cases whose scripts run on any backend and where the backends take other paths: padding, state, memory, callbacks."""
CASES: Mapping[str, Case] = {
    **_ON_JAX,
    **{
        harness.on_backend(name, backend): replace(_ON_JAX[name], environment={"KERAS_BACKEND": backend})
        for name in ON_EVERY_BACKEND
        for backend in ("tensorflow", "torch")
    },
}
"""Names of cases, and the cases."""
