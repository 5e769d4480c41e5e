"""Finds positions that a training step counts in a 16-bit type, in which large whole numbers become the same.

bfloat16 has 8 significant bits and float16 has 11. A layer that computes `arange(length)` in its compute dtype, as of a
positional encoding, has the same number for positions 256 and 257 under `mixed_bfloat16`.
"""

from __future__ import annotations

from collections.abc import Mapping

from cost_models.workload.workload import Op, Workload

EXACT_UP_TO: Mapping[str, int] = {"bfloat16": 256, "float16": 2048}
"""The largest whole number up to which a type has all whole numbers."""
_SAME_NUMBERS = frozenset(
    {
        *("broadcast_in_dim", "reshape", "squeeze", "transpose", "expand_dims", "copy", "add", "sub", "slice"),
        *("concatenate", "convert_element_type"),
    }
)
"""Operations whose results still count what their inputs count."""


def merged_positions(workload: Workload) -> str:
    """Return how far a step counts in a type that has not all of these numbers, as the end of a sentence; "" if not."""
    counted: dict[int, int] = {}
    for op in workload.ops:
        length = _length(workload, op) if op.primitive == "iota" else _carried(op, counted)
        for tensor in op.writes if length else ():
            dtype = workload.tensors[tensor].dtype
            if length - 1 > EXACT_UP_TO.get(dtype, length):
                where = f" in {op.layer}" if op.layer else ""
                return (
                    f"positions are counted to {length - 1}{where} in {dtype}, in which {EXACT_UP_TO[dtype]} and "
                    f"{EXACT_UP_TO[dtype] + 1} are the same number"
                )
            if not dtype.startswith("bool"):
                counted[tensor] = length
    return ""


def _carried(op: Op, counted: Mapping[int, int]) -> int:
    if op.primitive not in _SAME_NUMBERS:
        return 0
    return max((counted.get(tensor, 0) for tensor in op.reads), default=0)


def _length(workload: Workload, op: Op) -> int:
    """Return how many numbers an iota counts: its longest dimension, because the Workload does not say along which."""
    sizes = [dim.at(workload.local_batch) for tensor in op.writes for dim in workload.tensors[tensor].shape]
    return int(max(sizes, default=0))
