"""Bytes by component against hand formulas; published and compiled figures where somebody else did the counting."""

from dataclasses import replace

import pytest

from cost_models.config import Batch, Layout, Mesh, Precision, Remat, RematMode, TrainConfig
from cost_models.errors import WorkloadError
from cost_models.estimate import estimate
from cost_models.memory import MemoryCost, largest, memory, memory_on, program_memory, step_memory, validation_memory
from cost_models.workload.affine import Affine
from cost_models.workload.serialization import workload_from_dict, workload_to_dict
from cost_models.workload.workload import Kind, Op, OtherBatch, Role, Tensor
from cost_models.xla.buffers.liveness import schedule
from cost_models.xla.buffers.schedule import Updates
from cost_models.xla.profiles.choice import compiler_profile
from tests.builders.configs import local_config as config
from tests.builders.workloads import B, Step, cluster, dense

K, N = 1024, 512
PARAMETER_BYTES = 4 * K * N
GPU = cluster("gpu", 8)
COMPONENTS = [
    *("parameters", "non_trainable", "gradients", "optimizer", "accumulators", "weight_copies", "activations"),
    *("workspace", "inputs", "other_batches", "collective_buffers", "host"),
]


def test_chips_of_a_kind_need_the_same_and_other_kinds_their_own():
    workload, one = dense(K, N, slots=2), config()
    faster = cluster("gpu", 2)
    assert memory(workload, one, GPU) == memory(workload, one, faster)
    assert memory(workload, one, cluster("tpu")).total_high != memory(workload, one, GPU).total_high


@pytest.mark.parametrize("kind", ["gpu", "tpu", "cpu"])
@pytest.mark.parametrize(
    "asked",
    [
        config(),
        config(1000),
        config(accumulation=4),
        config(data=8),
        config(data=8, layout=Layout(shard_state=True)),
        config(jit_compile=False),
    ],
    ids=TrainConfig.describe,
)
def test_the_components_add_up_to_the_total_and_the_interval_holds_it(kind, asked):
    cost = memory(dense(K, N, slots=2), asked, cluster(kind, 8))
    plain = cost.to_dict()
    there = [name for name in COMPONENTS if name != "other_batches" or cost.other_batches]
    assert list(plain) == [*there, "total", "total_low", "total_high"]
    assert all(isinstance(value, int) for value in plain.values())
    assert sum(plain[name] for name in there) == cost.total
    assert cost.total_low <= cost.total <= cost.total_high


def test_adam_in_float32_takes_16_bytes_a_parameter_with_its_gradient():
    """Weights, two moments, gradient: 4 bytes each."""
    cost = memory(dense(K, N, slots=2), config(1), GPU)
    state = cost.parameters + cost.optimizer + cost.gradients
    assert state == 16 * K * N


def test_an_accumulator_is_one_more_copy_of_the_parameters():
    alone, accumulating = (memory(dense(K, N), config(accumulation=n), GPU) for n in (1, 4))
    assert alone.accumulators == 0
    assert accumulating.accumulators == alone.parameters == PARAMETER_BYTES


def test_inputs_and_activations_grow_with_the_batch_and_state_does_not():
    small, large = (memory(dense(K, N), config(batch), GPU) for batch in (64, 128))
    assert large.inputs == 2 * small.inputs == 2 * 4 * 64 * K
    assert large.activations - 4 == 2 * (small.activations - 4)  # 4: the loss
    assert (small.parameters, small.gradients) == (large.parameters, large.gradients)


@pytest.mark.parametrize(
    ("kind", "asked", "batches"),
    [
        ("gpu", config(64), 1),
        ("tpu", config(64), 1),
        ("gpu", config(64, accumulation=4), 1),
        ("cpu", config(64), 0),
        ("gpu", config(64, data=2), 0),
        ("gpu", config(64, backend="torch"), 0),
        ("gpu", config(64, backend="tensorflow"), 0),
    ],
    ids=str,
)
def test_off_cpus_fit_on_jax_holds_the_next_batch_on_one_device(kind, asked, batches):
    """K is a multiple of a tile's 128 lanes: 4 x 64 x K bytes."""
    at, there = replace(dense(K, N), backend="jax"), cluster(kind, 2)
    found, program = memory(at, asked, there), program_memory(at, asked, there)
    assert found.other_batches == batches * 4 * 64 * K
    assert replace(found, other_batches=0).to_dict() == program.to_dict() | {
        name: getattr(program, name) + found.other_batches for name in ("total", "total_low", "total_high")
    }


