"""Tables of candidates: every row is what the scalar functions say, whatever the columns hold."""

import numpy as np
import pytest

from cost_models import (
    Batch,
    ConfigError,
    Layout,
    Mesh,
    Precision,
    Remat,
    RematMode,
    TrainConfig,
    WorkloadError,
    estimate,
    memory,
    step_time,
)
from cost_models.candidates import Candidates, price
from cost_models.workload.serialization import workload_from_dict, workload_to_dict
from tests.builders.workloads import cluster, dense

WORKLOAD = dense(48, 40, slots=2)


def structures(devices=8):
    """Every mesh up to `devices`, state whole and sharded, with what else tells configurations apart."""
    meshes = [TrainConfig(Batch(1, data=n), mesh=Mesh(n)) for n in (1, 2, 4, 8) if n <= devices]
    sharded = [config.with_(layout=Layout(shard_state=True)) for config in meshes]
    others = [meshes[0].with_(jit_compile=False), meshes[0].with_(backend="tensorflow", steps_per_execution=4)]
    return [*meshes, *sharded, *others]


@pytest.mark.parametrize(
    "hardware",
    [
        cluster("gpu", devices=8, kernel_launch_seconds=1e-6, dispatch_seconds=1e-4),
        cluster("tpu", devices=8),
        cluster("cpu", devices=4, simulated=True, local=True),
    ],
    ids=["gpu", "tpu", "simulated"],
)
def test_every_row_equals_the_scalar_path(hardware):
    candidates = Candidates.grid(structures(hardware.devices), [1, 7, 8, 64, 1000], [1, 2, 16])
    table = price([WORKLOAD], candidates, hardware)
    assert len(table) == len(candidates) == len(candidates.structures) * 5 * 3
    for row in range(len(table)):
        config = candidates.config(row)
        assert table.memory_of(row) == memory(WORKLOAD, config, hardware)
        assert table.time_of(row) == step_time(WORKLOAD, config, hardware)


def test_each_row_is_priced_with_the_workload_of_its_precision_and_remat():
    half = dense(48, 40, slots=1)
    workloads = [WORKLOAD, _under(half, precision="mixed_bfloat16"), _under(half, remat="full")]
    configs = [
        TrainConfig(Batch(8)),
        TrainConfig(Batch(8), remat=Remat(RematMode.FULL)),
        TrainConfig(Batch(8), precision=Precision.MIXED_BFLOAT16),
    ]
    table = price(workloads, Candidates.of(configs), cluster())
    assert table.memory["optimizer"].tolist() == [2 * 48 * 40 * 4, 48 * 40 * 4, 48 * 40 * 4]


def test_a_list_of_configurations_keeps_its_order_and_its_repetitions():
    first, second = TrainConfig(Batch(4, accumulation=3)), TrainConfig(Batch(8, data=2), mesh=Mesh(2))
    candidates = Candidates.of([second, first, second])
    assert [candidates.config(row) for row in range(3)] == [second, first, second]
    assert len(candidates.structures) == 2


def test_what_fits_is_decided_by_the_upper_end_against_capacity_less_headroom():
    middle = memory(WORKLOAD, TrainConfig(Batch(2000)), cluster()).total_high
    small = cluster("gpu", usable_memory_bytes=round(middle / 0.75))
    candidates = Candidates.grid([TrainConfig(Batch(1))], range(1, 4000, 50), [1])
    table = price([WORKLOAD], candidates, small, headroom=0.25)
    expected = [estimate(WORKLOAD, candidates.config(row), small, headroom=0.25).fits for row in range(len(table))]
    assert table.fits.tolist() == expected
    assert 0 < table.fits.sum() < len(table)


def test_overlap_is_handed_on():
    config = TrainConfig(Batch(8, data=8), mesh=Mesh(8))
    hardware = cluster("gpu", devices=8)
    none, half = (price([WORKLOAD], Candidates.of([config]), hardware, overlap=share) for share in (0.0, 0.5))
    assert none.time_of(0) == step_time(WORKLOAD, config, hardware, overlap=0.0)
    assert none.time_of(0).communication_seconds > half.time_of(0).communication_seconds


def test_an_empty_table_has_no_rows():
    table = price([WORKLOAD], Candidates.of([]), cluster())
    assert len(table) == 0
    assert table.fits.shape == table.time["micro_step_seconds"].shape == (0,)


def test_a_structure_that_no_workload_speaks_of_is_an_error():
    candidates = Candidates.of([TrainConfig(Batch(8), precision=Precision.BFLOAT16)])
    with pytest.raises(WorkloadError, match=r"bfloat16 with remat none; those given: float32 with remat none"):
        price([WORKLOAD], candidates, cluster())


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (([0, 0], [1], [1]), "one row for each candidate"),
        (([1], [1], [1]), r"outside 0\.\.0"),
        (([-1], [1], [1]), r"outside 0\.\.0"),
        (([0], [0], [1]), "below 1"),
        (([0], [1], [0]), "below 1"),
    ],
)
def test_columns_that_make_no_candidates_are_refused(columns, message):
    with pytest.raises(ConfigError, match=message):
        Candidates((TrainConfig(Batch(1)),), *(np.array(column) for column in columns))


def _under(workload, **origin):
    return workload_from_dict(workload_to_dict(workload) | origin)
