"""Comparing hardware: on a made-up training whose weights are as large as a test wants them."""

from __future__ import annotations

import dataclasses

import pytest

from autoplan import planner
from autoplan.comparison.compare import MOST_COMPILED, fastest
from autoplan.comparison.result import FitVerdict
from autoplan.errors import ConfigError, HardwareError, SourceError, WorkloadError
from autoplan.jobs import workers
from autoplan.jobs.messages import JobKind, JobResult
from autoplan.plan.records import CompiledMemory, CompilerEvidence, Evidence, FailureKind, Rejection, TrialRecord
from autoplan.sources import source
from autoplan.tuning import compiler_check
from autoplan.tuning.compiler_check import NOTHING_LEFT, CheckedByCompiler
from autoplan.tuning.request import CompareRequest
from cost_models.config import Precision
from cost_models.estimate import estimate
from cost_models.execution import Origin
from cost_models.hardware.catalogue import rows
from cost_models.hardware.lookup import cluster
from cost_models.workload.serialization import workload_from_dict, workload_to_dict
from cost_models.workload.workload import OtherBatch, Tensor
from tests.builders import estimates as made
from tests.builders import workloads
from tests.builders.fake_client import FakeClient, failure
from tests.builders.observations import cluster as machine
from tests.builders.observations import config, observation
from tests.builders.workloads import GIB

OWN = config(64)


def training(width=64, own=OWN, plant=lambda job: None, **facts):
    """A client whose training has one square matrix of weights, `width` wide, with two slots of its size."""
    client = FakeClient(observation(own, **facts))

    def answer(job):
        planted = plant(job)
        if planted is not None or job.kind is not JobKind.TRACE:
            return planted
        asked = job.config
        workload = computed_in(asked.precision.compute_dtype, workloads.dense(width, width, asked.batch.local, slots=2))
        workload = dataclasses.replace(workload, **vars(Origin.of(asked)))
        return JobResult(
            {"observation": client.observed(job.backend), "workload": workload_to_dict(workload)}, None, 1.0
        )

    client.plant = answer
    return client


def computed_in(dtype, workload):
    """The same with everything but its state in this dtype."""
    state = {end for variable in workload.variables for end in (variable.tensor, variable.result)}
    tensors = (Tensor(one.dtype if at in state else dtype, one.shape) for at, one in enumerate(workload.tensors))
    return dataclasses.replace(workload, tensors=tuple(tensors))


