from __future__ import annotations

import dataclasses
import math

import pytest

from autoplan.errors import HardwareError, SourceError, WorkloadError
from autoplan.jobs.budget import Clock
from autoplan.jobs.messages import JobKind, JobResult
from autoplan.jobs.runner import JobRunner
from autoplan.plan.records import FailureKind
from autoplan.tuning.estimates.estimator import (
    LOCAL_BATCHES_TRACED,
    LONGEST_REASON,
    Tracer,
    estimate_space,
    without_estimates,
)
from autoplan.tuning.space.legal_configs import legal_configs
from cost_models.estimate import estimate
from cost_models.hardware.lookup import cluster as catalogued
from cost_models.workload.affine import Affine
from cost_models.workload.serialization import workload_from_dict, workload_to_dict
from cost_models.workload.workload import Kind, Op, Tensor
from tests.builders.fake_client import FakeClient, failure
from tests.builders.observations import VERSIONS, cluster, config, observation
from tests.builders.sources import SOURCE


def surveyed(client, here=None, *, remat_asked=False, **wishes):
    here = here or cluster()
    space = legal_configs(client.facts, here, VERSIONS, **wishes)
    jobs = JobRunner(client, SOURCE, "jax", here, Clock.start(None), baseline=space.baseline)
    return estimate_space(jobs, client.facts, space, VERSIONS, headroom=0.08, remat_asked=remat_asked)


def answering(change):
    """A client whose traced workloads go through `change`."""
    client = FakeClient()

    def plant(job):
        if job.kind is not JobKind.TRACE:
            return None
        value = client.answer(job)
        workload = change(workload_from_dict(value["workload"]))
        return JobResult(value | {"workload": workload_to_dict(workload)}, None, 1.0)

    client.plant = plant
    return client


def test_a_structure_is_traced_once_on_one_device_without_accumulation():
    client = FakeClient()
    found = surveyed(client, cluster(2))
    traced = client.of_kind(JobKind.TRACE)
    assert sorted(one.precision for one in traced) == ["float32", "mixed_bfloat16", "mixed_float16"]
    assert {(one.mesh.devices, one.batch.accumulation) for one in traced} == {(1, 1)}
    assert len(found.estimates) > 20


@pytest.mark.parametrize(("here", "shares"), [(cluster(), 1), (cluster(2), 2)])
def test_on_a_cpu_what_the_process_holds_besides_its_weights_counts(here, shares):
    """Measured when the weights are there, and estimates count those too."""
    held = 2**30
    found = surveyed(FakeClient(observation(process_bytes=held)), here, only=["batch", "mesh"])
    one = next(one for own, one in found.estimates.items() if own.mesh.devices == shares)
    memory = one.analytic.memory
    weights = memory.parameters + memory.non_trainable
    assert one.outside_bytes == (held - weights) // shares
    assert one.needed_bytes == memory.total_high + one.outside_bytes
    assert one.least_bytes == memory.total_low + one.outside_bytes


def test_freed_memory_is_kept_by_those_alone_that_would_have_it_paged_in_again():
    """64 x 64 products: each sample takes some 500 bytes, so that 2**16 samples pass 32 MiB and 2**15 do not."""
    client = FakeClient(observation(config(2**16, 1), samples=2**20))
    found = surveyed(client, cluster(pages=4e9), only=["batch", "keep_freed_memory"])
    keeps = {(one.batch.local, one.keep_freed_memory) for one in found.shortlist}
    assert (2**16, True) in keeps
    assert (2**16, False) in keeps  # the baseline
    least = min(size for size, keep in keeps if keep)
    assert {size for size, keep in keeps if not keep and size != 2**16} == {s for s, _ in keeps if s < least}
    reasons = [one.reason for one in found.rejected if one.stage == "slower"]
    assert any("has no effect" in reason for reason in reasons)
    everywhere = surveyed(client, cluster(), only=["batch"])
    assert not any(one.keep_freed_memory for one in everywhere.shortlist)


