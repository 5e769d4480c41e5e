from __future__ import annotations

import pytest

from autoplan import formatting
from autoplan.jobs.messages import SplitProbe
from autoplan.tuning.result.notes import (
    baseline_notes,
    busy_note,
    learning_rate_rule,
    limit_note,
    notes_for,
    recompilation_note,
    setup_note,
)
from cost_models.config import Precision
from tests.builders.estimates import candidate
from tests.builders.observations import VERSIONS, cluster, config, observation

LEFT_OUT = (
    "2 of the 326 samples of an epoch are left out, because the last samples do not divide by the micro-steps, and "
    "they are not padded because rows of weight zero may change an update of a model with "
)
LOSS = "; the mean loss that Keras reports for an epoch counts this update like a full one"
NOT_PROBED = f"; whether these change an update was not probed{LOSS}"


def notes(own, wanted, here=None, **facts):
    return notes_for(wanted, own, observation(own, **facts), here or cluster(), VERSIONS)


def test_an_unchanged_training_needs_no_note():
    assert notes(config(64), config(64)) == []


@pytest.mark.parametrize(
    ("optimizer", "rule", "factor"),
    [("SGD", "linear", 4.0), ("AdamW", "square_root", 2.0), ("Lamb", "square_root", 2.0)],
)
def test_the_learning_rate_follows_the_effective_batch(optimizer, rule, factor):
    told = learning_rate_rule(optimizer, 64, 256)
    assert (told.rule, told.factor) == (rule, factor)
    assert told.text.startswith(
        f"{rule.replace('_', ' ')} rule for {optimizer}: multiply the learning rate by {factor:g}"
    )
    assert "warm-up" in told.text
    assert "arXiv:" in told.text


def test_a_smaller_batch_needs_no_warm_up():
    told = learning_rate_rule("SGD", 256, 64)
    assert told.factor == 0.25
    assert "warm-up" not in told.text


def test_no_rule_where_nothing_changes_or_none_is_established():
    assert learning_rate_rule("SGD", 64, 64) is None
    assert learning_rate_rule("Muon", 64, 128) is None
    assert notes(config(64), config(128), optimizer="Muon") == [
        "the effective batch changes from 64 to 128, so results differ; no learning-rate rule is established for Muon"
    ]


def test_batch_norm_sees_other_micro_steps():
    told = (
        "BatchNormalization takes its statistics over the 16 samples of a micro-step instead of 64 as in the script; "
    )
    assert notes(config(64), config(16, 4), batch_norm=True) == [told + "this cannot be avoided"]
    assert notes(config(64), config(64, mesh={"data": 4}), cluster(4, kind="gpu"), batch_norm=True) == []


def test_what_a_probe_found_is_noted():
    reason, compared = "the loss info_nce depends on other rows", "an update of 64 rows was compared with its halves"
    held = SplitProbe(split="differs", split_reason=reason, compared=compared)
    assert notes(config(64), config(64), probe=held) == [f"an update is split as in the script: {reason}"]
    same = SplitProbe(split="same", compared=compared)
    assert notes(config(64), config(64), probe=same) == []
    assert notes(config(64), config(16, 4), probe=same) == [compared]
    assert notes(config(64), config(16, 4), probe=same, masks=True, batch_norm=True, random_layers=True) == [compared]
    failed = SplitProbe(ran=False, split_reason="it took too long")
    assert notes(config(64), config(16, 4), probe=failed) == [
        "whether another split of an update gives the same gradients was not probed: it took too long"
    ]


def test_padding_that_was_compared_is_noted():
    padded = SplitProbe(split="same", padding="same")
    (note,) = notes(config(64), config(16, 4), samples=64 * 5 + 6, probe=padded, unweighted_metrics=True)
    assert "padded with samples of weight zero, which changed no update where it was compared; the mean loss" in note
    differs = SplitProbe(split="same", padding="differs")
    (note,) = notes(config(64), config(16, 4), samples=64 * 5 + 6, probe=differs)
    assert note.startswith("2 of the 326 samples of an epoch are left out")
    reason = "the metric mae counts rows of weight zero"
    named = SplitProbe(split="same", padding="differs", padding_reason=reason)
    (note,) = notes(config(64), config(16, 4), samples=64 * 5 + 6, probe=named)
    assert note.endswith(f"and they are not padded because {reason}")


