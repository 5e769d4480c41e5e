"""What real scripts do around their training: processes, plots, a look at the model, tests before it, callbacks."""

import argparse
import json
import multiprocessing
import os
import sys
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np

HERE = Path(__file__).parent


def squares(seed):
    return (np.random.default_rng(seed).normal(size=(80, 6)).astype("float32") ** 2).tolist()


class Warmup(keras.callbacks.Callback):
    """Raises the learning rate over the first tenth of all micro-steps."""

    def on_train_begin(self, logs=None):
        self.shares = np.linspace(0.1, 1.0, self.params["epochs"] * self.params["steps"] // 10 + 1)
        self.seen = 0

    def on_train_batch_begin(self, batch, logs=None):
        if self.seen < len(self.shares):
            self.model.optimizer.learning_rate.assign(0.01 * self.shares[self.seen])
        self.seen += 1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--context", choices=multiprocessing.get_all_start_methods(), default="spawn")
    args = parser.parse_args()
    with multiprocessing.get_context(args.context).Pool(2) as pool:
        x = np.asarray(sum(pool.map(squares, range(4)), []), dtype="float32")
    y = x.mean(axis=1, keepdims=True)
    assert (HERE / "messy.py").exists() and sys.argv[0].endswith("messy.py")
    keras.utils.set_random_seed(27)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.SGD(0.01), loss="mse", metrics=["mae"])
    model.summary()
    before = model.evaluate(x, y, verbose=0)
    model.predict(x[:10], verbose=0)
    seen = []
    history = model.fit(
        x,
        y,
        batch_size=16,
        epochs=3,
        validation_split=0.1,
        verbose=2,
        callbacks=[
            Warmup(),
            keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(batch)),
            keras.callbacks.ReduceLROnPlateau(patience=1),
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
            keras.callbacks.EarlyStopping(patience=5),
        ],
    )
    after = model.evaluate(x, y, verbose=0)
    told = {"updates": int(model.optimizer.iterations), "micro_steps": len(seen), "epochs": len(history.epoch)}
    print(json.dumps(told | {"better": after[0] < before[0]}))


if __name__ == "__main__":
    main()
