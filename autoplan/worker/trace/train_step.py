"""Traces the training step of a compiled Keras model on JAX to a Workload."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax
import keras

from autoplan.runtime.model_facts import attention_of
from autoplan.worker.trace.affine_sizes import SizedTrace, constant_sizes, fit_affine
from autoplan.worker.trace.jaxpr import record
from autoplan.worker.trace.recording import Recording
from cost_models.config import Precision
from cost_models.errors import WorkloadError
from cost_models.workload.workload import Role, UnknownOp, Variable, Workload

_LISTS = {"_accumulated_gradients": Role.ACCUMULATOR, "_model_variables_moving_average": Role.EMA}
"""Attributes of a Keras optimizer with lists of variables that are not slots."""


def trace_train_step(
    model: Any,
    batch: Any,
    *,
    local_batch: int,
    precision: str | None = None,
    remat: str | None = None,
    attention: str | None = None,
) -> Workload:
    """Return the Workload of one micro-step of a compiled Keras model.

    batch        (x, y[, sample_weight]) of arrays or `jax.ShapeDtypeStruct`s, batch dimension first; its size is
                 replaced
    local_batch  samples on one device
    precision, remat, attention   names of the configuration that the model was built under; None reads them from its
                 layers

    Nothing is computed, and no variable needs a value. The step is traced at `local_batch` (at least 2) and at twice
    that. If the two traces differ in structure, the workload is only valid for `local_batch`.

    WorkloadError if the model is not compiled.
    """
    if getattr(model, "optimizer", None) is None:
        raise WorkloadError("the model has no optimizer, so it has no training step; call model.compile(...) first")
    build_for(model, resized_specs(batch, local_batch))
    with _without_accumulation(model.optimizer), _without_garbage_collection():
        local_batch, one, combined = _trace_sizes(model, batch, local_batch)
    state_size = sum(map(len, state_of(model)))
    return Workload(
        local_batch=local_batch,
        precision=precision or precision_of(model),
        remat=remat or remat_of(model),
        attention=attention or attention_of(model).value,
        backend="jax",
        tensors=combined.tensors,
        ops=combined.ops,
        variables=_variables(model, one),
        inputs=tuple(one.inputs[state_size:]) + tuple(one.constants),
        outputs=tuple(one.outputs[: len(one.outputs) - state_size]),
        dispatches=one.dispatches,
        batch_exact=bool(combined.reason),
        optimizer=type(_inner_optimizer(model.optimizer)).__name__,
        unknown_ops=tuple(UnknownOp(name, count, reason) for (name, reason), count in sorted(one.unknown.items())),
        notes=(f"only valid for a local batch of {local_batch}: {combined.reason}",) if combined.reason else (),
    )


def build_for(model: Any, batch: Any) -> None:
    """Create the layers, optimizer slots and metrics that `fit` creates before its first micro-step."""
    model._symbolic_build(data_batch=batch)
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)


def precision_of(model: Any) -> str:
    """Return the dtype policy that all layers of the model share, or "other"."""
    names = {layer.dtype_policy.name for layer in model._flatten_layers() if layer.variables}
    names = names or {model.dtype_policy.name}
    known = {precision.value for precision in Precision}
    return names.pop() if len(names) == 1 and names <= known else Precision.OTHER.value


def remat_of(model: Any) -> str:
    """Return the rematerialization mode that the layers were built under, "mixed" or "none"."""
    modes = {getattr(getattr(layer, "_remat_mode", None), "mode", None) for layer in model._flatten_layers()}
    modes.discard(None)
    return str(modes.pop()) if len(modes) == 1 else "mixed" if modes else "none"


@contextmanager
def _without_accumulation(optimizer: Any) -> Iterator[None]:
    """Switch gradient accumulation off in this context: its costs are added later, so one trace serves all numbers."""
    optimizers = _all_optimizers(optimizer)
    steps = [one.gradient_accumulation_steps for one in optimizers]
    for one in optimizers:
        one.gradient_accumulation_steps = None
    try:
        yield
    finally:
        for one, own in zip(optimizers, steps, strict=True):
            one.gradient_accumulation_steps = own


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Disable the garbage collector in this context, because it would often scan the millions of objects of a step."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _inner_optimizer(optimizer: Any) -> Any:
    return getattr(optimizer, "inner_optimizer", optimizer)


def _all_optimizers(optimizer: Any) -> list[Any]:
    """Return the optimizer that updates weights, and the optimizers of a `MultiOptimizer`."""
    inner = _inner_optimizer(optimizer)
    return [inner, *getattr(inner, "_inner_optimizers", ())]


def _trace_sizes(model: Any, batch: Any, local_batch: int) -> tuple[int, Recording, SizedTrace]:
    """Return the batch of the first of two recordings, that recording, and the affine sizes of both.

    Dimensions of size one are squeezed and broadcast differently, so a batch of one says little about other batches. If
    possible, the affine sizes are fitted at the batches 2 and 4 instead.
    """
    if local_batch == 1:
        try:
            found = _trace_sizes(model, batch, 2)
        except (ValueError, TypeError):  # a model with a fixed batch
            found = None
        if found is not None and not found[2].reason:
            return found
    one = _record(model, batch, local_batch)
    return local_batch, one, _combine(model, batch, local_batch, one)


def _combine(model: Any, batch: Any, local_batch: int, one: Recording) -> SizedTrace:
    try:
        two = _record(model, batch, 2 * local_batch)
    except (ValueError, TypeError) as error:  # a model with a fixed batch in its input shape or its code
        return constant_sizes(one, f"the step cannot be traced at twice that batch ({str(error).splitlines()[0]})")
    return fit_affine(local_batch, one, two)


def _record(model: Any, batch: Any, size: int) -> Recording:
    structs = tuple([jax.ShapeDtypeStruct(v.shape, stored_dtype(v)) for v in group] for group in state_of(model))
    return record(jax.make_jaxpr(model.train_step)(structs, resized_specs(batch, size)))


def resized_specs(batch: Any, size: int) -> Any:
    """Return the batch as shapes with another number of samples, packed as `fit` packs it: without trailing None."""
    nest = tuple(batch) if isinstance(batch, list | tuple) else batch
    while isinstance(nest, tuple) and len(nest) > 1 and nest[-1] is None:
        nest = nest[:-1]
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((size, *leaf.shape[1:]), leaf.dtype), nest)


def stored_dtype(variable: Any) -> str:
    """Return the stored dtype; `variable.dtype` is the compute dtype inside an autocast scope."""
    return str(keras.backend.standardize_dtype(variable._dtype))


def state_of(model: Any) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
    """Return the variables in the order of the training step's state."""
    return (
        list(model.trainable_variables),
        list(model.non_trainable_variables),
        list(model.optimizer.variables),
        list(model.metrics_variables),
    )


