"""Primitives that JAX lowers to others are expanded, and no operation is unknown."""

import jax
import jax.numpy as jnp
import pytest

from autoplan.worker.trace.jaxpr import record
from cost_models.workload.workload import Kind

S = jax.ShapeDtypeStruct
X = S((4, 8), "float32")


def recorded(fn, *specs):
    return record(jax.make_jaxpr(fn)(*specs))


@pytest.mark.parametrize(("axis", "shape"), [(0, (3, 4, 8)), (1, (4, 3, 8)), (-1, (4, 8, 3))])
def test_a_stack_is_expanded_to_reshapes_and_a_concatenation(axis, shape):
    recording = recorded(lambda x, y, z: jnp.stack([x, y, z], axis=axis), X, X, X)
    assert not recording.unknown
    *views, joined = recording.ops
    assert {op.kind for op in views} <= {Kind.VIEW, Kind.BROADCAST}
    assert (joined.kind, joined.primitive, len(joined.reads)) == (Kind.MOVE, "concatenate", 3)
    assert recording.outputs == list(joined.writes)
    assert recording.tensors[joined.writes[0]] == ("float32", shape)


@pytest.mark.parametrize(("axis", "shape"), [(0, (8,)), (1, (4,))])
def test_an_unstack_is_expanded_to_slices(axis, shape):
    recording = recorded(lambda x: tuple(jnp.unstack(x, axis=axis)), X)
    parts = X.shape[axis]
    assert not recording.unknown
    slices = [op for op in recording.ops if op.primitive == "slice"]
    assert [op.kind for op in slices] == [Kind.MOVE] * parts
    assert all(op.reads == tuple(recording.inputs) for op in slices)
    assert [recording.tensors[out] for out in recording.outputs] == [("float32", shape)] * parts


def test_unused_parts_of_an_unstack_are_not_sliced():
    recording = recorded(lambda x: jnp.unstack(x)[2], X)
    assert [op.primitive for op in recording.ops if op.primitive == "slice"] == ["slice"]


def test_the_gradient_of_a_stack_is_known():
    recording = recorded(jax.grad(lambda x, y: jnp.sum(jnp.stack([jnp.tanh(x), y]) ** 2), argnums=(0, 1)), X, X)
    assert not recording.unknown


def test_a_linear_solve_is_expanded_to_its_solver_forward_and_backward():
    n = 8
    matrix, right = S((n, n), "float32"), S((n, 2), "float32")
    forward = recorded(jnp.linalg.solve, matrix, right)
    assert not forward.unknown
    kinds = [op.primitive for op in forward.ops]
    assert (kinds.count("lu"), kinds.count("triangular_solve")) == (1, 2)
    assert "dot_general" not in kinds  # the product that the gradient is made with is not run
    both = recorded(jax.grad(lambda a, b: jnp.sum(jnp.linalg.solve(a, b)), argnums=(0, 1)), matrix, right)
    assert not both.unknown
    kinds = [op.primitive for op in both.ops]
    assert (kinds.count("lu"), kinds.count("triangular_solve")) == (1, 4)
