import json
from pathlib import Path

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(0)
status = Path("status.json")
seen = []


def report(batch, logs):
    seen.append(float(logs["loss"]))
    status.write_text(json.dumps({"batches": len(seen), "last": seen[-1]}))


x = np.random.default_rng(0).normal(size=(1024, 16)).astype("float32")
model = keras.Sequential([keras.Input((16,)), layers.Dense(32, "relu"), layers.Dense(1)])
model.compile("adam", "mse")
every = keras.callbacks.LambdaCallback(on_train_batch_end=report)
model.fit(x, x[:, :1], batch_size=64, epochs=2, verbose=0, callbacks=[every])
print("batches:", json.loads(status.read_text())["batches"])
