"""Seconds of compiled programs against hand formulas: a chip of 100 TFLOP/s and 1 TB/s behind links of 100 GB/s."""

from functools import partial

import pytest

from cost_models.config import Batch, Precision, TrainConfig
from cost_models.errors import ConfigError, WorkloadError
from cost_models.hlo.reader import workload_of
from cost_models.parallel.collectives import all_gather, all_reduce, collective_permute
from cost_models.time.compiled_program import compiled_time
from tests.builders.configs import local_config
from tests.builders.hlo_texts import DEVICES, program, read, real
from tests.builders.workloads import cluster, dense

PEAK, BANDWIDTH, N = 1e14, 1e12, 4096
LOCAL = cluster("gpu", local=True)
PRODUCT = 2 * N**3 / PEAK
COPY = 2 * 4 * N * N / BANDWIDTH
SQUARE = f"f32[{N},{N}]"
DOT = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
GROUPS = "channel_id=1, replica_groups={{0,1,2,3}}, use_global_device_ids=true, to_apply=%add"
config = partial(local_config, 8)


def timed(lines, *others, devices=1, machine=None, axes=None, **how):
    text = program(lines, *others, header=f", num_partitions={devices}")
    workload = read(text, axes=axes or {"data": devices})
    return compiled_time(workload, config(devices), machine or cluster("gpu", devices, local=True), **how)


def test_a_product_takes_its_flops_over_the_peak():
    time = timed(f"%a = {SQUARE} parameter(0)\nROOT %d = {SQUARE} dot(%a, %a), {DOT}", model_flops=2 * N**3)
    assert time.micro_step_seconds == pytest.approx(PRODUCT)
    assert time.compute_seconds == pytest.approx(PRODUCT)
    assert (time.bound, time.mfu) == ("compute", pytest.approx(1.0))


def test_without_model_flops_no_mfu_is_known():
    assert timed(f"%a = {SQUARE} parameter(0)\nROOT %d = {SQUARE} negate(%a)").mfu is None


def test_a_kernel_takes_its_bytes_over_the_bandwidth_and_a_launch():
    time = timed(
        f"%a = {SQUARE} parameter(0)\n%b = {SQUARE} negate(%a)\nROOT %c = {SQUARE} copy(%b)",
        machine=cluster("gpu", local=True, kernel_launch_seconds=1e-3),
    )
    assert time.memory_seconds == pytest.approx(2 * COPY)
    assert time.overhead_seconds == pytest.approx(2e-3)
    assert time.bound == "overhead"


def test_nothing_is_fused_further():
    """Two kernels in the text are two kernels, though rules would make them one."""
    one = timed(f"%a = {SQUARE} parameter(0)\nROOT %b = {SQUARE} negate(%a)")
    two = timed(f"%a = {SQUARE} parameter(0)\n%b = {SQUARE} negate(%a)\nROOT %c = {SQUARE} abs(%b)")
    assert two.memory_seconds == pytest.approx(2 * one.memory_seconds)


def test_bytes_are_those_of_the_layout_and_not_padded_again():
    shape = "f32[4096,100]{1,0:T(8,128)}"
    machine = cluster("tpu", local=True)
    time = timed(f"%a = {shape} parameter(0)\nROOT %b = {shape} negate(%a)", machine=machine)
    assert time.memory_seconds == pytest.approx(2 * 4 * 4096 * 128 / BANDWIDTH)


def test_a_loop_takes_its_body_as_often_as_it_runs():
    body = f"""
%body (p: (s32[], {SQUARE})) -> (s32[], {SQUARE}) {{
  %p = (s32[], {SQUARE}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = {SQUARE} get-tuple-element(%p), index=1
  %d = {SQUARE} dot(%x, %x), {DOT}
  ROOT %t = (s32[], {SQUARE}) tuple(%i, %d)
}}"""
    entry = f"""
    %p = (s32[], {SQUARE}) parameter(0)
    ROOT %w = (s32[], {SQUARE}) while(%p), condition=%c, body=%body, backend_config={{"known_trip_count":{{"n":"5"}}}}
    """
    assert timed(entry, body).compute_seconds == pytest.approx(5 * PRODUCT)


