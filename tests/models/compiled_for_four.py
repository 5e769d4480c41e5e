"""Prints, as JSON, compiled training steps for four simulated devices of this machine and what their traces say.

python -m tests.models.compiled_for_four        (with --xla_force_host_platform_device_count=4 in XLA_FLAGS)
"""

import json
import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from autoplan.worker.synthetic_data import synthetic_specs
from autoplan.worker.trace.train_step import trace_train_step
from tests.models import zoo

LOCAL = 8


def embedding():
    tokens = keras.Input((12,), dtype="int32")
    x = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(1000, 16)(tokens))
    model = keras.Model(tokens, keras.layers.Dense(3)(x))
    model.compile(optimizer="adam", loss="mse")
    return model


MODELS = {
    "mlp": zoo.mlp,
    "image_classifier": zoo.image_classifier,
    "recurrent": zoo.recurrent,
    "embedding": embedding,
}


def data_parallel(build):
    """The whole training step of Keras, compiled with the batch split over four devices and the state whole on each."""
    model = build()
    traced = trace_train_step(model, synthetic_specs(model, LOCAL), local_batch=LOCAL)
    mesh = Mesh(np.array(jax.devices()), ("data",))
    whole, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    groups = (
        *(model.trainable_variables, model.non_trainable_variables),
        *(model.optimizer.variables, model.metrics_variables),
    )
    state = tuple([jax.ShapeDtypeStruct(v.shape, v.dtype, sharding=whole) for v in group] for group in groups)
    specs = jax.tree.map(
        lambda spec: jax.ShapeDtypeStruct(spec.shape, spec.dtype, sharding=split), synthetic_specs(model, 4 * LOCAL)
    )
    out = (None, jax.tree.map(lambda spec: spec.sharding, state))
    text = jax.jit(model.train_step, donate_argnums=0, out_shardings=out).lower(state, specs).compile().as_text()
    return {"text": text, "model_flops": traced.model_flops.at(LOCAL)}


def every_kind():
    """One collective of each kind over a mesh of 2 x 2; the sum is in a loop of five."""
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("data", "model"))

    def exchange(x):  # (8, 16) on each device
        x = jax.lax.fori_loop(0, 5, lambda _, value: 0.5 * jax.lax.psum(value, "model"), x)
        x = jax.lax.all_gather(x, "data", tiled=True)
        x = jax.lax.psum_scatter(x, "data", tiled=True)
        x = jax.lax.all_to_all(x, "model", 0, 1, tiled=True)
        x = jax.lax.ppermute(x, "data", [(0, 1), (1, 0)])
        total, count = jax.lax.psum((x, jnp.sum(x)), ("data", "model"))
        return total.reshape(8, 16) + count

    both = P(("data", "model"))
    run = jax.shard_map(exchange, mesh=mesh, in_specs=both, out_specs=both, check_vma=False)
    x = jax.ShapeDtypeStruct((32, 16), "float32", sharding=NamedSharding(mesh, both))
    return {"text": jax.jit(run).lower(x).compile().as_text()}


if __name__ == "__main__":
    print(json.dumps({name: data_parallel(build) for name, build in MODELS.items()} | {"every_kind": every_kind()}))
