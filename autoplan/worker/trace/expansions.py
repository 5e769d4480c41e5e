"""Expands primitives that JAX lowers to several others, so that no cost rule has to handle them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Expansion:
    """A closed jaxpr, and the operands of the equation that are its arguments."""

    jaxpr: Any
    operands: Sequence[Any]


def expansion_of(eqn: Any) -> Expansion | None:
    """Return the program that JAX lowers an equation to; None if the primitive is not expanded."""
    expand = _EXPANSIONS.get(eqn.primitive.name)
    return None if expand is None else expand(eqn)


def _stack(eqn: Any) -> Expansion:
    """Expand a stack to reshapes and a concatenation (`jax._src.lax.lax._stack_lower`)."""
    from jax import lax

    axis = eqn.params["axis"]

    def joined(*parts: Any) -> Any:
        return lax.concatenate([lax.reshape(part, _with_new_axis(part.shape, axis)) for part in parts], axis)

    return _traced(joined, eqn)


def _unstack(eqn: Any) -> Expansion:
    """Expand an unstack to one slice per index of the axis (`jax._src.lax.lax._unstack_lower`)."""
    from jax import lax

    axis = eqn.params["axis"]

    def taken_apart(whole: Any) -> list[Any]:
        slices = [lax.slice_in_dim(whole, at, at + 1, axis=axis) for at in range(whole.shape[axis])]
        return [lax.squeeze(one, (axis,)) for one in slices]

    return _traced(taken_apart, eqn)


def _linear_solve(eqn: Any) -> Expansion:
    """Expand a linear solve to its solver; the matrix products in its parameters only serve its gradients."""
    lengths = eqn.params["const_lengths"]
    before = lengths.matvec + lengths.vecmat
    own, right = eqn.invars[before : before + lengths.solve], eqn.invars[sum(lengths) :]
    return Expansion(eqn.params["jaxprs"].solve, [*own, *right])


_EXPANSIONS: Mapping[str, Callable[[Any], Expansion]] = {
    "stack": _stack,
    "unstack": _unstack,
    "custom_linear_solve": _linear_solve,
}


def _with_new_axis(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (*shape[:axis], 1, *shape[axis:])


def _traced(function: Callable[..., Any], eqn: Any) -> Expansion:
    import jax

    specs = [jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype) for atom in eqn.invars]
    return Expansion(jax.make_jaxpr(function)(*specs), eqn.invars)