def test_what_counts_micro_steps_is_stretched():
    (told,) = notes(config(64), config(16, 4), schedule=True)
    assert told.startswith("Keras's learning-rate schedule counts micro-steps, of which an update has 4 instead of 1")


def test_a_policy_that_loses_values_of_an_input_is_named_whether_it_is_chosen_or_not():
    probe = SplitProbe(split="same", lost_values={"mixed_bfloat16": "the input has whole numbers up to 299"})
    (told,) = notes(config(64), config(64), probe=probe)
    assert told == "mixed_bfloat16 is not tried: the input has whole numbers up to 299"
    pinned = config(64).with_(precision=Precision.MIXED_BFLOAT16)
    told = notes(config(64), pinned, probe=probe)[0]
    assert told.startswith("in mixed_bfloat16 the input has whole numbers up to 299; this can harm the training")
    assert notes(pinned, pinned, probe=probe) == []


def test_a_moving_average_keeps_the_batch():
    (told,) = notes(config(64), config(64), ema=True)
    assert told.startswith(
        "the batch is not changed: Keras averages weights after every micro-step (use_ema), so a split"
    )


def test_a_constraint_that_acts_at_every_micro_step_keeps_the_batch():
    (told,) = notes(config(64), config(64), constraint="MinMaxNorm of dense/kernel")
    assert told.startswith("the batch is not changed: Keras applies the constraint MinMaxNorm of dense/kernel at every")


def test_own_metrics_are_averaged_over_micro_steps():
    facts = {"own_metrics": ["f1_m"], "metric_monitors": ["ReduceLROnPlateau", "EarlyStopping"]}
    (told,) = [one for one in notes(config(64), config(32, 2), **facts) if "f1_m" in one]
    assert told == (
        "Keras calls f1_m for each micro-step, in validation too, so in micro-batches of another size its values may "
        "differ, and ReduceLROnPlateau and EarlyStopping, monitoring one, may act in another epoch"
    )
    assert not any("f1_m" in one for one in notes(config(64), config(64), **facts))


def test_a_loss_scale_counts_micro_steps():
    split = config(32, 2).with_(precision=Precision.MIXED_FLOAT16)
    assert any("the loss scale counts micro-steps" in told for told in notes(config(64), split))
    whole = config(64).with_(precision=Precision.MIXED_FLOAT16)
    assert not any("the loss scale counts" in told for told in notes(config(64), whole))


def test_an_update_that_goes_on_in_the_next_epoch_is_told():
    assert not [note for note in notes(config(32, 8), config(256), samples=1024) if "into an update" in note]
    carried = [note for note in notes(config(32, 8), config(256), samples=1056) if "into an update" in note]
    assert carried[0].startswith("an epoch of the script ends 1 micro-step into an update")


@pytest.mark.parametrize(
    ("samples", "facts", "told"),
    [
        (64 * 5, {}, None),
        (64 * 5 + 8, {}, "the last 8 samples of an epoch form an update of 4 smaller micro-steps"),
        (
            64 * 5 + 6,
            {},
            "the last 6 samples of an epoch are padded with samples of weight zero" + NOT_PROBED,
        ),
        (
            64 * 5 + 6,
            {"unweighted_metrics": True},
            LEFT_OUT + "metrics that ignore sample weights; this was not probed",
        ),
        (
            64 * 5 + 6,
            {"added_losses": True, "custom_train_step": True},
            LEFT_OUT + "losses that layers add and a train_step of its own; this was not probed",
        ),
    ],
)
def test_the_end_of_an_epoch_is_told(samples, facts, told):
    assert notes(config(64), config(16, 4), samples=samples, **facts) == ([told] if told else [])


def test_the_end_of_an_epoch_on_a_mesh_is_told():
    told = "the last 6 samples of an epoch do not divide by the devices: every device computes all of them"
    assert notes(config(64), config(64, mesh={"data": 4}), cluster(4, kind="gpu"), samples=70) == [told]


