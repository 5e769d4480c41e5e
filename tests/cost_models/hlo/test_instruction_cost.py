"""Cost of single instructions and fusions of compiled programs."""

import pytest

from cost_models.hlo.instruction_cost import InstructionCosts, branches_of, is_free, started
from cost_models.hlo.parser import parse
from cost_models.hlo.traffic import Traffic
from cost_models.workload.workload import Kind
from tests.builders.hlo_texts import program

M, K, N = 64, 32, 16
DOT = "dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
OPERANDS = f"%a = bf16[{M},{K}] parameter(0)\n%b = bf16[{K},{N}] parameter(1)\n"


def costs(text):
    module = parse(text)
    return module, InstructionCosts(module, Traffic(module))


def root_cost(text):
    module, priced = costs(text)
    return priced.cost(module.entry.root, module.entry)


def test_a_dot_is_a_gemm_of_its_operands_dtype():
    cost = root_cost(program(f"{OPERANDS}ROOT %r = bf16[{M},{N}] {DOT}"))
    assert cost.kind is Kind.DOT
    assert tuple(size.fixed for size in cost.gemm) == (1, M, N, K)
    assert cost.flops == cost.compiled.product_flops == 2 * M * N * K
    assert cost.compiled.dtype == "bfloat16"
    assert cost.compiled.moved_bytes == 2 * (M * K + K * N + M * N)


def test_a_fusion_counts_its_gemm_and_the_arithmetic_around_it():
    fused = "\n".join(
        [
            "%fused (p: f32[]) -> f32[] {",
            f"  %a = bf16[{M},{K}] parameter(0)",
            f"  %b = bf16[{K},{N}] parameter(1)",
            f"  %d = bf16[{M},{N}] {DOT}",
            f"  ROOT %n = bf16[{M},{N}] negate(%d)",
            "}",
        ]
    )
    call = f"{OPERANDS}ROOT %r = bf16[{M},{N}] fusion(%a, %b), kind=kOutput, calls=%fused"
    cost = root_cost(program(call, fused))
    assert cost.kind is Kind.DOT
    assert cost.flops == 2 * M * N * K + M * N
    assert cost.compiled.product_flops == 2 * M * N * K


@pytest.mark.parametrize(
    ("inner", "kind"),
    [("reduce(%p, %z), dimensions={0}, to_apply=%sum", Kind.REDUCE), ("negate(%p)", Kind.ELEMENTWISE)],
)
def test_a_fusion_is_named_by_the_kind_that_dominates_it(inner, kind):
    shape = "f32[8]" if kind is Kind.REDUCE else "f32[64,8]"
    lines = ["%p = f32[64,8] parameter(0)", "%z = f32[] constant(0)", f"ROOT %r = {shape} {inner}"]
    fused = "\n".join(["%fused (p: f32[]) -> f32[] {", *lines, "}"])
    cost = root_cost(
        program(f"%a = f32[64,8] parameter(0)\nROOT %r = {shape} fusion(%a), kind=kLoop, calls=%fused", fused)
    )
    assert cost.kind is kind
    assert cost.flops == 64 * 8


def test_an_instruction_without_a_rule_is_unknown_and_priced_by_its_bytes():
    cost = root_cost(program("%a = f32[64] parameter(0)\nROOT %r = f32[64] quantum-sort(%a)"))
    assert cost.kind is Kind.UNKNOWN
    assert [name for name, _ in cost.unknown] == ["quantum-sort"]
    assert cost.compiled.moved_bytes == 2 * 4 * 64


def test_a_library_call_with_a_cost_estimate_is_known():
    config = '{"custom_call_config": {"cost_estimate": {"flops": 12345}}}'
    call = f'ROOT %r = f32[64] custom-call(%a), custom_call_target="mine", backend_config={config}'
    cost = root_cost(program(f"%a = f32[64] parameter(0)\n{call}"))
    assert (cost.kind, cost.flops, cost.unknown) == (Kind.CUSTOM, 12345, ())


def test_annotations_of_the_compiler_run_nothing():
    module, _ = costs(program('ROOT %r = f32[64] custom-call(), custom_call_target="AllocateBuffer"'))
    assert is_free(module.entry.root)


def test_the_start_of_an_asynchronous_slice_is_priced_as_a_slice():
    module, _ = costs(
        program("%a = f32[64] parameter(0)\nROOT %r = (f32[64], f32[8], u32[]) slice-start(%a), slice={[0:8]}")
    )
    sliced = started(module.entry.root)
    assert (sliced.opcode, sliced.array.dims) == ("slice", (8,))


def test_branches_are_found_in_both_spellings():
    others = [f"%{name} (p: f32[]) -> f32[] {{\n  ROOT %p = f32[] parameter(0)\n}}" for name in ("yes", "no")]
    listed = "ROOT %r = f32[] conditional(%c, %a, %a), branch_computations={%no, %yes}"
    named = "ROOT %r = f32[] conditional(%c, %a, %a), true_computation=%yes, false_computation=%no"
    for instruction, expected in ((listed, ["no", "yes"]), (named, ["yes", "no"])):
        module, _ = costs(program(f"%c = pred[] parameter(0)\n%a = f32[] parameter(1)\n{instruction}", *others))
        assert [branch.name for branch in branches_of(module.entry.root, module)] == expected
