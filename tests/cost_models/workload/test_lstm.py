"""cuDNN's LSTM: FLOPs and bytes worked out by hand."""

import pytest

from cost_models.workload.lstm import Lstm, buffer_sizes

B, T, N, H = 8, 50, 32, 64
ONE, BOTH = Lstm(B, T, N, H), Lstm(B, T, N, H, directions=2)


def test_four_gates_multiply_the_inputs_of_all_steps_at_once_and_the_units_step_by_step():
    assert ONE.recurrent_flops == T * 2 * B * 4 * H * H
    assert ONE.input_flops == 2 * B * T * 4 * H * N
    assert ONE.forward_flops == ONE.recurrent_flops + ONE.input_flops
    assert ONE.backward_flops == 2 * ONE.forward_flops
    assert (ONE.step_product, ONE.kernels) == ((1, B, 4 * H, H), 2 * T)


def test_two_directions_are_two_of_all():
    for name in ("forward_flops", "backward_flops", "kernels", "weights", "reserve_bytes", "workspace_bytes"):
        assert getattr(BOTH, name) == 2 * getattr(ONE, name)


def test_later_layers_take_the_units_of_the_earlier_ones():
    two = Lstm(B, T, N, H, layers=2)
    assert two.forward_flops == ONE.forward_flops + Lstm(B, T, H, H).forward_flops
    assert two.weights == ONE.weights + Lstm(B, T, H, H).weights


def test_weights_have_two_biases_for_each_gate():
    assert ONE.weights == 4 * H * (N + H + 2)


def test_the_reserve_space_is_the_one_that_cudnn_stated():
    """pytorch#2895: four layers of 320 units; the number of steps times samples is a guess that fits the bytes."""
    seen = Lstm(250, 100, 123, 320, layers=4)
    assert 4 * seen.weights == 4 * 4 * 320 * (123 + 320 + 2 + 3 * (320 + 320 + 2))
    assert seen.reserve_bytes == 736_000_000
    assert seen.workspace_bytes == pytest.approx(17_730_560, rel=0.03)


def test_buffers_are_computed_from_the_arguments_of_jaxlib():
    assert buffer_sizes(N, H, 1, B, T, 0.0, True, True) == (BOTH.workspace_bytes, BOTH.reserve_bytes)


@pytest.mark.parametrize("call", [ONE, BOTH, Lstm(B, T, N, H, layers=3, directions=2)])
def test_a_call_is_known_by_the_shapes_of_its_operands(call):
    groups = call.layers * call.directions
    assert Lstm.of((B, T, N), (groups, B, H), (B, T, call.directions * H)) == call
