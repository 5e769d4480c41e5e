"""Compiled texts as Workloads: what really compiled programs execute, against figures on paper."""

import json
import os
import subprocess
import sys

import pytest

from cost_models.errors import WorkloadError
from cost_models.hlo.reader import CollectiveCount, collectives, estimated_cycles, workload_of
from cost_models.workload.serialization import workload_from_dict, workload_to_dict
from cost_models.workload.workload import Kind, Phase, walk
from tests.builders.hlo_texts import DEVICES, only, program, read, real

LOCAL = 8
FLOAT = 4
RECURRENT_STEP = 32 * 64 + 64 * 64  # products of hlo/make.py's cell, a sample: input and state
DENSE = {256: 5 * 256**2 + 3 * 256 * 8, 512: 5 * 512**2 + 3 * 512 * 8}  # x needs no gradient


@pytest.fixture(scope="module")
def on_four_devices(root):
    """Keras's training steps and a program with every collective, compiled for four simulated devices."""
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    command = [sys.executable, "-m", "tests.models.compiled_for_four"]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def reduced(count, arrays, elements):
    return (CollectiveCount("all_reduce", "data", 4, count, FLOAT * elements, arrays),)


# Each trainable array has a gradient, and the loss and each metric a sum; XLA combines what it can into one launch.
MLP = [32 * 64, 64, 64 * 64, 64, 64 * 4, 4]
CLASSIFIER = [3 * 3 * 3 * 16, 16, 3 * 3 * 16 * 32, 32, 32 * 10, 10]
# Forward the mean, the mean that the variance takes anew, and the variance; backward as many, which are gamma's and
# beta's gradients among others.
BATCH_NORM = 6 * [16]
# The recurrent kernel and bias have their gradients summed in each of the 20 steps of the loop.
GRU_STEP, GRU = [16 * 48, 48], [8 * 48, 48, 16, 1]
EMBEDDING = [1000 * 16, 16 * 3, 3]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mlp", reduced(1, len(MLP) + 1, sum(MLP) + 1)),
        ("embedding", reduced(1, len(EMBEDDING) + 1, sum(EMBEDDING) + 1)),
        (
            "image_classifier",  # of BatchNorm two launches forward and two backward
            reduced(5, len(CLASSIFIER) + len(BATCH_NORM) + 2, sum(CLASSIFIER) + sum(BATCH_NORM) + 2),
        ),
        ("recurrent", reduced(20 + 1, 20 * len(GRU_STEP) + len(GRU) + 1, 20 * sum(GRU_STEP) + sum(GRU) + 1)),
    ],
)
def test_data_parallel_collectives_are_those_counted_by_hand(on_four_devices, name, expected):
    assert collectives(on_four_devices[name]["text"], {"data": 4}) == expected


def test_every_kind_of_collective_is_found_along_its_axis_with_the_bytes_of_the_full_array(on_four_devices):
    own = FLOAT * 8 * 16  # of one device
    expected = {
        ("all_reduce", "model", 2, 5, 5 * own, 5),  # in a loop of five
        ("all_gather", "data", 2, 1, 2 * own, 1),
        ("reduce_scatter", "data", 2, 1, 2 * own, 1),
        ("all_to_all", "model", 2, 1, 2 * own, 2),
        ("collective_permute", "data", 2, 1, own, 1),
        ("all_reduce", "data,model", 4, 1, own + FLOAT, 2),  # an array and a number together
    }
    found = collectives(on_four_devices["every_kind"]["text"], {"data": 2, "model": 2})
    assert {tuple(count.to_dict().values()) for count in found} == expected


@pytest.mark.parametrize(
    ("name", "lost"),
    [("mlp", 0), ("image_classifier", 0), ("embedding", 0), ("recurrent", 2 * LOCAL * 16)],
)
def test_products_cost_what_the_trace_of_the_same_step_says(on_four_devices, name, lost):
    """XLA writes the product with one column, the last one of the recurrent model, as a sum."""
    found = on_four_devices[name]
    workload = read(found["text"], axes={"data": 4})
    assert workload.model_flops.at(LOCAL) == found["model_flops"] - lost


