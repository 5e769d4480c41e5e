"""Features that are joined across lanes on TPUs."""

from cost_models.workload.affine import Affine
from cost_models.workload.workload import Kind
from cost_models.xla.dataflow import Graph
from cost_models.xla.fusion.joined_lanes import joined_batch, joined_lanes
from cost_models.xla.profiles.choice import compiler_profile
from tests.builders.workloads import B, Step, dense

TPU = compiler_profile("tpu")
BATCH = 8


def convolved(step, image, features):
    kernel = step.weight(f"kernel_{image}_{len(step.ops)}", 3, 3, features, 128)
    sizes = (Affine(1), Affine(0, 64), Affine(128), Affine(9 * features))
    return step.op(Kind.CONV, (image, kernel), (B, 8, 8, 128), flops=Affine(0, 64), gemm=sizes)


def joining(readers):
    """Two convolved images of 128 features each, joined, and read by so many convolutions."""
    step = Step()
    left, right = (convolved(step, step.input(B, 8, 8, 128), 128) for _ in range(2))
    joined = step.op(Kind.MOVE, (left, right), (B, 8, 8, 256), primitive="concatenate")
    ends = [convolved(step, joined, 256) for _ in range(readers)]
    return step.workload(*ends, batch=BATCH), joined


def materialized(workload):
    return list(joined_lanes(workload, Graph(workload.ops, frozenset(workload.outputs), TPU), BATCH))


def test_joined_features_that_several_operations_read_are_written():
    workload, joined = joining(2)
    assert materialized(workload) == [joined]


def test_joined_features_of_one_reader_are_fused_into_it():
    assert materialized(joining(1)[0]) == []


def test_only_convolutional_nets_depend_on_the_batch():
    assert joined_batch(dense(64, 64), TPU, BATCH) is None
    assert joined_batch(joining(2)[0], TPU, BATCH) == BATCH
