"""Stores tensors that only matrix products read in the dtype in which XLA:TPU multiplies them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cost_models.workload.workload import Kind, Op, Workload
from cost_models.xla.profile import Profile
from cost_models.xla.rules import rule

_PARTS = frozenset({"transpose", "dynamic_slice"})  # rearrange what they read or take a part of it


@rule("product-operand-rounding", source="XLA:TPU default precision: matrix units round float32 operands to bfloat16")
def product_operand_rounding(workload: Workload, profile: Profile, local_batch: int) -> Workload:
    """Return the workload with tensors that only products read in the dtype to which products round them.

    Sums do not count as readers, because they run in the kernel that makes the tensor.
    """
    dtype = profile.product_dtype
    if dtype is None:
        return workload
    lasting = {end for v in workload.variables for end in (v.tensor, v.result)} | {*workload.inputs, *workload.outputs}
    to_products: dict[int, bool] = dict.fromkeys(lasting, False)
    _note_products(workload.ops, to_products)
    tensors = tuple(
        replace(tensor, dtype=dtype) if tensor.dtype == "float32" and to_products.get(number, False) else tensor
        for number, tensor in enumerate(workload.tensors)
    )
    return replace(workload, tensors=tensors)


def _note_products(ops: Sequence[Op], to_products: dict[int, bool]) -> None:
    """Note whether products alone read each tensor, also through a loop that reads a part of it in each iteration."""
    for op in reversed(ops):
        if op.kind is Kind.REDUCE:
            continue
        _note_products(op.body, to_products)
        inner = {read for one in op.body for read in one.reads}
        passes_on = op.kind is Kind.VIEW or op.primitive in _PARTS
        good = op.kind.is_product or (passes_on and all(to_products.get(write, False) for write in op.writes))
        for read in op.reads:
            if read not in inner:
                to_products[read] = to_products.get(read, True) and good