def test_memory_of_a_host_is_not_a_devices():
    client = FakeClient(observation(process_bytes=2**30))
    found = surveyed(client, cluster(kind="gpu"), only=["batch"])
    assert {one.outside_bytes for one in found.estimates.values()} == {0}


def test_estimates_are_the_cost_models_estimates():
    client = FakeClient()
    found = surveyed(client, only=["batch"])
    workload = workload_from_dict(client.answer(client.jobs[0])["workload"])
    for own, found_estimate in found.estimates.items():
        assert found_estimate.analytic == estimate(workload, own, cluster(), headroom=0.08)


def test_a_tracer_traces_each_structure_once_at_the_batch_it_was_given():
    client, here = FakeClient(), cluster(kind="gpu")
    jobs = JobRunner(client, SOURCE, "jax", here, Clock.start(None), baseline=config())
    halved, mixed = config(32, 2), config(16, precision="mixed_bfloat16")
    with Tracer(jobs, local_batch=8) as tracer:
        tracer.start([mixed], here)
        traced = tracer.workloads([config(), halved, mixed], here)
        found = [(workload.precision, list(group)) for workload, group in traced]
        again = [workload.local_batch for workload, _ in tracer.workloads([config(16), mixed], here)]
    assert found == [("float32", [config(), halved]), ("mixed_bfloat16", [mixed])]
    assert again == [8, 8]
    assert sorted(one.precision.value for one in client.of_kind(JobKind.TRACE)) == ["float32", "mixed_bfloat16"]


@pytest.mark.parametrize(
    ("answers", "traces"), [((), 1), ((("tpu", False),), 2), ((("compute capability >= 8.0", True),), 3)]
)
def test_a_structure_is_traced_again_for_a_device_that_answers_keras_differently(answers, traces):
    client = answering(lambda workload: dataclasses.replace(workload, answers=answers))
    jobs = JobRunner(client, SOURCE, "jax", catalogued("gpu-a100-80gb"), Clock.start(None), baseline=config())
    names = ("gpu-a100-80gb", "gpu-rtx-3090", "gpu-v100-16gb", "tpu-v4-8")
    with Tracer(jobs, local_batch=8) as tracer:
        for name in names:
            tracer.start([config()], catalogued(name))
        assert all(len(list(tracer.workloads([config()], catalogued(name)))) == 1 for name in names)
    seen = [job.options["platform"] for job in client.jobs]
    kinds = ["gpu", "tpu"] if traces == 2 else ["gpu", "gpu", "tpu"][:traces]
    assert [one["kind"] for one in seen] == kinds


def test_steps_of_other_backends_are_traced_as_on_a_cpu():
    client = FakeClient()
    jobs = JobRunner(client, SOURCE, "torch", cluster(kind="gpu"), Clock.start(None), baseline=config(), tracer=client)
    jobs.trace(config(backend="torch"))
    jobs.trace(config(16))
    assert [job.options["platform"]["kind"] for job in client.jobs] == ["cpu", "gpu"]


def test_a_freed_effective_batch_is_tried_once_a_micro_batch_and_where_it_is_the_scripts_own():
    """On one device time goes with the micro-batch alone, so other accumulations of it gain nothing."""
    found = surveyed(FakeClient(observation(config(64))), cluster(), only=["batch"], effective_batch=(1, 256))
    batches = [one.batch for one in found.shortlist]
    others = [one.global_size for one in batches if one.effective != 64]
    assert len(others) == len(set(others))
    assert any("gain nothing over one that is tried" in one.reason for one in found.rejected)
    legal = [one.batch for one in found.space.configs]
    assert len(legal) > len({one.global_size for one in legal}) > 5