def test_a_collective_that_is_awaited_at_once_is_waited_for_in_full():
    lines = f"%a = {SQUARE} parameter(0)\nROOT %r = {SQUARE} all-reduce(%a), {GROUPS}"
    machine = cluster("gpu", 4, local=True)
    expected = all_reduce(4 * N * N, machine, 4).seconds
    time = timed(lines, devices=4)
    assert time.communication_seconds == pytest.approx(expected)
    assert (time.memory_seconds, time.bound) == (0, "communication")


def overlapped(products, *, start="all-reduce-start", done="all-reduce-done", rest=GROUPS):
    between = "\n".join(f"%d{i} = {SQUARE} dot(%a, %a), {DOT}" for i in range(products))
    return f"""
    %a = {SQUARE} parameter(0)
    %s = {SQUARE} {start}(%a), {rest}
    {between}
    %r = {SQUARE} {done}(%s)
    ROOT %n = {SQUARE} negate(%r)
    """


@pytest.mark.parametrize("products", [0, 1, 2, 400])
def test_an_asynchronous_one_hides_behind_what_runs_until_it_is_awaited(products):
    seconds = all_reduce(4 * N * N, cluster("gpu", 4, local=True), 4).seconds
    time = timed(overlapped(products), devices=4)
    assert time.compute_seconds == pytest.approx(products * PRODUCT)
    assert time.communication_seconds == pytest.approx(max(0.0, seconds - products * PRODUCT))


def test_two_at_once_share_the_link():
    seconds = all_reduce(4 * N * N, cluster("gpu", 4, local=True), 4).seconds
    lines = f"""
    %a = {SQUARE} parameter(0)
    %s = {SQUARE} all-reduce-start(%a), {GROUPS}
    %t = {SQUARE} all-reduce-start(%a), {GROUPS}
    %d = {SQUARE} dot(%a, %a), {DOT}
    %r = {SQUARE} all-reduce-done(%s)
    %q = {SQUARE} all-reduce-done(%t)
    ROOT %n = ({SQUARE}, {SQUARE}) tuple(%r, %q)
    """
    assert timed(lines, devices=4).communication_seconds == pytest.approx(2 * seconds - PRODUCT)


def test_an_explicit_overlap_hides_behind_that_share_of_the_backward_pass():
    lines = f"""
    %a = {SQUARE} parameter(0)
    %f = {SQUARE} dot(%a, %a), {DOT}, metadata={{op_name="jit(f)/jvp(x)/dot_general"}}
    %b = {SQUARE} dot(%a, %f), {DOT}, metadata={{op_name="jit(f)/transpose(jvp(x))/dot_general"}}
    ROOT %r = {SQUARE} all-reduce(%b), {GROUPS}
    """
    seconds = all_reduce(4 * N * N, cluster("gpu", 4, local=True), 4).seconds
    for overlap in (0.0, 0.5, 1.0):
        time = timed(lines, devices=4, overlap=overlap)
        assert time.communication_seconds == pytest.approx(max(0.0, seconds - overlap * PRODUCT))


def test_collectives_along_both_axes_are_priced_at_their_distance():
    """On two hosts of two, the groups along `data` leave the host; those along `model` do not."""
    gathered = f"f32[{2 * N},{N}]"
    machine = cluster("gpu", 4, local=True)
    lines = """
    %a = {one} parameter(0)
    %g = {two} all-gather(%a), channel_id=1, replica_groups={groups}, dimensions={{0}}, use_global_device_ids=true
    ROOT %p = {two} collective-permute(%g), channel_id=2, source_target_pairs={{{{0,2}},{{2,0}},{{1,3}},{{3,1}}}}
    """
    axes = {"data": 2, "model": 2}
    for groups, stride in (("{{0,1},{2,3}}", 1), ("[2,2]<=[2,2]T(1,0)", 2)):
        text = lines.format(one=SQUARE, two=gathered, groups=groups)
        time = timed(text, devices=4, axes=axes, machine=machine)
        gather = all_gather(4 * 2 * N * N, machine, 2, stride=stride).seconds
        permute = collective_permute(4 * 2 * N * N, machine, 2, stride=2).seconds
        assert time.communication_seconds == pytest.approx(gather + permute)


