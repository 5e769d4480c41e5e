import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(0)


def focal_by_positives(y_true, y_pred):
    """Focal loss of a detector, divided by the number of positive anchors in the batch."""
    losses = keras.losses.binary_focal_crossentropy(y_true, y_pred, from_logits=True)
    return ops.sum(losses) / ops.maximum(ops.sum(y_true), 1.0)


rng = np.random.default_rng(0)
x = rng.normal(size=(2048, 48)).astype("float32")
y = (rng.random((2048, 16)) < 0.03).astype("float32")
model = keras.Sequential([keras.Input((48,)), layers.Dense(128, "relu"), layers.Dense(16)])
model.compile(keras.optimizers.SGD(0.1), focal_by_positives)
model.fit(x, y, batch_size=32, epochs=2, verbose=2)
