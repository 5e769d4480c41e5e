"""The kernels of JAX's splash attention on TPUs: their names, and how their operands show a mask.

`jax/experimental/pallas/ops/tpu/splash_attention/splash_attention_kernel.py`, JAX 0.10.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from cost_models.workload.workload import ATTENTION_FORWARD, ATTENTION_KEYS, ATTENTION_QUERIES

PARTS: Mapping[str, str] = {"fwd": ATTENTION_FORWARD, "dq": ATTENTION_QUERIES, "dkv": ATTENTION_KEYS}
"""Primitives by the part of a kernel's name after `splash_mha_` (`get_kernel_name`)."""
_SUBLANES, _LANES = 8, 128
_SEGMENTS = 2
"""Operands with the segments of queries and of keys, which Keras always gives."""


def computes_mask(int32_shapes: Iterable[tuple[int, ...]], lengths: Collection[int]) -> bool:
    """Return whether a kernel computes its mask from positions, as for causal attention.

    Positions are then an operand beside the segments of queries and of keys, all of them repeated over a tile.

    int32_shapes   shapes of the operands in int32
    lengths        numbers of queries and of keys
    """
    tiled = {(length, _LANES) for length in lengths} | {(_SUBLANES, length) for length in lengths}
    return sum(tuple(shape[-2:]) in tiled for shape in int32_shapes) > _SEGMENTS
