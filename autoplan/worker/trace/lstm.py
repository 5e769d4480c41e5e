"""Recognises calls of cuDNN's LSTM, which Keras's JAX backend makes for a layer on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cost_models.workload.lstm import Lstm
from cost_models.workload.workload import LSTM_BACKWARD, LSTM_FORWARD

_PRIMITIVES: Mapping[str, str] = {"rnn_fwd": LSTM_FORWARD, "rnn_bwd": LSTM_BACKWARD}


@dataclass(frozen=True, slots=True)
class LstmCall:
    """A call of one pass of cuDNN's LSTM, with the primitive of the Workload."""

    primitive: str
    lstm: Lstm

    @property
    def flops(self) -> int:
        """FLOPs of the pass."""
        return self.lstm.flops_of(self.primitive)


def lstm_call(eqn: Any) -> LstmCall | None:
    """Return the call of cuDNN's LSTM that an equation is; None for every other equation."""
    primitive = _PRIMITIVES.get(eqn.primitive.name)
    if primitive is None:
        return None
    shapes = ([atom.aval.shape for atom in atoms] for atoms in (eqn.invars, eqn.outvars))
    return LstmCall(primitive, Lstm.of_pass(primitive, *shapes))