def test_where_nothing_is_estimated_smaller_micro_batches_come_last():
    client = FakeClient(observation(config(32, 2)))
    space = legal_configs(client.facts, cluster(), VERSIONS, effective_batch=(16, 128))
    jobs = JobRunner(client, SOURCE, "jax", cluster(), Clock.start(None), baseline=space.baseline)
    order = without_estimates(jobs, client.facts, space, VERSIONS, "no reason").shortlist
    smaller = [one.batch.local < 32 for one in order]
    assert smaller == sorted(smaller)
    assert any(smaller)
    assert order[0] == space.baseline


def test_the_shortlist_begins_with_the_best_and_the_best_of_each_mesh():
    found = surveyed(FakeClient(), cluster(4), only=["batch", "mesh"])
    assert sorted(one.mesh.data for one in found.shortlist[:3]) == [1, 2, 4]
    seconds = [found.estimates[one].seconds_per_sample for one in found.shortlist]
    assert seconds[0] == min(one.seconds_per_sample for one in found.estimates.values())
    assert seconds[3:] == sorted(seconds[3:])
    assert len(set(found.shortlist)) == len(found.shortlist)


def test_the_baseline_is_estimated_and_kept_however_slow():
    own = config(1, 64)
    found = surveyed(FakeClient(observation(own)))
    assert own in found.shortlist