def test_arrays_that_the_program_closes_over_are_no_part_of_the_next_batch():
    step = Step()
    table = step.input(1000, K)
    end = step.op(Kind.ELEMENTWISE, (step.input(B, K),), (B, K), primitive="exp")
    step.op(Kind.GATHER, (table, end), (B, K))
    cost = memory(step.workload(end), config(64), GPU)
    assert (cost.inputs, cost.other_batches) == (4 * (1000 + 64) * K, 4 * 64 * K)


def test_of_a_workload_of_one_batch_the_inputs_with_its_rows_are_the_next_batch():
    step = Step()
    step.input(1000, K)
    end = step.op(Kind.ELEMENTWISE, (step.input(8, K),), (8, K), primitive="exp")
    assert memory(step.workload(end, batch_exact=True), config(8), GPU).other_batches == 4 * 8 * K


def test_shared_state_is_divided_and_two_layers_are_gathered():
    workload = dense(K, N, slots=2)
    whole = memory(workload, config(data=8), GPU)
    split = memory(workload, config(data=8, layout=Layout(shard_state=True)), GPU)
    assert split.parameters == whole.parameters // 8
    assert split.optimizer == whole.optimizer // 8
    assert split.gradients == whole.gradients // 8
    assert split.collective_buffers == 2 * PARAMETER_BYTES
    assert whole.collective_buffers == 0


def test_metrics_seeds_and_statistics_are_no_parameters():
    step = Step()
    step.weight("w", K, N)
    step.weight("mean", N, role=Role.STATE)
    step.weight("seed", 2, role=Role.SEED, dtype="uint32")
    step.weight("total", role=Role.METRIC)
    step.weight("scale", role=Role.LOSS_SCALE)
    cost = memory(step.workload(), config(), GPU)
    assert (cost.parameters, cost.non_trainable, cost.optimizer) == (PARAMETER_BYTES, 4 * N + 8 + 4, 4)


def test_on_tpus_state_lies_in_tiles():
    step = Step()
    step.weight("narrow", 3, 5)
    assert memory(step.workload(), config(), cluster("tpu")).parameters == 4 * 128 * 4


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            config(precision=Precision.MIXED_BFLOAT16),
            "traced with precision float32, so it says nothing about mixed_bf",
        ),
        (config(remat=Remat(RematMode.FULL)), "traced with remat none, so it says nothing about full"),
        (TrainConfig(Batch(8), mesh=Mesh(1, 2)), r"model=2 is not yet estimated; use the data axis alone"),
    ],
)
def test_what_the_workload_says_nothing_about_is_an_error_not_a_guess(asked, message):
    with pytest.raises(WorkloadError, match=message):
        memory(dense(K, N), asked, GPU)


def test_a_workload_of_one_batch_answers_for_that_batch_alone():
    workload = workload_from_dict(workload_to_dict(dense(K, N, batch=8)) | {"batch_exact": True})
    memory(workload, config(8), GPU)
    with pytest.raises(WorkloadError, match="local batch of 8"):
        memory(workload, config(9), GPU)


def test_the_largest_tensors_at_the_peak_come_with_layer_shape_and_bytes():
    first, second, *_ = largest(dense(K, N), config(8), GPU)
    assert (first.layer, first.purpose, first.shape, first.bytes) == ("dense", "gradients", (K, N), PARAMETER_BYTES)
    assert (second.purpose, second.shape, second.bytes) == ("activations", (8, N), 4 * 8 * N)
    assert set(first.to_dict()) == {"layer", "purpose", "dtype", "shape", "bytes"}


def test_only_as_many_as_asked_for():
    assert len(largest(dense(K, N), config(8), GPU, count=1)) == 1


