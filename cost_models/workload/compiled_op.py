"""What a compiler decided about an operation: known of workloads that were read from compiled text."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Exchange:
    """What a collective of a compiled program sends.

    kind           "all_reduce" | "all_gather" | "reduce_scatter" | "all_to_all" | "collective_permute"
    axis           the mesh axis or axes that it runs along, as in "data" or "data,model"; else its group's size
    devices        devices of one group
    stride         distance in device order between neighbours of a group
    payload_bytes  of the full array, as `communication.py` defines it
    arrays         how many arrays travel together
    """

    kind: str
    axis: str
    devices: int
    stride: int
    payload_bytes: int
    arrays: int = 1


@dataclass(frozen=True, slots=True)
class Compiled:
    """What a compiler decided about an operation, which is a kernel then: nothing else is fused with it.

    moved_bytes    bytes of main memory that one execution reads and writes, padding included; of what it reads or
                   writes in part, that part
    product_flops  FLOPs of the products and convolutions in it
    dtype          what these multiply; "" without any
    covers         how many operations behind it run before anything waits for it: an asynchronous copy or collective
    launches       kernels that are started for it: none for a copy that runs by itself, or for a TPU's scalar unit
    """

    moved_bytes: int
    product_flops: int = 0
    dtype: str = ""
    exchange: Exchange | None = None
    covers: int = 0
    launches: int = 1

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for job messages and files."""
        return asdict(self)