def _variables(model: Any, recording: Recording) -> tuple[Variable, ...]:
    """Return the state by role, without gradient accumulators, which depend on the configuration."""
    trainable, others, optimizer, metrics = state_of(model)
    roles = [Role.TRAINABLE] * len(trainable)
    roles += [Role.SEED if "seed_generator_state" in v.path else Role.STATE for v in others]
    special = _optimizer_roles(model.optimizer)
    roles += [special.get(id(v), Role.SLOT) for v in optimizer]
    roles += [Role.METRIC] * len(metrics)
    flat = [*trainable, *others, *optimizer, *metrics]
    results = recording.outputs[len(recording.outputs) - len(flat) :]
    ends = zip(flat, roles, recording.inputs, results, strict=False)
    return tuple(Variable(v.path, role, *at) for v, role, *at in ends if role is not Role.ACCUMULATOR)


def _optimizer_roles(optimizer: Any) -> Mapping[int, Role]:
    roles: dict[int, Role] = {}
    for one in _all_optimizers(optimizer):
        for name, role in _LISTS.items():
            roles |= {id(v): role for v in getattr(one, name, None) or () if v is not None}
    scale = (getattr(optimizer, name, None) for name in ("step_counter", "dynamic_scale"))
    return roles | {id(v): Role.LOSS_SCALE for v in scale if v is not None}
