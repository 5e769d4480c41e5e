"""Recognises cuDNN's LSTM among custom calls, as JAX calls it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cost_models.hlo.dots import target_of_call
from cost_models.hlo.parser import Computation, Instruction
from cost_models.hlo.shapes import Array
from cost_models.workload.lstm import JAX_OVERSIZE, Lstm
from cost_models.workload.workload import LSTM_BACKWARD, LSTM_FORWARD

_TARGETS: Mapping[str, str] = {"cudnn_rnn_ffi": LSTM_FORWARD, "cudnn_rnn_bwd_ffi": LSTM_BACKWARD}
_BACKWARD_RESERVE = 8
"""The operand of the backward pass that is the reserve space."""
_FORWARD_BUFFERS = slice(3, 5)
"""Outputs of the forward pass: y, h_n, c_n, workspace, reserve space; the backward pass has its workspace last."""


@dataclass(frozen=True, slots=True)
class LstmKernel:
    """A pass of cuDNN's LSTM.

    oversize_bytes   bytes of its buffers that JAX allocates and cuDNN does not use
    """

    primitive: str
    lstm: Lstm
    oversize_bytes: int

    @property
    def flops(self) -> int:
        """FLOPs of the pass."""
        return self.lstm.flops_of(self.primitive)


def lstm_of(instruction: Instruction, inside: Computation) -> LstmKernel | None:
    """Return the LSTM that a custom call computes; None for every other instruction."""
    primitive = _TARGETS.get(target_of_call(instruction)) if instruction.opcode == "custom-call" else None
    if primitive is None:
        return None
    read, made = [one.array for one in inside.inputs(instruction)], instruction.arrays
    forward = primitive == LSTM_FORWARD
    buffers = made[_FORWARD_BUFFERS] if forward else (read[_BACKWARD_RESERVE], made[-1])
    shapes = ([tuple(array.dims) for array in arrays] for arrays in (read, made))
    return LstmKernel(primitive, Lstm.of_pass(primitive, *shapes), _oversize(buffers))


def _oversize(buffers: tuple[Array, ...]) -> int:
    whole = sum(array.stored_bytes for array in buffers)
    return whole - whole // JAX_OVERSIZE
