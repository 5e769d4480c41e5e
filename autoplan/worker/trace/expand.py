"""Primitives that stand for several others -> the program that JAX makes of them, so that no rule has to know them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class WrittenOut:
    """A closed jaxpr, and the operands of the equation that it is run on."""

    jaxpr: Any
    operands: Sequence[Any]


def written_out(eqn: Any) -> WrittenOut | None:
    """What JAX lowers an equation to; None where its primitive stands for itself."""
    write = _WRITERS.get(eqn.primitive.name)
    return None if write is None else write(eqn)


def _stack(eqn: Any) -> WrittenOut:
    """Joined along a new axis (`jax._src.lax.lax._stack_lower`)."""
    from jax import lax

    axis = eqn.params["axis"]

    def joined(*parts: Any) -> Any:
        return lax.concatenate([lax.reshape(part, _with(part.shape, axis)) for part in parts], axis)

    return _traced(joined, eqn)


def _unstack(eqn: Any) -> WrittenOut:
    """One slice for each position of an axis (`jax._src.lax.lax._unstack_lower`)."""
    from jax import lax

    axis = eqn.params["axis"]

    def taken_apart(whole: Any) -> list[Any]:
        slices = [lax.slice_in_dim(whole, at, at + 1, axis=axis) for at in range(whole.shape[axis])]
        return [lax.squeeze(one, (axis,)) for one in slices]

    return _traced(taken_apart, eqn)


def _linear_solve(eqn: Any) -> WrittenOut:
    """The solver that was given; the products beside it are there for its gradients alone."""
    lengths = eqn.params["const_lengths"]
    before = lengths.matvec + lengths.vecmat
    own, right = eqn.invars[before : before + lengths.solve], eqn.invars[sum(lengths) :]
    return WrittenOut(eqn.params["jaxprs"].solve, [*own, *right])


_WRITERS: Mapping[str, Callable[[Any], WrittenOut]] = {
    "stack": _stack,
    "unstack": _unstack,
    "custom_linear_solve": _linear_solve,
}


def _with(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (*shape[:axis], 1, *shape[axis:])


def _traced(function: Callable[..., Any], eqn: Any) -> WrittenOut:
    import jax

    specs = [jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype) for atom in eqn.invars]
    return WrittenOut(jax.make_jaxpr(function)(*specs), eqn.invars)