def test_dtype_decides_bytes():
    """The same step with bfloat16 state holds half the bytes."""
    workload = dense(K, N)
    half = replace(workload, tensors=tuple(replace(tensor, dtype="bfloat16") for tensor in workload.tensors))
    assert memory(half, config(), GPU).parameters * 2 == memory(workload, config(), GPU).parameters


def exp_of_sums(batch):
    """A micro-step of two values of 4 N batch bytes each, both alive at its end."""
    step = Step()
    a = step.op(Kind.REDUCE, (step.input(B, 4, N),), (B, N))
    end = step.op(Kind.ELEMENTWISE, (a,), (B, N), primitive="exp")
    return memory(step.workload(end), config(batch), cluster("tpu"))


CODE = 360_000
"""Code of a step without products, in bytes; 0.6 of it and 3 MB below or 8 MB above are in the interval of a TPU."""


def test_on_tpus_the_interval_also_holds_what_may_be_on_the_chip():
    """0.08 of the temporaries below and 0.33 above, and below also 0.4 of the room on the chip, which nothing takes."""
    batch = 2**22
    cost, temporaries, room = exp_of_sums(batch), 2 * 4 * batch * N, compiler_profile("tpu").on_chip_bytes
    assert cost.workspace == CODE
    assert cost.total - cost.total_low == round(0.08 * temporaries) + round(0.4 * room) + round(0.6 * CODE) + 3_000_000
    assert cost.total_high - cost.total == round(0.33 * temporaries) + round(0.6 * CODE) + 8_000_000


def test_on_tpus_what_is_taken_for_on_the_chip_may_be_in_the_devices_memory():
    """One of the two values is, and leaves no room for the other, which is as large as all that could be there."""
    batch = 2**24 // N
    cost, value = exp_of_sums(batch), 2**26
    assert cost.activations == value
    assert cost.total - cost.total_low == round(0.08 * value) + round(0.6 * CODE) + 3_000_000
    assert cost.total_high - cost.total == round(0.33 * value) + value + round(0.6 * CODE) + 8_000_000


def test_on_tpus_the_program_itself_takes_memory_and_nothing_is_counted_on_the_chip():
    """A step of next to no temporaries fetches its state to the chip, which takes none of the device's memory."""
    step = Step()
    weight = step.weight("w", 1024, 1024)
    workload = step.workload(step.op(Kind.REDUCE, (weight,), ()))
    cost = memory(workload, config(), cluster("tpu"))
    profile = compiler_profile("tpu")
    temporaries = schedule(workload, profile, Updates.AT_ONCE, 1).peak(1)[0]
    assert cost.total == cost.parameters + temporaries + CODE
    assert cost.total_low == cost.parameters, "state is there in any case"
    assert memory_on(workload, config(), profile.without("program-code")).total == cost.total - CODE


def made_of(kind):
    """A dense layer's step, and beside it one small operation of this kind; None: nothing beside it."""
    workload = dense(256, 512)
    if kind is None:
        return workload
    image = len(workload.tensors)
    tensors = (*workload.tensors, *(Tensor("float32", (Affine(1),) * 4) for _ in range(2)))
    beside = Op(kind, kind.value, (image,), (image + 1,), repeat=2 if kind is Kind.LOOP else 1)
    inputs = (*workload.inputs, image)
    return replace(workload, tensors=tensors, ops=(*workload.ops, beside), inputs=inputs)


@pytest.mark.parametrize(
    ("kind", "below", "above"), [(None, 0.11, 0.13), (Kind.CONV, 0.06, 0.16), (Kind.LOOP, 0.1, 0.1)]
)
def test_on_gpus_the_interval_depends_on_what_a_step_is_made_of(kind, below, above):
    """Shares of the temporaries that are known: of convolutions most is above; products and loops are off both ways."""
    cost = memory(made_of(kind), TrainConfig(Batch(4096)), cluster("gpu"))
    temporaries = cost.gradients + cost.weight_copies + cost.activations
    assert cost.workspace == round(compiler_profile("gpu").unseen * temporaries)
    assert cost.total - cost.total_low == round(below * temporaries)
    assert cost.total_high - cost.total == round(above * temporaries)


