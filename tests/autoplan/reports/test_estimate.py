from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest

from autoplan.plan.records import CompiledMemory, CompilerEvidence
from autoplan.reports import estimate as estimate_report
from autoplan.reports import plan_table
from autoplan.tuning.estimates.configuration import ConfigurationEstimate
from cost_models.accuracy import Accuracy
from cost_models.estimate import Estimate, Explanation, Validation
from cost_models.memory import Capacity, LiveTensor, MemoryCost
from cost_models.time.cost import TimeParts
from cost_models.workload.workload import UnknownOp
from tests.builders import estimates, plans


def estimate(accuracy=None, capacity=None, unknown_ops=(), explanation=None, notes=(), hardware="tpu-v4-8", **time):
    analytic = plans.analytic(**time)
    changes = {"accuracy": accuracy, "unknown_ops": unknown_ops, "hardware": hardware}
    changes |= {"capacity": capacity} if capacity else {}
    return ConfigurationEstimate(replace(analytic, **changes), explanation=explanation, notes=notes)


def lines(estimate, **options) -> list[list[str]]:
    stream = io.StringIO()
    plan_table.print_to(plan_table.open_console(stream), estimate_report.estimated(estimate, **options))
    return [re.split(r"\s{2,}", line.strip()) for line in stream.getvalue().splitlines()]


def text(estimate, **options) -> str:
    return "\n".join("  ".join(row) for row in lines(estimate, **options))


def test_the_first_line_says_what_where_and_that_nothing_was_measured():
    assert lines(estimate())[0] == [
        "float32, batch 128 on tpu-v4-8. Nothing was run or measured: every figure is analytic."
    ]


def test_memory_by_component_with_shares_of_the_total():
    rows = lines(estimate())
    assert ["parameters", "100 MiB", "33%"] in rows
    assert ["optimizer", "50.0 MiB", "17%"] in rows
    assert ["total", "300 MiB"] in rows
    assert ["The total is between 280 MiB and 320 MiB."] in rows
    assert not any(row[0] == "accumulators" for row in rows)


def test_time_by_part_with_shares_of_the_micro_step():
    rows = lines(estimate())
    assert ["micro-step", "3.50 ms"] in rows
    assert ["arithmetic", "1.75 ms", "50%"] in rows
    assert ["launch overhead", "875 µs", "25%"] in rows
    assert ["communication", "0 s", "0%"] in rows
    assert ["update", "3.50 ms"] in rows
    assert ["samples/s", "36,600"] in rows
    assert ["MFU", "21%"] in rows
    assert ["bound by", "arithmetic"] in rows


def test_the_mfu_of_this_machine_says_that_its_peak_was_probed():
    here = estimate(hardware="local")
    assert ["MFU (of probed peak)", "21%"] in lines(here)
    assert "model FLOPs divided by the devices' measured peak, not a data sheet's" in text(here, explain=True)


def test_time_has_a_band_where_a_study_has_measured_such_hardware():
    """3.5 ms, and nine of ten rows took 0.5 to 2 times what was predicted."""
    accuracy = Accuracy(low=0.5, high=2.0, rows=800, of="rows", source="studies/rows")
    assert (
        "The micro-step probably takes 1.75 to 7.00 ms: in a study of 800 rows, 90% took 0.5 to 2 times the "
        "estimated time (studies/rows)."
    ) in text(estimate(accuracy=accuracy))
    unknown = "The accuracy of this time is not known: no study has enough measurements of such hardware."
    assert unknown in text(estimate())


def test_what_was_taken_for_granted_is_told():
    told = lines(estimate(notes=("no --mesh was given",)))
    assert told[-2:] == [["Notes"], ["- no --mesh was given"]]
    assert ["Notes"] not in lines(estimate())


def test_fitting_and_not_fitting_give_both_sides():
    fits = estimate()
    assert "It fits: it needs up to 320 MiB, and 27.6 GiB of a device's 30.0 GiB may be used (8% stays free)." in text(
        fits
    )
    small = estimate(capacity=Capacity(256 * plans.MIB, 0.0))
    assert "It does not fit: it needs up to 320 MiB, and 256 MiB of a device's 256 MiB may be used." in text(small)


def test_where_the_interval_spans_the_limit_the_answer_is_open():
    open_answer = estimate(capacity=Capacity(300 * plans.MIB, 0.0))
    told = "It may fit: it needs 280 MiB to 320 MiB, and 300 MiB of a device's 300 MiB may be used. --evidence compiled"
    assert told in " ".join(text(open_answer).split())


