"""Recognises calls of cuDNN's LSTM, which Keras's JAX backend makes for a layer on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cost_models.workload.lstm import Lstm
from cost_models.workload.workload import LSTM_BACKWARD, LSTM_FORWARD

_PRIMITIVES: Mapping[str, str] = {"rnn_fwd": LSTM_FORWARD, "rnn_bwd": LSTM_BACKWARD}
_BACKWARD_INPUT, _BACKWARD_STATE, _BACKWARD_OUTPUT = 3, 4, 7
"""Operands of `rnn_bwd_p`: dy, dh_n, dc_n, x, h_0, c_0, w, y, reserve space, sequence lengths."""


@dataclass(frozen=True, slots=True)
class LstmCall:
    """A call of one pass of cuDNN's LSTM, with the primitive of the Workload."""

    primitive: str
    lstm: Lstm

    @property
    def flops(self) -> int:
        """FLOPs of the pass."""
        return self.lstm.forward_flops if self.primitive == LSTM_FORWARD else self.lstm.backward_flops


def lstm_call(eqn: Any) -> LstmCall | None:
    """Return the call of cuDNN's LSTM that an equation is; None for every other equation."""
    primitive = _PRIMITIVES.get(eqn.primitive.name)
    if primitive is None:
        return None
    if primitive == LSTM_FORWARD:
        x, state, y = eqn.invars[0], eqn.invars[1], eqn.outvars[0]
    else:
        x, state, y = (eqn.invars[place] for place in (_BACKWARD_INPUT, _BACKWARD_STATE, _BACKWARD_OUTPUT))
    return LstmCall(primitive, Lstm.of(x.aval.shape, state.aval.shape, y.aval.shape))
