"""Assigns each temporary of a workload to a component of the memory breakdown: gradients, activations, workspace ..."""

from __future__ import annotations

from enum import StrEnum

from cost_models.workload.lstm import workspace_of
from cost_models.workload.workload import Kind, Op, Phase, Role, Workload
from cost_models.xla.dataflow import chain_of_names


class Purpose(StrEnum):
    """The purpose of a temporary."""

    ACTIVATIONS = "activations"
    GRADIENTS = "gradients"
    WEIGHT_COPIES = "weight_copies"
    WORKSPACE = "workspace"


def purposes_of(workload: Workload) -> dict[int, Purpose]:
    """Return the purposes of gradients, weight copies and workspaces by tensor; every other tensor is an activation.

    Gradients go from the backward pass to the update in the shape of a variable. Weight copies are made of variables
    alone.
    """
    shapes = {workload.tensors[v.tensor].shape for v in workload.variables if v.role is Role.TRAINABLE}
    from_variables = {v.tensor for v in workload.variables}
    found: dict[int, Purpose] = {}
    backward: set[int] = set()
    renamed: dict[int, int] = {}
    for op in workload.ops:
        if op.kind is Kind.LSTM:
            found[workspace_of(op)] = Purpose.WORKSPACE
        if op.phase is Phase.UPDATE:
            for read in backward.intersection(op.reads):
                found.update(dict.fromkeys(chain_of_names(read, renamed), Purpose.GRADIENTS))
        else:
            _note_copies(workload, op, from_variables, found)
        if op.phase is Phase.BACKWARD:
            backward.update(write for write in op.writes if workload.tensors[write].shape in shapes)
            if op.kind is Kind.VIEW or op.primitive == "transpose":  # a product gives a kernel's gradient transposed
                renamed[op.writes[0]] = op.reads[0]
    return found


def _note_copies(workload: Workload, op: Op, from_variables: set[int], found: dict[int, Purpose]) -> None:
    if op.reads and from_variables.issuperset(op.reads) and op.kind is not Kind.REDUCE:
        from_variables.update(op.writes)
        # Tensors that grow with the batch are no copies of a weight: random numbers, a bias broadcast over samples.
        copies = [write for write in op.writes if all(dim.constant for dim in workload.tensors[write].shape)]
        found.update(dict.fromkeys(copies, Purpose.WEIGHT_COPIES))
