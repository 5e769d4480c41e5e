"""Attention in one kernel on TPUs: its arrays have whole tiles of 128 lanes, and nothing else has."""

from cost_models.workload.affine import Affine
from cost_models.workload.workload import ATTENTION_FORWARD, Kind
from cost_models.xla.passes.attention_layout import attention_layout
from cost_models.xla.profiles.choice import compiler_profile
from tests.builders.workloads import B, Step

LENGTH, HEADS, WIDTH, LANES = 256, 4, 64, 128
TPU = compiler_profile("tpu")


def attending(kind):
    """queries = x transposed; attended = attention(queries, positions); end = attended + 1."""
    step = Step()
    x, positions = step.input(B, LENGTH, HEADS, WIDTH), step.input(B, 8, LENGTH, dtype="int32")
    queries = step.op(Kind.MOVE, (x,), (B, HEADS, LENGTH, WIDTH), primitive="transpose")
    attended = step.op(kind, (queries, positions), (B, HEADS, LENGTH, WIDTH), primitive=ATTENTION_FORWARD)
    end = step.op(Kind.ELEMENTWISE, (attended,), (B, HEADS, LENGTH, WIDTH), primitive="exp")
    return step.workload(end), (x, queries, attended), (positions, end)


def test_heads_are_as_wide_as_a_tile_where_the_kernel_reads_and_writes_them():
    workload, padded, others = attending(Kind.ATTENTION)
    found = attention_layout(workload, TPU, 2)
    assert [found.tensors[one].shape[-1] for one in padded] == [Affine(LANES)] * 3
    assert [found.tensors[one] for one in others] == [workload.tensors[one] for one in others]
    sizes = [(found.tensors[one].bytes.at(2), 2 * workload.tensors[one].bytes.at(2)) for one in padded]
    assert all(twice == size for size, twice in sizes)


def test_scores_in_memory_have_no_such_layout():
    workload, _, _ = attending(Kind.DOT)
    assert attention_layout(workload, TPU, 2) is workload