@pytest.mark.parametrize("name", ["mlp", "image_classifier", "embedding", "recurrent"])
def test_a_keras_step_is_known_in_full_and_updates_its_state_in_place(on_four_devices, name):
    workload = read(on_four_devices[name]["text"], axes={"data": 4})
    assert workload.unknown_ops == ()
    assert len(workload.inputs) - len(workload.variables) == 2  # x and y
    assert {op.phase for op in walk(workload.ops)} == set(Phase)


def test_loops_carry_their_operations_and_how_often_they_run(on_four_devices):
    workload = read(on_four_devices["recurrent"]["text"], axes={"data": 4})
    loops = [op for op in workload.ops if op.kind is Kind.LOOP]
    assert [op.repeat for op in loops] == [20, 20]
    assert any(op.kind is Kind.COLLECTIVE for op in loops[1].body)
    assert not any(op.kind is Kind.COLLECTIVE for op in loops[0].body)


@pytest.mark.parametrize(
    ("name", "flops"),
    [
        ("a100_loop", 2 * 32 * (12 * (2 * RECURRENT_STEP + 64 * 64) + 3 * 64 * 8)),
        ("v5e_loop", 2 * 8 * (12 * (2 * RECURRENT_STEP + 64 * 64) + 3 * 64 * 8)),
        ("v5e_sharded", 2 * 64 * DENSE[512]),
        ("a100_sharded", 2 * 32 * DENSE[256]),
        ("v7x_sparse_core", 2 * 32 * DENSE[256]),
        # twice the convolution with strides, thrice the depthwise one, thrice the product
        ("v5e_convolution", 2 * 32 * (2 * 64 * 32 * 27 + 3 * 64 * 32 * 9 + 3 * 32 * 16)),
        # on GPUs the four rows of the product are padded to eight
        ("a100_convolution", 2 * 4 * (2 * 64 * 32 * 27 + 3 * 64 * 32 * 9 + 2 * 3 * 32 * 16)),
    ],
)
def test_products_in_texts_for_accelerators_cost_what_paper_says(name, flops):
    workload = read(real(name), axes={"data": DEVICES[name]})
    assert workload.model_flops.at(LOCAL) == flops
    assert workload.unknown_ops == ()


WHOLE = {width: 2 * (2 * width * width + width * 8) for width in (256, 512)}  # bytes of the bfloat16 weights


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("v5e_loop", [("all_reduce", 1, 4, FLOAT * (RECURRENT_STEP + 64 * 8 + 1))]),
        ("v5e_convolution", []),
        # start and done count once, and three arrays together are one launch
        (
            "a100_sharded",
            [("all_gather", 1, 3, WHOLE[256]), ("all_reduce", 1, 1, FLOAT), ("reduce_scatter", 1, 3, WHOLE[256])],
        ),
        # the loss, and as one array of them all the gradients in bfloat16
        ("a100_convolution", [("all_reduce", 2, 2, FLOAT + 2 * (27 * 32 + 9 * 32 + 32 * 16))]),
        # gradients by the sparse cores beside the products; the loss at the end
        ("v7x_sparse_core", [("all_reduce", 3, 4, FLOAT + WHOLE[256])]),
    ],
)
def test_collectives_in_texts_for_accelerators_are_those_counted_by_hand(name, expected):
    devices = DEVICES[name]
    found = collectives(real(name), {"data": devices})
    assert [(count.kind, count.count, count.arrays, count.bytes) for count in found] == expected
    assert all((count.axis, count.devices) == ("data", devices) for count in found)


def test_gathers_in_fusions_count_once_with_the_operations_that_hide_them():
    """On TPUs a gather is written in the fusion that starts it, in those that go on with it, and in the one that ends
    it; an all-reduce of which each device keeps a slice is a reduce-scatter."""
    text = real("v5e_sharded")
    assert text.count(" all-gather(") > 5
    workload = read(text, axes={"data": 4})
    sent = [op.compiled for op in workload.ops if op.kind is Kind.COLLECTIVE]
    gathers = [compiled for compiled in sent if compiled.exchange.kind == "all_gather"]
    assert len(gathers) == 5
    assert sum(compiled.covers > 0 for compiled in gathers) == text.count("AsyncCollectiveStart") == 3
    (scattered,) = (compiled.exchange for compiled in sent if compiled.exchange.kind == "reduce_scatter")
    assert (scattered.arrays, scattered.payload_bytes) == (2, 2 * 2 * 512 * 512)


