"""State that is copied into another layout before it is updated.

XLA:TPU for v6e has a product make the gradient of a kernel with more outputs than inputs with its inputs across the
lanes, where it reads the layer's input as it is in memory. The kernel and its slots come with outputs across the lanes,
so that they are copied at the start of the step and wait for that gradient.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cost_models.workload.workload import CONVERT, Kind, Phase, Workload
from cost_models.xla.fusion.fusion import Kernel, in_update
from cost_models.xla.rules import rule

_MATRIX = 2


@rule("state-layout-copies", source="programs compiled for TPU v6e: dense layers with more outputs than inputs")
def turned(workload: Workload, kernels: Sequence[Kernel]) -> dict[int, int]:
    """The last kernel that needs a copy, by the state that is copied."""
    old = {v.result: v.tensor for v in workload.variables}
    named = _names(workload)
    backward = {write for op in workload.ops if op.phase is Phase.BACKWARD for write in op.writes}
    layers = {tensor: name for tensor, name in named.items() if tensor not in backward}
    gradients = {write for kernel in kernels if _turns(workload, kernel, layers) for write in kernel.writes}
    found: dict[int, int] = {}
    for place, kernel in enumerate(kernels):
        if in_update(kernel) and not gradients.isdisjoint(kernel.reads):
            elements = next(workload.tensors[read].elements for read in kernel.reads if read in gradients)
            states = (old[write] for write in kernel.writes if write in old)
            found.update((state, place) for state in states if workload.tensors[state].elements == elements)
    return found


def _names(workload: Workload) -> dict[int, int]:
    """Of every tensor that which it is a view of, or converted from."""
    named = {number: number for number in range(len(workload.tensors))}
    for op in workload.ops:
        if (op.kind is Kind.VIEW or op.primitive == CONVERT) and op.reads:
            named.update(dict.fromkeys(op.writes, named[op.reads[0]]))
    return named


def _turns(workload: Workload, kernel: Kernel, layers: Mapping[int, int]) -> bool:
    """Whether a product of a layer's input, as it is in memory, and of more features makes a kernel's gradient."""
    op = kernel.op
    if op.kind is not Kind.DOT or op.phase is not Phase.BACKWARD or not kernel.writes:
        return False
    made = workload.tensors[kernel.writes[0]].shape
    if len(made) != _MATRIX or not all(dim.constant for dim in made) or made[0] == made[1]:
        return False
    fewer = min(made, key=lambda dim: dim.fixed)
    inputs = [read for read in op.reads if read in layers and workload.tensors[read].shape[-1:] == (fewer,)]
    return any(not {read, layers[read]}.isdisjoint(kernel.reads) for read in inputs)