def test_an_epoch_of_unknown_or_counted_length_has_no_known_end():
    assert notes(config(64), config(16, 4), samples=None) == []
    counted = {"samples": 70, "explicit_steps_per_epoch": True}
    assert notes(config(64), config(16, 4), steps_per_epoch=1, epochs=1, **counted) == []
    (told,) = notes(config(64), config(16, 4), steps_per_epoch=2, **counted)
    assert told.startswith("the last 6 samples of an epoch are padded")


def test_simulated_devices_are_told():
    assert notes(config(64), config(64), cluster(4)) == [
        "simulated: the 4 devices share one CPU, so the figures do not apply to real devices",
    ]


def test_what_was_done_to_the_script_is_told():
    told = notes(
        config(64),
        config(64),
        intercepted=["clear_session"],
        data="synthetic",
        notes=["a note of the worker"],
    )
    assert told == [
        "calls of the script that the plan overrides: clear_session",
        "the data are synthetic, so the input pipeline was not measured",
        "to train, add a train_data() that returns the arguments of fit, or call autoplan.fit(plan, model, x, y)",
        "a note of the worker",
    ]


def test_calls_of_callbacks_are_noted():
    stops = [{"name": "MaxSteps", "changes": ["stop_training"]}]
    (note,) = notes(config(64), config(32, 2), batch_callbacks=stops)
    assert note.startswith("batch hooks of MaxSteps (changes the training: stop_training): `autoplan train` and")
    assert note.endswith(
        "as often as in the script (16 times per epoch, 48 per fit); in a script that sets the plan's "
        "batch itself, they are called 32 times per epoch, 96 per fit"
    )
    assert notes(config(64), config(64), batch_callbacks=stops) == []
    assert notes(config(64), config(32, 2)) == []


def test_code_that_counts_micro_steps_is_noted():
    (note,) = notes(config(64), config(16, 4), counting_code=["Net", "Batches"])
    assert note == (
        "code of Net, Batches adds a number at every micro-step, of which there are 4 times as many under the plan, so "
        "a count of micro-steps means another number of samples"
    )
    assert notes(config(64), config(64, steps_per_execution=8), counting_code=["Net"]) == []


def test_settings_that_other_models_get_are_noted():
    own, more = ["float32"], ["float32", "mixed_float16"]
    bfloat16, remat = config(64, precision="mixed_bfloat16"), config(64, remat={"mode": "activations"})
    other = {"other_models": ["student", "teacher"], "own_policies": own}
    (note,) = notes(config(64), bfloat16, **other)
    assert note == (
        "precision mixed_bfloat16 is set also for the other models of the script (student and teacher), except in a "
        "fit of their own under `autoplan train`; they were neither tuned nor compared"
    )
    (note,) = notes(config(64), remat, **other)
    assert note.startswith(
        "remat activations is set also for the other models of the script (student and teacher); they"
    )
    assert notes(config(64), config(32, 2), **other) == []
    assert notes(config(64), bfloat16, may_fit_again=True, own_policies=own) == []
    (note,) = notes(config(64), bfloat16, may_fit_again=True, own_policies=more)
    assert note == (
        "precision mixed_bfloat16 is set for every model that the script trains; a model of another fit was neither "
        "tuned nor compared"
    )


def test_what_is_handled_is_told_with_its_citation():
    counted, told = notes(config(64), config(32, 2, precision="mixed_float16"))
    assert counted.startswith("in mixed_float16 the loss scale counts micro-steps")
    assert told.startswith("LossScaleOptimizer refuses gradient_accumulation_steps")
    assert told.endswith("[observed with Keras 3.15.1]")


def test_a_pinned_knob_that_gains_nothing_is_no_note():
    assert notes(config(64), config(64, steps_per_execution=8)) == []


def test_known_issues_of_the_baseline_are_told():
    (told,) = baseline_notes(config(64, jit_compile=False), observation(), VERSIONS)
    assert told.startswith("known issue of the baseline: without jit_compile, JAX dispatches each operation separately")


HELD = {"jit_compile": "Keras cannot compile layers of type RandomCrop"}


