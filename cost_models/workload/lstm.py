"""The LSTM of cuDNN, as JAX calls it: the work of its products, and the bytes of its buffers.

`jax.experimental.rnn.lstm` is one call a pass. cuDNN multiplies the input of all steps by its weights in one product,
and runs the recurrence step by step, a product and a kernel for the gates each (Appleyard et al. 2016, arXiv
1604.01946).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from cost_models.workload.workload import LSTM_FORWARD, Kind, Op, Workload

Shape = tuple[int, ...]
GATES = 4
FLOAT_BYTES = 4
RESERVED = 5
"""Numbers that are kept for the backward pass, for each unit, step and sample: four gates and the cell. The 736,000,000
bytes that cuDNN stated for four layers of 320 units (pytorch#2895, in 2017) are 23 numbers for each unit, five a layer
and three outputs between the layers, at 25,000 steps times samples, a number that only these bytes suggest."""
UNCERTAINTY = 0.2, 0.5
"""How far cuDNN's buffers may be (below, above) the calculated size, as a share of it. No present version was asked.
If it kept the outputs and the tanh of the cells as well, five numbers would be seven."""
KERNELS_A_STEP = 2
"""Kernels of a step of the recurrence in one direction: its product, and its gates."""
JAX_OVERSIZE = 4
"""cuDNN states bytes, and JAX allocates as many float32 numbers (`rnn_abstract_eval` of `jax/experimental/rnn.py`,
`compute_rnn_workspace_reserve_space_sizes` of `jaxlib/gpu/rnn_kernels.cc`, JAX 0.10)."""


@dataclass(frozen=True)
class Lstm:
    """A call of cuDNN's LSTM.

    layers      stacked in one call: 1 for a layer of Keras
    directions  2 if it is bidirectional
    """

    batch: int
    length: int
    inputs: int
    hidden: int
    layers: int = 1
    directions: int = 1

    @classmethod
    def of_pass(cls, primitive: str, operands: Sequence[Shape], results: Sequence[Shape]) -> Lstm:
        """Return the call of a pass by the shapes of its operands and results.

        Operands of the forward pass are x, h_0, c_0, weights and lengths; of the backward pass dy, dh_n, dc_n,
        x, h_0, c_0, weights, y, the reserve space, and more.
        """
        if primitive == LSTM_FORWARD:
            return cls.of(operands[0], operands[1], results[0])
        return cls.of(operands[3], operands[4], operands[7])

    @classmethod
    def of(cls, x: Shape, h: Shape, y: Shape) -> Lstm:
        """Return the call with an input (batch, length, inputs), a state (layers x directions, batch, hidden) and an
        output (batch, length, directions x hidden)."""
        (batch, length, inputs), (states, _, hidden) = x, h
        directions = y[-1] // hidden
        return cls(batch, length, inputs, hidden, states // directions, directions)

    @property
    def step_product(self) -> tuple[int, int, int, int]:
        """The product of a step of the recurrence as (groups, m, n, k): all gates of the units, from the units."""
        return self.layers * self.directions, self.batch, GATES * self.hidden, self.hidden

    @property
    def recurrent_flops(self) -> int:
        """FLOPs of the recurrence in one pass, which run step by step."""
        return 2 * prod(self.step_product) * self.length

    @property
    def input_flops(self) -> int:
        """FLOPs of the products of all steps with the weights of the inputs."""
        later = (self.layers - 1) * self.directions * self.hidden
        return 2 * self.batch * self.length * self.directions * GATES * self.hidden * (self.inputs + later)

    @property
    def forward_flops(self) -> int:
        """FLOPs of the forward pass."""
        return self.recurrent_flops + self.input_flops

    @property
    def backward_flops(self) -> int:
        """FLOPs of the backward pass: a product for the gradients of inputs and units, and one for those of weights."""
        return 2 * self.forward_flops

    def flops_of(self, primitive: str) -> int:
        """Return the FLOPs of a pass."""
        return self.forward_flops if primitive == LSTM_FORWARD else self.backward_flops

    @property
    def kernels(self) -> int:
        """Kernels of one pass: those of the steps."""
        return KERNELS_A_STEP * self.layers * self.directions * self.length

    @property
    def weights(self) -> int:
        """Number of weights, with two biases for each gate."""
        later = (self.layers - 1) * self.directions * self.hidden
        of_inputs = self.directions * (self.inputs + later)
        return GATES * self.hidden * (of_inputs + self.layers * self.directions * (self.hidden + 2))

    @property
    def reserve_bytes(self) -> int:
        """Bytes that cuDNN keeps for the backward pass."""
        outputs = RESERVED * self.layers + self.layers - 1
        return FLOAT_BYTES * outputs * self.directions * self.hidden * self.batch * self.length

    @property
    def workspace_bytes(self) -> int:
        """Bytes of cuDNN's scratch in each pass: the weights in its own order, and the gates of one step.

        For the layers of pytorch#2895 this is 17.3 MB at a batch of 250, which is a guess; cuDNN stated 17.7 MB.
        """
        return FLOAT_BYTES * (self.weights + self.layers * self.directions * self.batch * GATES * self.hidden)


def workspace_of(op: Op) -> int:
    """Return the tensor that is the workspace of an LSTM in one call: its last output."""
    return op.writes[-1]


def buffers_of(op: Op) -> tuple[int, int]:
    """Return (reserve space, workspace) of an LSTM in one call.

    The forward pass writes them last. The backward pass reads the reserve space before the lengths of the sequences.
    """
    reserve = op.writes[-2] if op.primitive == LSTM_FORWARD else op.reads[-2]
    return reserve, workspace_of(op)


@lru_cache(maxsize=64)
def lstm_buffers(workload: Workload) -> tuple[int, ...]:
    """Return the tensors that are buffers of LSTMs in one call, in order."""
    return tuple(sorted({end for op in workload.ops if op.kind is Kind.LSTM for end in buffers_of(op)}))


def buffer_sizes(
    inputs: int,
    hidden: int,
    layers: int,
    batch: int,
    length: int,
    dropout: float,
    bidirectional: bool,
    *_: object,
) -> tuple[int, int]:
    """Return the bytes of (workspace, reserve space), under the arguments of jaxlib's function that asks cuDNN."""
    call = Lstm(batch, length, inputs, hidden, layers, 2 if bidirectional else 1)
    return call.workspace_bytes, call.reserve_bytes
