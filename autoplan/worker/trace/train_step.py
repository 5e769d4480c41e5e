"""Keras's training step on JAX -> Workload."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax
import keras

from autoplan.worker.trace.batch_lines import Combined, combine, exact
from autoplan.worker.trace.jaxpr import Recording, record
from cost_models.config import Precision
from cost_models.errors import WorkloadError
from cost_models.workload.workload import Role, UnknownOp, Variable, Workload

_LISTS = {"_accumulated_gradients": Role.ACCUMULATOR, "_model_variables_moving_average": Role.EMA}
"""Where a Keras optimizer keeps what is no slot."""


def trace_train_step(
    model: Any, batch: Any, *, local_batch: int, precision: str | None = None, remat: str | None = None
) -> Workload:
    """The Workload of one micro-step of a compiled Keras model.

    batch        (x, y[, sample_weight]) of arrays or `jax.ShapeDtypeStruct`s, batch dimension first; its size is
                 replaced
    local_batch  samples on one device
    precision, remat   the configuration's names for how the model was built; None asks the model's layers

    Nothing is computed and no variable needs a value. The step is traced at `local_batch` (at least 2) and twice that;
    where the two differ in structure, the workload holds for `local_batch` alone. WorkloadError for a model that is not
    compiled.
    """
    if getattr(model, "optimizer", None) is None:
        raise WorkloadError("the model has no optimizer, so it has no training step; call model.compile(...) first")
    build_for(model, sized(batch, local_batch))
    with _every_micro_step_updates(model.optimizer), _uncollected():
        local_batch, one, combined = _lines(model, batch, local_batch)
    state_size = sum(map(len, state_of(model)))
    return Workload(
        local_batch=local_batch,
        precision=precision or precision_of(model),
        remat=remat or remat_of(model),
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
        notes=(f"holds at a local batch of {local_batch} alone: {combined.reason}",) if combined.reason else (),
    )


def build_for(model: Any, batch: Any) -> None:
    """Create what `fit` would create before its first micro-step: layers, optimizer slots, metrics."""
    model._symbolic_build(data_batch=batch)
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)


def precision_of(model: Any) -> str:
    """The one dtype policy that the model's layers share, or "other"."""
    names = {layer.dtype_policy.name for layer in model._flatten_layers() if layer.variables}
    names = names or {model.dtype_policy.name}
    known = {precision.value for precision in Precision}
    return names.pop() if len(names) == 1 and names <= known else Precision.OTHER.value


def remat_of(model: Any) -> str:
    """The rematerialization mode that layers were built under."""
    modes = {getattr(getattr(layer, "_remat_mode", None), "mode", None) for layer in model._flatten_layers()}
    modes.discard(None)
    return str(modes.pop()) if len(modes) == 1 else "mixed" if modes else "none"


@contextmanager
def _every_micro_step_updates(optimizer: Any) -> Iterator[None]:
    """Trace the step without accumulation: what that adds is arithmetic, and one trace serves every accumulation."""
    every = _all_optimizers(optimizer)
    steps = [one.gradient_accumulation_steps for one in every]
    for one in every:
        one.gradient_accumulation_steps = None
    try:
        yield
    finally:
        for one, own in zip(every, steps, strict=True):
            one.gradient_accumulation_steps = own


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the garbage collector, which would walk the millions of objects of a large step again and again."""
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
    """The one that updates weights, and those among which a `MultiOptimizer` shares them out."""
    inner = _inner_optimizer(optimizer)
    return [inner, *getattr(inner, "_inner_optimizers", ())]


def _lines(model: Any, batch: Any, local_batch: int) -> tuple[int, Recording, Combined]:
    """(samples at the first of two recordings, that recording, the lines through both).

    Dimensions of one are squeezed and broadcast in ways of their own, so a batch of one says little about others: lines
    go through 2 and 4 where they can.
    """
    if local_batch == 1:
        try:
            found = _lines(model, batch, 2)
        except (ValueError, TypeError):  # a model with a fixed batch
            found = None
        if found is not None and not found[2].reason:
            return found
    one = _record(model, batch, local_batch)
    return local_batch, one, _combine(model, batch, local_batch, one)


def _combine(model: Any, batch: Any, local_batch: int, one: Recording) -> Combined:
    try:
        two = _record(model, batch, 2 * local_batch)
    except (ValueError, TypeError) as error:  # a model with a fixed batch in its input shape or its code
        return exact(one, f"the step cannot be traced at twice that ({str(error).splitlines()[0]})")
    return combine(local_batch, one, two)


def _record(model: Any, batch: Any, size: int) -> Recording:
    structs = tuple([jax.ShapeDtypeStruct(v.shape, stored_dtype(v)) for v in group] for group in state_of(model))
    return record(jax.make_jaxpr(model.train_step)(structs, sized(batch, size)))


def sized(batch: Any, size: int) -> Any:
    """The batch as shapes with another number of samples, packed as `fit` packs it: nothing for what is not there."""
    nest = tuple(batch) if isinstance(batch, list | tuple) else batch
    while isinstance(nest, tuple) and len(nest) > 1 and nest[-1] is None:
        nest = nest[:-1]
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((size, *leaf.shape[1:]), leaf.dtype), nest)


def stored_dtype(variable: Any) -> str:
    """The stored dtype: `variable.dtype` answers with the compute dtype inside an autocast scope."""
    return str(keras.backend.standardize_dtype(variable._dtype))


def state_of(model: Any) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
    """Variables in the order of the training step's state."""
    return (
        list(model.trainable_variables),
        list(model.non_trainable_variables),
        list(model.optimizer.variables),
        list(model.metrics_variables),
    )


def _variables(model: Any, recording: Recording) -> tuple[Variable, ...]:
    """The state by role, without accumulators: those depend on the configuration that is asked about."""
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
