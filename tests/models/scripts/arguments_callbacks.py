"""A classifier with everything around it: arguments, class weights, a validation split, callbacks that write files."""

import argparse
import os
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np


class ScalarLog(keras.callbacks.Callback):
    """Writes one file of scalars an epoch, as board loggers do."""

    def __init__(self, folder):
        super().__init__()
        self.folder = Path(folder)

    def on_epoch_end(self, epoch, logs=None):
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / f"epoch-{epoch}.txt").write_text(repr(logs))


def parse_arguments():
    parser = argparse.ArgumentParser(description="Tell rare events from common ones.")
    parser.add_argument("--output", default="runs", help="folder for checkpoints and logs")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--learning-rate", type=float, required=True)
    return parser.parse_args()


def main():
    args = parse_arguments()
    keras.utils.set_random_seed(2)
    rng = np.random.default_rng(2)
    x = rng.normal(size=(2000, 24)).astype("float32")
    y = (x[:, 0] + x[:, 1] > 1.5).astype("int32")
    output = Path(args.output)
    output.mkdir(parents=True, exist_ok=True)

    model = keras.Sequential(
        [
            keras.Input((24,)),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(2, activation="softmax"),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(args.learning_rate),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
        weighted_metrics=["accuracy"],
    )
    model.fit(
        x,
        y,
        batch_size=50,
        epochs=args.epochs,
        validation_split=0.1,
        class_weight={0: 1.0, 1: 8.0},
        callbacks=[
            keras.callbacks.ModelCheckpoint(output / "best.keras", save_best_only=True),
            keras.callbacks.CSVLogger(output / "log.csv"),
            keras.callbacks.EarlyStopping(patience=3),
            ScalarLog(output / "scalars"),
        ],
        verbose=2,
    )


if __name__ == "__main__":
    main()
