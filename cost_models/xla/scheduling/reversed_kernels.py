"""Which convolutions wait for the update of their own weights on GPUs.

The gradient of a transposed convolution's input reads its weights reversed. Nothing else does, and nothing that leads
to the update of these weights depends on it, so that XLA makes one kernel of both, which read the same weights (its
multi-output fusion of siblings). The gradient of the weights then comes before that of the input, whatever the order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cost_models.workload.workload import Kind, Phase, Workload
from cost_models.xla.dataflow import is_narrow
from cost_models.xla.fusion.fusion import Kernel, in_update
from cost_models.xla.rules import rule

_MOST_RESULTS = (
    2  # of the update: SGD, momentum, RMSprop. Adam's is made one kernel with it in some nets, not in others
)
_LARGEST_NARROW = 40_000  # elements (A100, bfloat16: 36,864 were reversed as they were converted, 41,472 were not)


@rule("reversed-kernels", source="MultiOutputFusion of XLA:GPU; programs compiled for A100")
def waiting(workload: Workload, kernels: Sequence[Kernel]) -> dict[int, int]:
    """The place of each update that a convolution waits for, by the place of that convolution."""
    convolutions = [place for place, kernel in enumerate(kernels) if kernel.op.kind is Kind.CONV]
    transposed = [
        one for one in convolutions if kernels[one].op.phase is Phase.FORWARD and _enlarges(workload, kernels[one])
    ]
    if not transposed:
        return {}
    writer = {write: place for place, kernel in enumerate(kernels) for write in kernel.writes}
    updates = dict(_shared_updates(workload, kernels, writer))
    weights = {_weight(workload, kernels, writer, place) for place in transposed}
    found: dict[int, int] = {}
    for place in convolutions:
        weight = _weight(workload, kernels, writer, place)
        if kernels[place].op.phase is Phase.BACKWARD and weight in weights and weight in updates:
            found[place] = updates[weight]
    return found


def _weight(workload: Workload, kernels: Sequence[Kernel], writer: dict[int, int], place: int) -> int | None:
    """The variable of whose copy, reversed or not, a convolution makes images; None for a gradient of weights."""
    states = {v.tensor for v in workload.variables}
    images = not workload.tensors[kernels[place].writes[0]].elements.constant
    read = next((one for one in kernels[place].reads if images and workload.tensors[one].elements.constant), None)
    while read in writer:
        size = workload.tensors[read].elements
        read = next((one for one in kernels[writer[read]].reads if workload.tensors[one].elements == size), None)
    return read if read in states else None


def _shared_updates(workload: Workload, kernels: Sequence[Kernel], writer: dict[int, int]) -> Iterator[tuple[int, int]]:
    """(variable, place of its update) where that may be made one kernel with a reversed copy of the variable."""
    for variable in workload.variables:
        update = writer.get(variable.result)
        if update is not None and _shares(workload, kernels[update], variable.tensor):
            made_by = (kernels[writer[read]] for read in kernels[update].reads if read in writer)
            if not any(in_update(kernel) for kernel in made_by):  # else a part of the update is a kernel before it
                yield variable.tensor, update


def _shares(workload: Workload, update: Kernel, weight: int) -> bool:
    """Whether an update is made one kernel with the reversed copy of these weights."""
    if not in_update(update) or update.op.kind is Kind.BRANCH or len(update.writes) > _MOST_RESULTS:
        return False
    return not is_narrow(workload) or workload.tensors[weight].elements.fixed <= _LARGEST_NARROW


def _enlarges(workload: Workload, kernel: Kernel) -> bool:
    """Whether a convolution makes larger images, with channels last."""
    before, after = (workload.tensors[end].shape[1:-1] for end in (kernel.op.reads[0], kernel.op.writes[0]))
    return len(before) == len(after) > 0 and all(
        made.fixed > source.fixed for source, made in zip(before, after, strict=True)
    )