def test_an_unknown_mfu_stays_unknown():
    assert ["MFU", "not known"] in lines(estimate(mfu=None))


def test_operations_without_a_rule_are_named():
    unknown = estimate(unknown_ops=(UnknownOp(primitive="eigh", count=3, reason=""),))
    assert "Operations that no rule covers, so only their memory traffic is counted: eigh (3 times)." in text(unknown)


def test_explanations_name_every_part_and_the_largest_temporaries():
    tensor = LiveTensor(layer="block/dense", purpose="activation", dtype="float32", shape=(128, 512), bytes=2**18)
    told = lines(estimate(explanation=Explanation((tensor,))), explain=True)
    assert ["block/dense", "activation", "float32 128x512", "256 KiB"] in told
    assert ["accumulators", "0 B", "summed gradients between updates"] in told
    assert ["total", "300 MiB", "interval: 280 MiB to 320 MiB"] in told
    assert ["The cost model covers every operation of the training program."] in told


@pytest.mark.parametrize(("named", "cost"), [("MEMORY_PARTS", MemoryCost), ("TIME_PARTS", TimeParts)])
def test_every_part_of_the_cost_models_has_its_explanation(named, cost):
    parts = set(cost.__dataclass_fields__)
    others = {
        "total",
        "total_low",
        "total_high",
        "micro_step_seconds",
        "update_seconds",
        "samples_per_second",
        "mfu",
        "bound",
    }
    assert set(getattr(estimate_report, named)) == parts - others


def test_a_bare_step_is_never_printed():
    assert not re.search(r"(?<![-_])\bsteps?\b(?!_)", text(estimate(), explain=True))


def test_an_estimate_names_the_release_of_its_rules_where_another_is_installed(monkeypatch):
    monkeypatch.setattr(estimate_report, "rules_note", lambda: "rules of jaxlib 0.10.2")
    assert "rules of jaxlib 0.10.2" in text(estimate())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"fits": True, "may_fit": True}, "fits: it needs up to 2.00 GiB (analytic)."),
        (
            {"fits": False, "may_fit": False, "fitting_rows": 1024},
            "does not fit: it needs up to 2.00 GiB (analytic); 1,024 rows at once fit (validation_batch_size).",
        ),
        ({"fits": False, "may_fit": True}, "may not fit: it needs up to 2.00 GiB (analytic)."),
    ],
)
def test_a_validation_of_its_own_number_of_rows_has_a_verdict(changes, words):
    cost = estimates.memory(2 * 2**30)
    one = replace(plans.analytic(), validation=Validation(4096, cost, **changes))
    assert f"Validation (4,096 rows at once) {words}" in text(ConfigurationEstimate(one))
    assert Estimate.from_dict(one.to_dict()).validation == one.validation


def test_the_largest_part_is_named_below_the_memory():
    one = ConfigurationEstimate(plans.analytic(), largest="the largest part of the memory: logits, 6.00 GiB (analytic)")
    assert "The largest part of the memory: logits, 6.00 GiB (analytic)." in text(one)
    assert one.to_dict()["largest_part"].startswith("the largest part")


def test_the_next_batch_is_named_beside_the_compilers_figure():
    """The program and the batch take 3 of 2.5 MiB: the program alone would fit."""
    sizes = {"argument_bytes": 1, "output_bytes": 1, "alias_bytes": 1, "temporary_bytes": 1}
    memory = CompiledMemory(**sizes, total_bytes=2 * plans.MIB, other_batches_bytes=plans.MIB)
    times = {"lower_seconds": 1.0, "compile_seconds": 1.0}
    compiled = CompilerEvidence(target="XLA:GPU", versions={}, memory=memory, **times)
    analytic = replace(plans.analytic(), capacity=Capacity(5 * plans.MIB // 2, 0.0))
    shown = text(ConfigurationEstimate(analytic, compiled))
    assert "It does not fit: it needs up to 3.00 MiB, and 2.50 MiB of a device's 2.50 MiB may be used." in shown
    assert "The program needs 2.00 MiB (compiled); fit holds the next batch of 1.00 MiB beside it (analytic)." in shown
    alone = replace(analytic, capacity=Capacity(2 * plans.MIB, 0.0))
    fitting = compiled.model_copy(update={"memory": CompiledMemory(**sizes, total_bytes=2 * plans.MIB)})
    shown = text(ConfigurationEstimate(alone, fitting))
    assert "It fits: it needs up to 2.00 MiB" in shown
    assert "next batch" not in shown