def test_estimated_cycles_are_the_compilers_with_loops_as_often_as_they_run():
    text = real("v5e_loop")
    stated = [int(part.split('"')[0]) for part in text.split('"estimated_cycles":"')[1:]]
    in_loops = estimated_cycles(text) - sum(stated)
    assert in_loops > 0
    assert in_loops % 11 == 0  # bodies are in the sum once already, and run twelve times


@pytest.mark.parametrize("name", ["a100_loop", "a100_convolution"])
def test_where_the_compiler_states_no_cycles_none_are_known(name):
    assert estimated_cycles(real(name)) is None


def test_a_workload_of_compiled_text_comes_back_whole_from_plain_values():
    workload = read(real("v5e_sharded"), axes={"data": 4})
    again = workload_from_dict(json.loads(json.dumps(workload_to_dict(workload))))
    assert again == workload
    assert again.ops == workload.ops
    assert again.batch_exact


def test_layers_and_rematerialized_regions_are_those_of_jax():
    line = 'ROOT %n = f32[8] negate(%a), metadata={{op_name="jit(train_step)/{}/neg"}}'
    scopes = {
        "jvp(block/dense)": ("block/dense", Phase.FORWARD, 0),
        "transpose(jvp(block/dense))": ("block/dense", Phase.BACKWARD, 0),
        "transpose(jvp())/rematted_computation/dense": ("dense", Phase.FORWARD, 1),
    }
    for scope, expected in scopes.items():
        op = only(program("%a = f32[8] parameter(0)\n" + line.format(scope)))
        assert (op.layer, op.phase, op.region) == expected


def test_recomputed_products_are_work_but_not_the_models():
    lines = """
    %a = f32[8,8] parameter(0)
    %d = f32[8,8] dot(%a, %a), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="jit(f)/jvp(x)/d"}
    ROOT %e = f32[8,8] dot(%d, %a), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="REMAT"}
    """
    text = program(lines.replace("REMAT", "jit(f)/transpose(jvp(x))/rematted_computation/dot"))
    workload = read(text)
    assert workload.flops.at(LOCAL) == 2 * (2 * 8**3)
    assert workload.model_flops.at(LOCAL) == 2 * 8**3


def test_a_call_that_no_rule_knows_moves_its_bytes_and_is_named():
    call = 'custom-call(%a), custom_call_target="flash_v9"'
    workload = read(program(f"%a = f32[8] parameter(0)\nROOT %c = f32[8] {call}"))
    (unknown,) = workload.unknown_ops
    assert (unknown.primitive, unknown.count) == ("flash_v9", 1)
    assert "counted by the bytes" in unknown.reason
    assert workload.ops[0].compiled.moved_bytes == 64


def test_transfers_to_the_host_are_listed_because_its_link_is_not_known():
    lines = """
    %a = f32[8] parameter(0)
    %s = (f32[8]{0:S(5)}, f32[8]{0}, u32[]) copy-start(%a)
    ROOT %d = f32[8]{0:S(5)} copy-done(%s)
    """
    workload = read(program(lines))
    assert [unknown.primitive for unknown in workload.unknown_ops] == ["memory of the host"]
    assert workload.ops[0].compiled.moved_bytes == 64


def test_a_chain_that_ends_where_another_starts_is_not_counted_with_it():
    gather = "all-gather(%p), replica_groups={{0,1}}, dimensions={0}"
    chains = [f'frontend_attributes={{chain_id="{number}"}}' for number in (1, 2)]
    mark = 'custom-call({}), custom_call_target="AsyncCollective{}"'

    def fused(name, *lines):
        return "\n".join([f"%{name} (p: f32[8]) -> f32[16] {{", "  %p = f32[8] parameter(0)", *lines, "}"])

    first = fused("one", f"  %g = f32[16] {gather}, {chains[0]}", f"  ROOT %m = f32[16] {mark.format('%g', 'Start')}")
    both = fused(
        "two",
        f"  %g = f32[16] {gather}, {chains[0]}",
        f"  %h = f32[16] {gather}, {chains[1]}",
        f"  %m = f32[16] {mark.format('%g', 'Done')}",
        f"  ROOT %n = f32[16] {mark.format('%h', 'Start')}",
    )
    last = fused("three", f"  %h = f32[16] {gather}, {chains[1]}", f"  ROOT %m = f32[16] {mark.format('%h', 'Done')}")
    lines = """
    %a = f32[8] parameter(0)
    %x = f32[16] fusion(%a), kind=kCustom, calls=%one
    %y = f32[16] fusion(%a), kind=kCustom, calls=%two
    ROOT %z = f32[16] fusion(%a), kind=kCustom, calls=%three
    """
    found = collectives(program(lines, first, both, last, header=", num_partitions=2"), {"data": 2})
    assert found == (CollectiveCount("all_gather", "data", 2, 2, 2 * 64, 2),)


