"""Custom calls of cuDNN's LSTM, as XLA:GPU writes them for JAX: FLOPs and bytes by hand."""

import pytest

from cost_models.workload.affine import Affine
from cost_models.workload.lstm import Lstm
from cost_models.workload.workload import Kind
from tests.builders.hlo_texts import only, program

B, T, N, H, D = 16, 50, 32, 64, 2
CALL = Lstm(B, T, N, H, directions=D)
STATE, RESERVE, WORKSPACE = f"f32[{D},{B},{H}]", f"f32[{CALL.reserve_bytes}]", f"f32[{CALL.workspace_bytes}]"
X, Y, W, LENGTHS = f"f32[{B},{T},{N}]", f"f32[{B},{T},{D * H}]", f"f32[{CALL.weights}]", f"s32[{B}]"


def call(target, operands, results):
    parameters = "\n".join(f"%p{number} = {shape} parameter({number})" for number, shape in enumerate(operands))
    names = ", ".join(f"%p{number}" for number in range(len(operands)))
    made = f'ROOT %r = ({", ".join(results)}) custom-call({names}), custom_call_target="{target}"'
    return only(program(f"{parameters}\n{made}"))


FORWARD = [X, STATE, STATE, W, LENGTHS], [Y, STATE, STATE, WORKSPACE, RESERVE]
BACKWARD = [Y, STATE, STATE, X, STATE, STATE, W, Y, RESERVE, W, LENGTHS], [X, STATE, STATE, W, WORKSPACE]
STATES, WIDE = 4 * D * B * H, 4 * B * T * (N + D * H)
BUFFERS = CALL.reserve_bytes + CALL.workspace_bytes


@pytest.mark.parametrize(
    ("target", "shapes", "primitive", "flops", "moved"),
    [
        ("cudnn_rnn_ffi", FORWARD, "lstm_forward", CALL.forward_flops, WIDE + 4 * STATES + 4 * CALL.weights),
        (
            "cudnn_rnn_bwd_ffi",
            BACKWARD,
            "lstm_backward",
            CALL.backward_flops,
            2 * WIDE + 6 * STATES + 3 * 4 * CALL.weights,
        ),
    ],
)
def test_a_pass_moves_a_quarter_of_its_buffers_and_launches_two_kernels_a_step(target, shapes, primitive, flops, moved):
    op = call(target, *shapes)
    assert (op.kind, op.primitive) == (Kind.LSTM, primitive)
    assert op.gemm == tuple(map(Affine, (D, B, 4 * H, H)))
    assert op.flops == Affine(flops)
    assert (op.compiled.product_flops, op.compiled.dtype) == (flops, "float32")
    assert op.compiled.launches == 2 * D * T
    assert op.compiled.moved_bytes == moved + BUFFERS + 4 * B