@pytest.mark.parametrize("backend", ["jax", "tensorflow"])
def test_a_model_that_keras_does_not_compile_is_told_with_the_layers_and_what_to_do(backend):
    facts = observation(config(64, jit_compile=False, backend=backend), held=HELD)
    told = baseline_notes(facts.config, facts, VERSIONS)
    assert told[0] == (
        "your training runs without jit_compile, because Keras cannot compile layers of type RandomCrop. Apply these "
        "layers to the data instead, as in dataset.map(layer), or leave them out: Keras then compiles the rest of the "
        "model"
    )
    assert not any("times slower" in note for note in told)


def test_the_launch_overhead_of_such_a_model_is_that_of_its_estimate():
    facts = observation(config(64, jit_compile=False), held=HELD)
    estimate = candidate(facts.config).analytic
    told = baseline_notes(facts.config, facts, VERSIONS, estimate)[0]
    share = float(estimate.time.parts.overhead / estimate.time.micro_step_seconds)
    assert f"RandomCrop; launch overhead is {formatting.percent(share)} of its estimated micro-step (analytic)" in told


def test_a_compiled_training_needs_no_word_about_compilation():
    assert baseline_notes(config(64), observation(held=HELD), VERSIONS) == []


@pytest.mark.parametrize(("setup_seconds", "suggested"), [(1.9, False), (2.1, True)])
def test_a_builder_is_suggested_above_a_fifth_of_a_trial(setup_seconds, suggested):
    told = setup_note(setup_seconds, trial_seconds=10.0)
    assert bool(told) is suggested
    if suggested:
        assert told.startswith("the script's code before fit takes 2.1 s, 21% of a trial, and runs in every trial")


def test_a_machine_that_others_use_is_told_beside_a_speed_up():
    assert busy_note([], 4) is None
    assert busy_note([None, 0.2, 0.99], 4) is None
    assert busy_note([None, 0.2, 1.26], 4) == (
        "Other processes used 1.3 of 4 CPU cores while baseline and plan were compared, so the timings are noisy. "
        "Run again on an idle machine before you rely on the speed-up."
    )


def test_trials_beside_other_work_are_told_where_nothing_was_compared():
    assert busy_note([0.2], 4, compared=False) is None
    told = busy_note([1.26], 4, compared=False)
    assert told.startswith("Other processes used 1.3 of 4 CPU cores during the trials")


def test_a_limit_on_memory_is_told_with_what_it_was_held_against():
    assert limit_note(None, cluster()) is None
    told = "memory was limited to 2.00 GiB (--memory-limit)"
    assert limit_note(2**31, cluster()) == f"{told}: a trial whose processes used more was stopped"
    elsewhere = f"{told} in estimates; the device itself was not limited"
    assert limit_note(2**31, cluster(kind="gpu")) == elsewhere
    assert limit_note(2**31, cluster(local=False)) == elsewhere


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        (
            {},
            "a partial batch, if there is one, is padded with samples of weight zero" + NOT_PROBED,
        ),
        ({"batch_norm": True}, "are left out if they do not divide by 4"),
    ],
)
def test_a_partial_batch_that_only_the_run_will_show(facts, told):
    found = notes(config(64), config(16, 4), samples=640, samples_exact=False, data="generator", **facts)
    assert any(told in note for note in found)


def test_a_mask_makes_another_split_weigh_differently():
    found = notes(config(64), config(16, 4), masks=True)
    assert any("averaged over the unmasked positions of each micro-step" in note for note in found)
    assert notes(config(64), config(64), masks=True) == []


def test_compilations_after_the_first_are_told_with_their_cause_where_it_was_seen():
    alike, told = observation(), "the training step was compiled 3 more times after its first micro-step"
    batches = {"looked": 9, "of": 9, "common": [[4, 8]], "mean_rows": 4.0, "differ_in_rows": False}
    differ = observation(batches=batches | {"largest": [[4, 64]], "differ_in_shape": True})
    assert recompilation_note(3, alike) == told
    assert recompilation_note(3, differ) == f"{told}: its batches differ, and each shape is compiled once"
    assert recompilation_note(0, differ) is None
