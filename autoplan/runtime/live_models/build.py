"""Builds an unbuilt model before its `fit`, which still reads the same batches and draws the same random numbers.

On JAX and PyTorch, `fit` builds a model that is not built: it reads one batch of the data, draws the initial weights,
and begins an epoch anew. Reading may draw numbers (an order of the rows, a shuffled list of batches) from the
generators that the weights are drawn from. A plan is applied to a model that is built, so autoplan builds it earlier,
draws what reading would have drawn first, and has `fit` read one batch as before.
"""

from __future__ import annotations

import functools
import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import keras
import numpy as np

from autoplan.runtime.data import data_facts, lookahead, torch_dataloader
from autoplan.runtime.data.data_facts import DataFacts
from autoplan.runtime.data.fit_arguments import FitArguments
from autoplan.runtime.data.random_state import RandomState


def ensure_built(model: Any, arguments: FitArguments, facts: DataFacts, *, entirely: bool = False) -> None:
    """Build a subclassed model as `fit` does, so that it has variables.

    entirely  also build the metrics and the loss of `compile`, so that `fit` reads no batch to build them. Keras 3.15
              does not return all the batches that it reads for that from a generator or from loading threads.

    The model stays unbuilt if the data have no batch to look at, or if only its own `train_step` can build it, as in a
    model without `call`.
    """
    if not entirely and all(layer.built for layer in model._flatten_layers()):
        return
    batch = data_facts.placeholder_batch(arguments, facts)
    if batch is None or type(model).call is keras.Model.call:
        return
    reads = not entirely and keras.backend.backend() != "tensorflow"  # which builds in the first micro-step
    before = RandomState.now()
    ordered = reads and _draw_as_reading_does(arguments, facts)
    try:
        model._symbolic_build(data_batch=batch)
    except (RuntimeError, ValueError):
        if keras.backend.backend() != "tensorflow":
            raise  # on TensorFlow `fit` builds while it traces the first micro-step; elsewhere it builds as above
    if reads:
        _let_fit_read(model, before if ordered else None)


def _draw_as_reading_does(arguments: FitArguments, facts: DataFacts) -> bool:
    """Draw the random numbers that `fit` draws to read its first batch; return whether it is known which these are.

    Data that cannot be read a second time (a tf.data pipeline, loading threads and processes) draw from generators of
    their own in general. A generator's first batches have been read already.
    """
    x: Any = arguments.get("x")
    shuffle = arguments.get("shuffle", True)
    unchanged: AbstractContextManager[None] = nullcontext()
    if facts.kind == "arrays":
        x = np.broadcast_to(np.zeros(1, "int8"), (data_facts.training_samples(arguments),))  # as many rows
    elif facts.kind == "PyDataset" and x.workers <= 1 and not x.use_multiprocessing:
        unchanged = lookahead.preserved_attributes(x)
    elif facts.kind == "DataLoader" and not x.num_workers:
        unchanged = torch_dataloader.preserved_generators(x)
    else:
        return False
    with unchanged, warnings.catch_warnings(action="ignore"):  # they come again in `fit`
        _read_one(_epoch_iterator(x=x, batch_size=facts.batch, shuffle=shuffle))
    return True


def _let_fit_read(model: Any, before: RandomState | None) -> None:
    """Have the next `fit` read one batch, as it would have done to build the model.

    before  the generators before the model was built, from which the batch is drawn unless they were seeded since;
            None: it is drawn from what they are at that time
    """
    after, build = RandomState.now(), functools.partial(type(model)._symbolic_build, model)

    def build_after_reading(iterator: Any = None, data_batch: Any = None) -> None:
        if iterator is None:
            build(data_batch=data_batch)
            return
        del vars(model)["_symbolic_build"]
        drawn = before is not None and after.is_present()
        if before is not None and drawn:
            before.restore()
        if not _would_read(model):
            _read_one(iterator)
        build(iterator=iterator)
        if drawn:
            after.restore()

    vars(model)["_symbolic_build"] = build_after_reading  # of this object, and not as an attribute that Keras tracks


def _would_read(model: Any) -> bool:
    """Return whether `fit` reads a batch because a part of the model is still unbuilt."""
    compiled = (model._compile_metrics, model._compile_loss)
    return not all(one.built for one in (*model._flatten_layers(), *compiled) if one is not None)


def _epoch_iterator(**arguments: Any) -> Any:
    """Return what `fit` reads its data with."""
    if keras.backend.backend() == "jax":
        from keras.src.backend.jax.trainer import JAXEpochIterator as EpochIterator
    else:
        from keras.src.backend.torch.trainer import TorchEpochIterator as EpochIterator
    return EpochIterator(**arguments)


def _read_one(epoch_iterator: Any) -> None:
    """Read the first batch of an epoch. On JAX, Keras yields an iterator of batches, on PyTorch a list of them."""
    for _, _, batches in epoch_iterator:
        if not isinstance(batches, list | tuple):
            next(batches)
        break