@pytest.fixture
def compare(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import keras\nkeras.Model().fit()\n")

    def run(client, *hardware, **wishes):
        monkeypatch.setattr(workers, "Client", client)
        return planner.compare(CompareRequest(source.resolve("train.py"), hardware=hardware, **wishes))

    return run


def wide(gib):
    """The width of a square float32 matrix of so many GiB."""
    return int((gib * GIB / 4) ** 0.5)


def test_every_tpu_and_gpu_has_a_row_and_each_structure_is_traced_once(compare):
    client = training()
    found = compare(client)
    chips = {row.key for row in rows().values() if row.kind in ("tpu", "gpu")}
    assert {row.chip for row in found.rows} == chips
    assert {row.verdict for row in found.rows} == {FitVerdict.TRAINS}
    assert all(row.evidence is Evidence.ANALYTIC and 0 < row.margin < 1 and row.mfu > 0 for row in found.rows)
    assert [one.precision.value for one in sorted(client.of_kind(JobKind.TRACE), key=lambda one: one.precision)] == [
        *("float32", "mixed_bfloat16", "mixed_float16"),
    ]
    assert [job.kind for job in client.jobs].count(JobKind.OBSERVE) == 1
    rates = [row.samples_per_second for row in found.rows]
    assert rates == sorted(rates, reverse=True)


def test_a_rows_figures_are_those_of_an_estimate_and_the_best_of_the_space(compare):
    client = training(1024)
    (row,) = compare(client, "gpu-h100-80gb-x8").rows
    traced = next(job for job in client.jobs if job.config and job.config.precision == row.config.precision.value)
    workload = workload_from_dict(client.plant(traced).value["workload"])
    there = cluster("gpu-h100-80gb-x8")
    told = estimate(workload, row.config, there, headroom=0.08)
    assert (row.needed_bytes, row.capacity_bytes) == (told.memory.total_high, told.capacity_bytes)
    assert (row.samples_per_second, row.mfu) == (told.time.samples_per_second, told.time.mfu)
    assert row.config.batch.effective == 64
    assert (row.hardware, row.devices, row.chips, row.looked_at) == ("gpu-h100-80gb-x8", 8, 8, ("gpu-h100-80gb-x8",))
    plainer = estimate(workload, row.config.with_(mesh=type(row.config.mesh)()), there)
    assert told.time.update_seconds <= plainer.time.update_seconds


@pytest.mark.parametrize("order", [1, -1])
def test_equal_speed_goes_to_the_fewest_devices_and_then_the_least_memory(order):
    one, two = config(64), config(64, mesh={"data": 2, "model": 1})
    rounded = made.candidate(one, update_seconds=1.0 + 1e-12, needed=3 * GIB)
    rivals = [
        rounded,
        made.candidate(two, update_seconds=1.0, needed=GIB),
        made.candidate(one, update_seconds=1.0, needed=4 * GIB),
        made.candidate(one, update_seconds=1.1, needed=GIB),
    ]
    assert fastest(rivals[::order]) is rounded
    slower = made.candidate(one, update_seconds=1.001)
    assert fastest([slower, rivals[1]][::order]) is rivals[1]


def test_a_row_is_the_same_whatever_else_is_compared(compare):
    alone = compare(training(2048), "gpu-a100-80gb").rows[0]
    among = compare(training(2048), "tpu-v5e-8", "gpu-t4", "gpu-a100-80gb").rows
    assert alone in among


def test_what_does_not_fit_one_device_takes_the_smallest_size_that_splits_its_state(compare):
    # Weights and two slots of 5 GiB, on chips that leave 15.75 GiB; two layers of 5 GiB are gathered.
    found = compare(training(wide(5)), families=("tpu",))
    row = next(row for row in found.rows if row.chip == "tpu-v5e")
    assert (row.verdict, row.hardware, row.looked_at) == (
        FitVerdict.TRAINS,
        "tpu-v5e-8",
        ("tpu-v5e-1", "tpu-v5e-4", "tpu-v5e-8"),
    )
    assert row.config.layout.shard_state
    assert any(note.startswith("sharded state: ") for note in found.notes)
    large = next(row for row in found.rows if row.chip == "tpu-v5p")
    assert not large.config.layout.shard_state


def test_a_name_stands_as_it_is_and_says_what_would_help(compare):
    row = compare(training(wide(5)), "tpu-v5e-1").rows[0]
    assert (row.verdict, row.hardware, row.margin < 0) == (FitVerdict.TOO_LARGE, "tpu-v5e-1", True)
    assert row.would_help.startswith("tpu-v5e-8 (")
    assert "sharded state" in row.would_help
    row = compare(training(wide(200)), "gpu-t4").rows[0]
    assert row.would_help.startswith("devices with ")
    assert row.to_dict()["trains"] is False
    row = compare(training(wide(200), rebatchable=False), "gpu-t4").rows[0]
    assert row.would_help.endswith(", or a smaller batch in the script (autoplan cannot rebatch its data)")


def test_between_the_ends_of_its_interval_nobody_knows(compare):
    def of(gib):
        return compare(training(wide(gib)), "tpu-v5e-1").rows[0]

    uncertain = next(row for row in (of(4 + step / 8) for step in range(24)) if row.verdict is FitVerdict.UNCERTAIN)
    assert uncertain.least_bytes <= uncertain.capacity_bytes
    assert uncertain.needed_bytes > uncertain.capacity_bytes * 0.92
    assert uncertain.to_dict()["trains"] is None


def test_a_precision_is_proposed_where_somebody_says_how_fast_it_is(compare):
    found = compare(training(4096, config(8192), samples=65536), "gpu-t4", "tpu-v4-8", "gpu-h100-80gb")
    precisions = {row.chip: row.config.precision for row in found.rows}
    assert precisions["gpu-t4"] is not Precision.MIXED_BFLOAT16
    assert precisions["tpu-v4"] is not Precision.MIXED_FLOAT16
    assert any("were not compared; --fix precision=float32 keeps the precision" in note for note in found.notes)
    pinned = compare(
        training(4096, config(8192), samples=65536), "gpu-t4", "tpu-v4-8", fix={"precision": "mixed_bfloat16"}
    )
    assert {row.config.precision for row in pinned.rows} == {Precision.MIXED_BFLOAT16}


def test_the_effective_batch_is_kept_unless_it_is_freed(compare):
    found = compare(training(), "gpu-t4", "tpu-v5e-8")
    assert {row.config.batch.effective for row in found.rows} == {64}
    freed = compare(training(), "gpu-t4", effective_batch=(256, 512))
    assert freed.rows[0].config.batch.effective in (256, 512)


def test_names_are_told_apart_before_anything_runs(compare):
    client = training()
    with pytest.raises(HardwareError, match="unknown hardware 'tpu-v99-8'"):
        compare(client, "gpu-t4", "tpu-v99-8")
    with pytest.raises(HardwareError, match="unknown family 'intel'; expected tpu, gpu"):
        compare(client, families=("intel",))
    with pytest.raises(ConfigError, match="--hardware and --family are both given"):
        compare(client, "gpu-t4", families=("tpu",))
    for names in ((), tuple(f"gpu-t4-x{n}" for n in range(1, MOST_COMPILED + 2))):
        with pytest.raises(ConfigError, match=f"name 1 to {MOST_COMPILED} kinds with --hardware"):
            compare(client, *names, compile=True)
    assert client.jobs == []


def test_two_spellings_of_a_name_are_one_row(compare):
    assert [row.hardware for row in compare(training(), "TPU_v4_8", "tpu-v4-8").rows] == ["tpu-v4-8"]


def test_a_file_and_this_machine_stand_beside_the_catalogue(compare, tmp_path, monkeypatch):
    (tmp_path / "mine.yaml").write_text("base: gpu-t4-x2\nname: mine\ninner_link: null\n")
    resolve = workers.Workers.cluster

    def find(self, name, *rest):
        return dataclasses.replace(machine(), name="local") if name == "local" else resolve(self, name, *rest)

    monkeypatch.setattr(workers.Workers, "cluster", find)
    found = compare(training(), "mine.yaml", "local", "gpu-t4")
    by_name = {row.hardware: row for row in found.rows}
    assert by_name.keys() == {"mine", "local", "gpu-t4"}
    assert found.notes[-1].startswith("local: memory is that of the training alone")
    assert (by_name["mine"].offers, by_name["mine"].chips) == ((), None)
    assert by_name["mine"].notes[0].startswith("left out: no figure is known for the link within a host of mine")


def test_what_cannot_be_traced_is_asked_once_and_what_is_wrong_everywhere_is_an_error(compare):
    def no_float16(job):
        wrong = job.kind is JobKind.TRACE and job.config.precision == "mixed_float16"
        return failure(FailureKind.UNSUPPORTED, "no float16 here") if wrong else None

    client = training(plant=no_float16)
    found = compare(client, families=("nvidia",))
    asked = [one for one in client.of_kind(JobKind.TRACE) if one.precision is Precision.MIXED_FLOAT16]
    assert len(asked) == 2  # without values for the weights, then with them
    assert {row.verdict for row in found.rows} == {FitVerdict.TRAINS}
    with pytest.raises(WorkloadError, match=r"cannot be traced as it is \(crash: odd\)"):
        compare(training(plant=lambda job: failure(FailureKind.CRASH, "odd") if job.kind is JobKind.TRACE else None))
    with pytest.raises(SourceError, match="the source did not reach its fit"):
        compare(training(plant=lambda job: failure(FailureKind.CRASH, "odd")))
    with pytest.raises(ConfigError, match=r"batch\.global=7"):
        compare(training(), fix={"batch.global": "7"})


def test_what_one_kind_of_hardware_lacks_stands_in_its_row(compare):
    found = compare(training(), "gpu-t4", "gpu-t4-x8", fix={"mesh.data": "8"})
    assert [(row.hardware, row.verdict) for row in found.rows] == [
        ("gpu-t4-x8", FitVerdict.TRAINS),
        ("gpu-t4", FitVerdict.NOT_KNOWN),
    ]
    assert found.rows[1].reason.startswith("--fix mesh=data=8: gpu-t4 has 1 device(s)")


# The figures of a compiler replace the estimate.


TIME = dataclasses.replace(made.time(1.0), samples_per_second=123.0, mfu=0.5, bound="memory")


def said_of(one, total_bytes, time=TIME):
    """A compiler's figures for a configuration."""
    evidence = CompilerEvidence(
        target="XLA:TPU made",
        versions={"jax": "0.10.2"},
        lower_seconds=1.0,
        compile_seconds=2.0,
        memory=CompiledMemory(
            argument_bytes=total_bytes, output_bytes=0, alias_bytes=0, temporary_bytes=0, total_bytes=total_bytes
        ),
        time=time,
    )
    return TrialRecord(number=0, config=one, outcome="compiled", compiled=evidence)


@pytest.fixture
def checked(compare, monkeypatch):
    """Compare one kind of hardware with a compiler that answers as told, from the findings that it gets."""
    monkeypatch.setattr(compiler_check, "why_not_here", lambda jobs, space: None)

    def run(answer, client=None):
        monkeypatch.setattr(compiler_check, "check", lambda *asked, study: (None, answer(asked[1])))
        (row,) = compare(client or training(), "tpu-v5e-1", compile=True).rows
        return row

    return run


def test_the_compilers_winner_is_the_row(checked):
    def answer(findings):
        return CheckedByCompiler(said_of(findings.shortlist[-1], 5 * GIB), (), (), "the best is compiled")

    row = checked(answer)
    assert (row.verdict, row.evidence, row.compiler) == (FitVerdict.TRAINS, Evidence.COMPILED, "XLA:TPU made")
    assert (row.needed_bytes, row.least_bytes) == (5 * GIB, 5 * GIB)
    assert (row.samples_per_second, row.mfu, row.bound) == (123.0, 0.5, "memory")


def test_a_compiled_program_that_nobody_can_price_keeps_its_estimate_and_says_so(checked):
    estimates = {}

    def answer(findings):
        estimates.update(findings.estimates)
        return CheckedByCompiler(said_of(findings.shortlist[-1], 5 * GIB, time=None), (), (), "the best is compiled")

    row = checked(answer)
    assert row.evidence is Evidence.COMPILED
    assert row.samples_per_second == estimates[row.config].analytic.time.samples_per_second
    assert row.notes == (
        "memory is compiled but the rate is analytic, because the compiled program has no time estimate",
    )


@pytest.mark.parametrize(
    ("ended", "verdict"),
    [
        (NOTHING_LEFT, FitVerdict.TOO_LARGE),
        ("5 configurations compiled", FitVerdict.UNCERTAIN),
    ],
)
def test_what_the_compiler_finds_too_large_is_no_row_that_trains(checked, ended, verdict):
    def answer(findings):
        refused = [
            Rejection(
                config=one,
                stage="infeasible",
                reason="the compiler needs more",
                figures={"needed_bytes": size},
            )
            for one, size in zip(findings.shortlist[:2], (40 * GIB, 30 * GIB), strict=True)
        ]
        return CheckedByCompiler(None, (), tuple(refused), ended)

    row = checked(answer)
    assert (row.verdict, row.evidence, row.needed_bytes) == (verdict, Evidence.COMPILED, 30 * GIB)
    assert (row.samples_per_second, row.usd_per_million_samples) == (None, None)


def test_where_no_compiler_can_be_asked_the_estimate_stays_and_says_so(checked):
    def refuse(findings):
        raise HardwareError("XLA:TPU is not installed here")

    row = checked(refuse)
    assert (row.verdict, row.evidence) == (FitVerdict.TRAINS, Evidence.ANALYTIC)
    assert row.notes == ("nothing was compiled: XLA:TPU is not installed here",)
    row = checked(refuse, training(wide(200)))
    assert row.notes == ("nothing was compiled: no configuration can fit",)


def test_ctrl_c_while_compiling_is_ctrl_c(checked):
    with pytest.raises(KeyboardInterrupt):
        checked(lambda findings: CheckedByCompiler(None, (), (), "interrupted", interrupted=True))


def test_a_validation_that_does_not_fit_is_a_note_of_its_row(compare):
    """Its inputs alone, 65,536 rows of 2 MiB, take 128 GiB."""
    width = 2**19
    client = training()
    usual = client.plant

    def plant(job):
        result = usual(job)
        if job.kind is not JobKind.TRACE:
            return result
        step = workload_from_dict(result.value["workload"])
        forward = workloads.dense(width, 1)
        named = {"precision": step.precision, "remat": step.remat}
        forward = computed_in(job.config.precision.compute_dtype, dataclasses.replace(forward, **named))
        both = dataclasses.replace(step, validation=OtherBatch(forward, 2**16))
        return JobResult(result.value | {"workload": workload_to_dict(both)}, None, 1.0)

    client.plant = plant
    (row,) = compare(client, "gpu-a100-80gb", fix={"precision": "float32"}).rows
    (note,) = (note for note in row.notes if note.startswith("validation"))
    assert note.startswith("validation (65,536 rows at once) does not fit: it needs up to ")
    assert note.endswith("rows at once fit")


def test_tpus_are_compared_without_the_kernel_that_makes_attention_causal(compare):
    call = {"layer": "encoder", "query": [1, 128, 2, 64], "key": [1, 128, 2, 64], "value": [1, 128, 2, 64]}
    found = compare(training(attention_calls=[call]), "tpu-v5e-1", "gpu-t4")
    assert {row.hardware: row.config.attention.value for row in found.rows} == {
        "tpu-v5e-1": "unfused",
        "gpu-t4": "auto",
    }
    (told,) = [note for note in found.notes if "attention" in note]
    assert told.startswith(
        "not with the script's own settings on TPUs: Keras's attention kernel for TPUs makes attention"
    )