def test_rematerialization_is_estimated_where_something_does_not_fit_without():
    # Room for half of what may be tried: the other half may need rematerialization.
    facts = observation(config(64), samples=4096)
    plenty = surveyed(FakeClient(facts)).estimates.values()
    needed = sorted(one.analytic.memory.total_high for one in plenty)
    found = surveyed(FakeClient(facts), cluster(usable_bytes=math.ceil(needed[len(needed) // 2] / 0.92)))
    assert {one.remat.mode.value for one in found.estimates} == {"none", "activations"}
    spared = [one for one in found.rejected if "the configuration fits without it" in one.reason]
    assert len(spared) == 1


def test_a_step_that_changes_with_the_batch_is_traced_batch_by_batch():
    client = answering(lambda workload: dataclasses.replace(workload, batch_exact=True))
    found = surveyed(client, only=["batch"])
    locals_traced = [one.batch.local for one in client.of_kind(JobKind.TRACE)]
    assert len(locals_traced) == len(set(locals_traced)) == LOCAL_BATCHES_TRACED
    assert {one.batch.local for one in found.estimates} == set(locals_traced)
    left_out = [one for one in found.rejected if "changes its structure with the batch" in one.reason]
    assert len(left_out) == 7 - LOCAL_BATCHES_TRACED


def test_the_users_own_structure_must_be_traceable():
    client = FakeClient(plant=lambda job: failure(FailureKind.CRASH, "gone"))
    with pytest.raises(WorkloadError, match=r"the training step cannot be traced as it is \(crash: gone\)"):
        surveyed(client)


def test_an_error_of_the_users_own_structure_is_told_in_one_line():
    def plant(job):
        raise SourceError("train.py failed: TypeError: no\n  a frame\nTypeError: no")

    with pytest.raises(WorkloadError, match=r"as it is \(unsupported: train\.py failed: TypeError: no\)"):
        surveyed(FakeClient(plant=plant))


def test_weights_are_made_where_building_looks_at_them():
    plant = lambda job: failure() if job.kind is JobKind.TRACE and job.options.get("abstract") else None  # noqa: E731
    client = FakeClient(plant=plant)
    found = surveyed(client, only=["batch"])
    assert len(found.estimates) == 7
    assert [job.options.get("abstract") for job in client.jobs] == [True, None]


def test_a_figure_that_nobody_published_leaves_out_what_needs_it():
    without_link = dataclasses.replace(cluster(4, kind="gpu"), inner_link=None)
    found = surveyed(FakeClient(), without_link, only=["batch", "mesh"])
    assert {one.mesh.data for one in found.estimates} == {1}
    assert any("no figure is known for the link" in one.reason for one in found.rejected)


def test_when_every_figure_is_missing_it_is_an_error():
    without_link = dataclasses.replace(cluster(4, kind="gpu"), inner_link=None)
    with pytest.raises((HardwareError, WorkloadError), match="no figure is known for the link"):
        surveyed(FakeClient(), without_link, fix={"mesh": "data=4"})


def test_rematerialization_is_not_traced_where_everything_fits_without():
    client = FakeClient()
    found = surveyed(client)
    assert {one.remat.mode.value for one in client.of_kind(JobKind.TRACE)} == {"none"}
    (spared,) = [one for one in found.rejected if "rematerialization" in one.reason]
    assert spared.figures["configurations"] == 3 * 7
    client = FakeClient()
    surveyed(client, remat_asked=True)
    assert {one.remat.mode.value for one in client.of_kind(JobKind.TRACE)} == {"none", "activations"}


def test_a_structure_that_cannot_be_built_is_left_out_with_its_reason():
    def plant(job):
        if job.kind is JobKind.TRACE and job.config.precision == "mixed_float16":
            raise SourceError("no such policy for this layer")

    found = surveyed(FakeClient(plant=plant))
    assert {one.precision for one in found.shortlist} == {"float32", "mixed_bfloat16"}
    assert any("cannot be built so: no such policy for this layer" in one.reason for one in found.rejected)


def counting_positions(length):
    """A client whose steps count positions in the compute dtype."""

    def count(job):
        if job.kind is not JobKind.TRACE:
            return None
        value = client.answer(job)
        workload = workload_from_dict(value["workload"])
        position = Op(Kind.BROADCAST, "iota", (), (len(workload.tensors),))
        tensors = (*workload.tensors, Tensor(job.config.precision.compute_dtype, (Affine(length),)))
        workload = dataclasses.replace(workload, tensors=tensors, ops=(position, *workload.ops))
        return JobResult(value | {"workload": workload_to_dict(workload)}, None, 1.0)

    client = FakeClient(plant=count)
    return client


def test_a_precision_in_which_positions_become_the_same_is_not_tried_unless_it_is_pinned():
    found = surveyed(counting_positions(1000))
    assert {one.precision for one in found.shortlist} == {"float32", "mixed_float16"}
    merged = "under mixed_bfloat16, positions are counted to 999 in bfloat16, in which 256 and 257 are the same number"
    assert merged in [one.reason for one in found.rejected]
    assert found.notes == ()
    pinned = surveyed(counting_positions(1000), fix={"precision": "mixed_bfloat16"})
    assert {one.precision for one in pinned.shortlist} == {"mixed_bfloat16"}
    assert pinned.notes == (f"{merged}: the training may end elsewhere",)


UNTRACEABLE = """the training step cannot be traced as it is (unsupported: train.py failed by itself:
  File "/data/train.py", line 52, in <module>
    z = Sampling()([mean, deviation])
        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
AttributeError: Exception encountered when calling Sampling.call().

no such attribute

Arguments received by Sampling.call():
  • args=(['<KerasTensor shape=(None, 2)>', '<KerasTensor shape=(None, 2)>'],)
  • kwargs=<class 'inspect._empty'>
The first exception was TypeError: a traced array)"""


@pytest.mark.parametrize("reason", [UNTRACEABLE, " ".join(UNTRACEABLE.split())], ids=["lines", "one line"])
def test_why_nothing_was_estimated_is_told_in_short(reason):
    client = FakeClient()
    space = legal_configs(client.facts, cluster(), VERSIONS)
    jobs = JobRunner(client, SOURCE, "jax", cluster(), Clock.start(None), baseline=space.baseline)
    told = without_estimates(jobs, client.facts, space, VERSIONS, reason).notes[0]
    assert told.partition("the script: ")[2] == (
        "the training step cannot be traced as it is (unsupported: train.py failed by itself: "
        "z = Sampling()([mean, deviation]) AttributeError: Exception encountered when calling Sampling.call(). "
        "no such attribute The first exception was TypeError: a traced array)"
    )
    long = without_estimates(jobs, client.facts, space, VERSIONS, "x" * 1000).notes[0]
    assert long.endswith(f": {'x' * LONGEST_REASON} ...")