@pytest.mark.parametrize("kind", [None, Kind.CONV, Kind.LOOP])
def test_what_no_compiler_was_asked_about_is_as_unsure_whatever_it_is_made_of(kind):
    cost = memory(made_of(kind), TrainConfig(Batch(4096), backend="torch"), cluster("gpu"))
    temporaries = cost.gradients + cost.weight_copies + cost.activations
    assert cost.total - cost.total_low == round(0.5 * temporaries)
    assert cost.total_high - cost.total == temporaries


def test_costs_add_and_scale_component_by_component():
    one, other = (memory(dense(K, N), config(size), GPU) for size in (8, 512))
    both = one + other
    assert both.total == one.total + other.total == sum(both.components().values())
    assert (one * 3).to_dict() == (one + one + one).to_dict()
    assert (one * 2.5).total == sum((one * 2.5).components().values())


def test_the_peak_of_two_programs_in_turn_is_that_of_the_fuller():
    one, other = (memory(dense(K, N), config(size), GPU) for size in (8, 512))
    fuller = one.peak(other)
    assert fuller == other.peak(one) == other
    wide = replace(one, total_low=one.total_low, total_high=other.total_high + 1)
    assert wide.peak(other) == replace(other, total_high=other.total_high + 1)


def test_a_cost_is_read_as_it_was_written():
    found = memory(dense(K, N), config(8), GPU)
    assert MemoryCost.from_dict(found.to_dict() | {"more": 1}) == found
    earlier = {name: size for name, size in found.to_dict().items() if name != "other_batches"}
    assert MemoryCost.from_dict(earlier) == replace(found, other_batches=0)


@pytest.mark.parametrize(("rows", "usual"), [(8, 8), (32, 8), (8, None)])
def test_memory_is_that_of_the_largest_batch(rows, usual):
    """The step on the largest batch is five times as wide; its rows follow those of the usual batch."""
    usual_step, wide = dense(K, N), dense(5 * K, N)
    both = replace(usual_step, largest=OtherBatch(wide, rows, usual))
    asked = config(64)
    at = 64 * rows // usual if usual else rows
    assert memory(both, asked, GPU) == memory(usual_step, asked, GPU).peak(memory(wide, config(at), GPU))
    assert largest(both, asked, GPU) == largest(wide, config(at), GPU)
    assert step_memory(both, asked, GPU) == memory(usual_step, asked, GPU)


def test_rows_of_another_batch_are_split_over_devices():
    other = OtherBatch(dense(K, N), 10)
    assert [other.local_rows(64, data) for data in (1, 4, 16)] == [10, 3, 1]
    assert OtherBatch(dense(K, N), 10, usual=20).local_rows(64, 2) == 16


def test_a_validation_keeps_the_optimizers_state_and_has_its_own_rows():
    training, forward = dense(K, N, slots=2), dense(K, N)
    both = replace(training, validation=OtherBatch(forward, 4096))
    alone, of_forward = memory(training, config(8, accumulation=4), GPU), memory(forward, config(4096), GPU)
    found = validation_memory(both, config(8, accumulation=4), GPU)
    assert (found.optimizer, found.accumulators) == (alone.optimizer, alone.accumulators)
    assert found.activations == of_forward.activations
    assert found.total == sum(found.components().values())
    assert validation_memory(both, config(8), GPU, rows=64).inputs == memory(forward, config(64), GPU).inputs
    assert validation_memory(training, config(8), GPU) is None


def test_while_validating_off_cpus_two_batches_of_the_training_and_the_next_rows_are_held():
    both = replace(dense(K, N), validation=OtherBatch(dense(K, N), 4096))
    found, on_cpu = (validation_memory(both, config(8), cluster(kind)) for kind in ("gpu", "cpu"))
    assert (found.other_batches, on_cpu.other_batches) == (4 * K * (2 * 8 + 4096), 0)
    assert found.total == sum(found.components().values())


def test_a_validation_step_that_depends_on_its_rows_holds_for_these_alone():
    exact = replace(dense(K, N, batch=512), batch_exact=True)
    both = replace(dense(K, N), validation=OtherBatch(exact, 512))
    assert validation_memory(both, config(8), GPU) is not None
    assert validation_memory(both, config(8), GPU, rows=64) is None
    assert estimate(both, config(8, data=8), cluster("gpu", 8)).validation is None
