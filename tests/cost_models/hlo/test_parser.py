"""The form of compiled text: what is read of it, and what is said of a text that is none."""

import pytest

from cost_models.errors import WorkloadError
from cost_models.hlo.parser import parse
from tests.builders.hlo_texts import DEVICES, program, real

ADD = """
%x = f32[4]{0} parameter(0), metadata={op_name="state[0]"}
ROOT %sum = f32[4]{0} add(%x, %x), metadata={op_name="jit(f)/add, \\"quoted\\""}
"""


def test_instructions_are_read_in_program_order():
    entry = parse(program(ADD)).entry
    assert [one.opcode for one in entry.instructions] == ["parameter", "add"]
    assert entry.root.operands == ("x", "x")
    assert entry.root.op_name == 'jit(f)/add, \\"quoted\\"'
    assert entry.parameters[0].array.dims == (4,)


def test_attributes_are_read_by_key():
    text = program('ROOT %d = f32[] custom-call(), custom_call_target="a,b", window={size=3x3 pad=1_1x1_1}, k={1,2}')
    attributes = parse(text).entry.root.attributes
    assert attributes == {"custom_call_target": '"a,b"', "window": "{size=3x3 pad=1_1x1_1}", "k": "{1,2}"}


@pytest.mark.parametrize("config", ['{"a":{"n":"3"}}', '"{\\"a\\":{\\"n\\":\\"3\\"}}"'])
def test_a_backend_config_is_an_object_or_a_string_with_one(config):
    root = parse(program(f"ROOT %d = f32[] custom-call(), backend_config={config}")).entry.root
    assert root.backend_config == {"a": {"n": "3"}}


def test_a_backend_config_that_is_no_object_says_nothing():
    root = parse(program('ROOT %d = f32[] custom-call(), backend_config="opaque text"')).entry.root
    assert root.backend_config == {}


def test_an_instruction_may_go_on_in_the_next_lines():
    text = program('ROOT %d = f32[] custom-call(), custom_call_target="kernel", backend_config="first')
    text = text.replace('"first\n', '"first\nsecond\n third"\n')
    assert parse(text).entry.root.attributes["backend_config"] == '"first\nsecond\n third"'


def test_names_need_no_percent_sign():
    root = parse(program("x = f32[4]{0} parameter(0)\nROOT sum = f32[4]{0} add(f32[4]{0} x, x)")).entry.root
    assert root.operands == ("x", "x")


def test_the_header_states_the_number_of_devices_and_the_donated_parameters():
    header = ", input_output_alias={ {1}: (0, {}, may-alias), {}: (2, {}, must-alias) }, num_partitions=4"
    module = parse(program(ADD, header=header + ", replica_count=2"))
    assert module.devices == 8
    assert module.aliases == ((1, 0), (0, 2))


@pytest.mark.parametrize(("name", "devices"), DEVICES.items())
def test_real_texts_are_read_whole(name, devices):
    module = parse(real(name))
    assert module.devices == devices
    assert module.chip_memory == name.startswith("v")
    lines = [line for line in real(name).splitlines() if line.startswith("  ")]
    assert sum(len(body.instructions) for body in module.computations.values()) == len(lines)
    for body in module.computations.values():
        assert body.root.name in body.by_name
        assert all(body.inputs(one) is not None for one in body.instructions)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"the compiled text is empty; expected what jax\.jit"),
        ("   \n", r"the compiled text is empty"),
        ("module @jit_f attributes {}", r"no compiled HLO: it starts with 'module @jit_f.*give what jax\.jit"),
        ("HloModule jit_f\n\nENTRY %main { }", r"no schedule .*give compile\(\)\.as_text\(\), not the lowered text"),
        ("HloModule jit_f, is_scheduled=true", r"no ENTRY computation.*cut off"),
        (program("%a = f32[] parameter(0)"), r"%main has no ROOT"),
        (program("ROOT %a = f32[] neg(%b)"), r"neg %a reads b, which %main does not have"),
        (program("ROOT %a = f32[] fusion(), calls=%gone"), r"it calls %gone, which is not there"),
        (program("ROOT %a = f32[] add(%b"), r"a bracket of .* does not close"),
        (program("ROOT %a = f32[]"), r"instruction %a has no operation"),
    ],
)
def test_an_unreadable_text_is_an_error_that_says_what_to_do(text, message):
    def look():
        module = parse(text)
        root = module.entry.root
        module.entry.inputs(root)
        return module.called(root.called)

    with pytest.raises(WorkloadError, match=message):
        look()


def test_a_text_that_ends_in_the_middle_is_found_out():
    whole = real("a100_convolution")
    for share in (0.1, 0.3, 0.5, 0.7, 0.9, 0.99):
        with pytest.raises(WorkloadError, match=r"cut off: give all of compile\(\)\.as_text\(\)"):
            parse(whole[: int(len(whole) * share)])
