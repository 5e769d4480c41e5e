"""`Compiled`: a compiler's decisions about one operation, in workloads that were read from HLO text."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class CompiledCollective:
    """A collective of a compiled program.

    kind           "all_reduce" | "all_gather" | "reduce_scatter" | "all_to_all" | "collective_permute"
    axis           mesh axis or axes along which it runs, as in "data" or "data,model"; else the size of its group
    devices        number of devices in one group
    stride         distance in device order between neighbours of a group
    payload_bytes  bytes of the full array, as `parallel/collectives.py` defines them
    arrays         number of arrays that one launch carries
    """

    kind: str
    axis: str
    devices: int
    stride: int
    payload_bytes: int
    arrays: int = 1


@dataclass(frozen=True, slots=True)
class Compiled:
    """Compiler decisions about one operation. The operation is a kernel, and nothing else is fused with it.

    moved_bytes    bytes of main memory that one execution reads and writes, padding included; only the accessed part
                   of operands that are sliced
    product_flops  FLOPs of its GEMMs and convolutions
    dtype          operand dtype of these; "" where it has none
    covers         number of following operations that run before its result is awaited (asynchronous copies and
                   collectives)
    launches       number of kernels launched; 0 for a copy engine and for a TPU's scalar unit
    """

    moved_bytes: int
    product_flops: int = 0
    dtype: str = ""
    exchange: CompiledCollective | None = None
    covers: int = 0
    launches: int = 1

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for files and for messages between processes."""
        return asdict(self)