def copied(products):
    between = "\n".join(f"%d{i} = f32[{N},{N}]{{1,0:T(8,128)}} dot(%a, %a), {DOT}" for i in range(products))
    return f"""
    %a = f32[{N},{N}]{{1,0:T(8,128)}} parameter(0)
    %s = (f32[{N},{N}]{{1,0:T(8,128)S(1)}}, f32[{N},{N}]{{1,0:T(8,128)}}, u32[]{{:S(2)}}) copy-start(%a)
    {between}
    ROOT %r = f32[{N},{N}]{{1,0:T(8,128)S(1)}} copy-done(%s)
    """


def test_an_asynchronous_copy_runs_while_arithmetic_leaves_the_memory_idle():
    machine = cluster("tpu", local=True)
    alone, behind = (timed(copied(products), machine=machine) for products in (0, 1))
    assert alone.memory_seconds == pytest.approx(COPY / 2)
    assert behind.memory_seconds == pytest.approx(0.0, abs=1e-12)
    assert behind.compute_seconds == pytest.approx(PRODUCT)


@pytest.mark.parametrize("name", DEVICES)
def test_real_texts_have_a_price_whose_parts_add_up(name):
    devices = DEVICES[name]
    machine = cluster("gpu" if name.startswith("a") else "tpu", devices, kernel_launch_seconds=1e-6)
    workload = read(real(name), axes={"data": devices})
    time = compiled_time(workload, config(devices), machine, model_flops=workload.model_flops.fixed)
    parts = time.compute_seconds + time.memory_seconds + time.communication_seconds + time.overhead_seconds
    assert time.micro_step_seconds == pytest.approx(parts)
    assert 0 < time.mfu < 1
    assert (time.communication_seconds > 0) == (devices > 1)
    assert time.samples_per_second == pytest.approx(8 * devices / time.micro_step_seconds)


def test_accumulation_takes_so_many_micro_steps():
    workload = read(real("a100_loop"))
    once = compiled_time(workload, TrainConfig(Batch(8)), LOCAL)
    four = compiled_time(workload, TrainConfig(Batch(8, accumulation=4)), LOCAL)
    assert four.update_seconds == pytest.approx(4 * once.micro_step_seconds)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": Batch(16)}, "says nothing about 16"),
        ({"precision": Precision.MIXED_BFLOAT16}, "says nothing about mixed_bfloat16"),
    ],
)
def test_another_configuration_is_an_error(changes, message):
    with pytest.raises(WorkloadError, match=message):
        compiled_time(read(real("a100_loop")), TrainConfig(**{"batch": Batch(8)} | changes), LOCAL)


def test_a_traced_workload_is_none_of_this():
    with pytest.raises(WorkloadError, match="was traced, not read from compiled text; price it with step_time"):
        compiled_time(dense(64, 64), config(), LOCAL)


def test_a_cluster_that_is_too_small_is_an_error():
    workload = read(real("v5e_loop"), axes={"data": 4})
    with pytest.raises(ConfigError, match="a group of 4 devices"):
        compiled_time(workload, config(4), cluster("tpu", 2))


def test_two_readings_of_one_text_cost_the_same():
    one, other = (
        workload_of(real("v5e_sharded"), axes={"data": 4}, local_batch=8, precision="float32", remat="none")
        for _ in range(2)
    )
    machine = cluster("tpu", 4)
    assert compiled_time(one, config(4), machine) == compiled_time(other, config(4), machine)
