"""Affine sizes fitted to two recordings, and recordings that have none."""

import jax
import jax.numpy as jnp

from autoplan.worker.trace.affine_sizes import fit_affine
from autoplan.worker.trace.jaxpr import record
from cost_models.workload.affine import Affine

W = jax.ShapeDtypeStruct((8, 3), "float32")


def combined(fn, batch=4):
    def at(size):
        return record(jax.make_jaxpr(fn)(jax.ShapeDtypeStruct((size, 8), "float32"), W))

    return fit_affine(batch, at(batch), at(2 * batch))


def test_sizes_and_flops_are_affine_in_the_batch():
    found = combined(lambda x, w: x @ w)
    assert found.reason == ""
    (op,) = found.ops
    assert op.flops == Affine(0, 2 * 8 * 3)
    assert op.gemm == (Affine(1), Affine(0, 1), Affine(3), Affine(8))
    assert found.tensors[op.writes[0]].shape == (Affine(0, 1), Affine(3))
    assert found.tensors[op.reads[1]].shape == (Affine(8), Affine(3))


def test_sizes_that_do_not_depend_on_the_batch_are_constant():
    found = combined(lambda x, w: jnp.concatenate([x, w.T]))
    assert found.tensors[found.ops[-1].writes[0]].shape == (Affine(3, 1), Affine(8))


def test_sizes_quadratic_in_the_batch_are_not_affine():
    found = combined(lambda x, w: x @ x.T)
    assert "square of the batch" in found.reason
    assert found.tensors[found.ops[-1].writes[0]].shape == (Affine(4), Affine(4))


def test_a_number_of_operations_that_depends_on_the_batch_is_not_affine():
    found = combined(lambda x, w: sum(row @ w for row in x))
    assert "number of operations depends on the batch" in found.reason


def test_operations_that_depend_on_the_batch_are_not_affine():
    found = combined(lambda x, w: jnp.sin(x) if len(x) > 4 else jnp.cos(x))
    assert "operations depend on the batch" in found.reason


def test_a_rank_that_depends_on_the_batch_is_not_affine():
    found = combined(lambda x, w: x.reshape(4, -1, 8) if len(x) > 4 else x + 0)
    assert found.reason