def test_an_unknown_instruction_is_named_in_a_fusion_too():
    fused = "%f (p: f32[8]) -> f32[8] {\n  %p = f32[8] parameter(0)\n  ROOT %q = f32[8] quantum-add(%p, %p)\n}"
    text = program("%a = f32[8] parameter(0)\nROOT %c = f32[8] fusion(%a), kind=kLoop, calls=%f", fused)
    workload = read(text)
    assert [unknown.primitive for unknown in workload.unknown_ops] == ["quantum-add"]
    assert workload.ops[0].compiled.moved_bytes == 64


def test_the_most_expensive_branch_of_a_conditional_counts():
    branch = "%{0} (p: f32[8,8]) -> f32[8,8] {{\n  %p = f32[8,8] parameter(0)\n  ROOT %r = f32[8,8] {1}\n}}"
    cheap = branch.format("cheap", "negate(%p)")
    costly = branch.format("costly", "dot(%p, %p), lhs_contracting_dims={1}, rhs_contracting_dims={0}")
    lines = """
    %k = s32[] parameter(0)
    %a = f32[8,8] parameter(1)
    ROOT %c = f32[8,8] conditional(%k, %a, %a), branch_computations={%cheap, %costly}
    """
    op = only(program(lines, cheap, costly))
    assert op.kind is Kind.BRANCH
    assert [inner.kind for inner in op.body] == [Kind.DOT]


def test_groups_of_one_device_send_nothing():
    lines = "%a = f32[8] parameter(0)\nROOT %r = f32[8] all-reduce(%a), replica_groups={{0},{1}}, to_apply=%add"
    assert collectives(program(lines, header=", num_partitions=2"), {"data": 2}) == ()


def test_a_mesh_of_another_size_is_an_error_that_names_both():
    with pytest.raises(WorkloadError, match=r"for 4 devices, but the mesh has 8 \(data 8\); give the axes of the mesh"):
        read(real("v5e_loop"), axes={"data": 8})


def test_a_device_that_is_not_there_is_an_error():
    lines = "%a = f32[8] parameter(0)\nROOT %r = f32[8] all-reduce(%a), replica_groups={{0,9}}, to_apply=%add"
    with pytest.raises(WorkloadError, match="all-reduce %r names device 9 of 2"):
        read(program(lines, header=", num_partitions=2"), axes={"data": 2})


def test_a_computation_that_calls_itself_is_an_error():
    inner = "%f (p: f32[8]) -> f32[8] {\n  %p = f32[8] parameter(0)\n  ROOT %q = f32[8] call(%p), to_apply=%f\n}"
    text = program("%a = f32[8] parameter(0)\nROOT %c = f32[8] call(%a), to_apply=%f", inner)
    for look in (read, estimated_cycles, lambda text: collectives(text, {})):
        with pytest.raises(WorkloadError, match="calls itself"):
            look(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the compiled text is empty"),
        ("{'mlir': 1}", "no compiled HLO"),
        (program("ROOT %a = f32[] negate(%b)\n%b = f32[] iota()"), "reads 'b', which is not defined before it"),
        (
            program("%a = f32[8,8] parameter(0)\nROOT %d = f32[8,8] dot(%a, %a), lhs_contracting_dims={5}"),
            "cannot be read",
        ),
    ],
)
def test_an_unreadable_text_is_a_workload_error(text, message):
    with pytest.raises(WorkloadError, match=message):
        workload_of(text, axes={}, local_batch=1, precision="float32", remat="none")


def test_no_cut_and_no_missing_line_is_more_than_an_error_of_the_text():
    """Whatever is missing, what comes out is a workload or a WorkloadError."""
    lines = real("a100_convolution").splitlines()
    errors = 0
    for missing in range(0, len(lines), 7):
        try:
            read("\n".join(lines[:missing] + lines[missing + 1 :]), axes={"data": 8})
        except WorkloadError:
            errors += 1
    assert errors > 5
