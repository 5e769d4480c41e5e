"""Traces the validation step of a compiled Keras model on JAX to a Workload: forward pass, loss and metrics."""

from __future__ import annotations

from typing import Any

import jax

from autoplan.worker.trace.affine_sizes import constant_sizes, fit_affine
from autoplan.worker.trace.jaxpr import record
from autoplan.worker.trace.recording import Recording
from autoplan.worker.trace.train_step import resized_specs, stored_dtype
from cost_models.workload.workload import Role, UnknownOp, Variable, Workload


def trace_validation_step(
    model: Any, batch: Any, *, local_batch: int, precision: str, remat: str, attention: str = "auto"
) -> Workload:
    """Return the Workload of one validation step of a compiled and built Keras model.

    The arguments are those of `train_step.trace_train_step`. The optimizer's state is no part of this step.
    """
    one, two = (_record(model, batch, size) for size in (local_batch, 2 * local_batch))
    sized = fit_affine(local_batch, one, two)
    if sized.reason:
        sized = constant_sizes(one, sized.reason)
    variables = _variables(model, one)
    return Workload(
        local_batch=local_batch,
        precision=precision,
        remat=remat,
        attention=attention,
        backend="jax",
        tensors=sized.tensors,
        ops=sized.ops,
        variables=variables,
        inputs=tuple(one.inputs[len(variables) :]) + tuple(one.constants),
        outputs=tuple(one.outputs[: len(one.outputs) - len(variables)]),
        dispatches=one.dispatches,
        batch_exact=bool(sized.reason),
        unknown_ops=tuple(UnknownOp(name, count, reason) for (name, reason), count in sorted(one.unknown.items())),
    )


def _record(model: Any, batch: Any, size: int) -> Recording:
    structs = tuple([jax.ShapeDtypeStruct(v.shape, stored_dtype(v)) for v in group] for group in _state(model))
    return record(jax.make_jaxpr(model.test_step)(structs, resized_specs(batch, size)))


def _state(model: Any) -> tuple[list[Any], list[Any], list[Any]]:
    return list(model.trainable_variables), list(model.non_trainable_variables), list(model.metrics_variables)


def _variables(model: Any, recording: Recording) -> tuple[Variable, ...]:
    trainable, others, metrics = _state(model)
    roles = [Role.TRAINABLE] * len(trainable)
    roles += [Role.SEED if "seed_generator_state" in v.path else Role.STATE for v in others]
    roles += [Role.METRIC] * len(metrics)
    flat = [*trainable, *others, *metrics]
    results = recording.outputs[len(recording.outputs) - len(flat) :]
    ends = zip(flat, roles, recording.inputs, results, strict=False)
    return tuple(Variable(v.path, role, *at) for v, role, *at in ends)
