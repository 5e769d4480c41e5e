"""Compile the training step of ResNet-50, with real weights, for four v4 chips with `jax.jit` and without autoplan."""

import json
import os

os.environ |= {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
os.environ |= {"TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0"}
os.environ |= {"TPU_ACCELERATOR_TYPE": "v4-8"}

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from model import build_model

BATCH = 512

model = build_model()
model.train_on_batch(np.zeros((2, 224, 224, 3), "float32"), np.zeros((2,), "int32"))
devices = topologies.get_topology_desc(platform="tpu", topology_name="v4:2x2x1", chip_config_name="megacore").devices
mesh = Mesh(np.array(devices), ("data",))
whole, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
state = model._get_jax_state(
    trainable_variables=True, non_trainable_variables=True, optimizer_variables=True, metrics_variables=True
)
state = jax.tree.map(lambda one: jax.ShapeDtypeStruct(one.shape, one.dtype, sharding=whole), state)
images = jax.ShapeDtypeStruct((BATCH, 224, 224, 3), "float32", sharding=split)
labels = jax.ShapeDtypeStruct((BATCH,), "int32", sharding=split)
stay = jax.tree.map(lambda one: one.sharding, state)
step = jax.jit(model.train_step, donate_argnums=0, out_shardings=(None, stay))
said = step.lower(state, (images, labels)).compile().memory_analysis()
print(
    json.dumps(
        {
            "argument": said.argument_size_in_bytes,
            "output": said.output_size_in_bytes,
            "alias": said.alias_size_in_bytes,
            "temporary": said.temp_size_in_bytes,
        }
    )
)
