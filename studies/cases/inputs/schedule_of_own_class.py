import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(0)


class WarmUp(keras.optimizers.schedules.LearningRateSchedule):
    """The schedule of the original Transformer. It has no get_config."""

    def __init__(self, width, warm_up):
        super().__init__()
        self.width, self.warm_up = width, warm_up

    def __call__(self, step):
        step = ops.cast(step, "float32") + 1.0
        return self.width**-0.5 * ops.minimum(step**-0.5, step * self.warm_up**-1.5)


optimizer = keras.optimizers.Adam(WarmUp(64, 100))
x = np.random.default_rng(0).normal(size=(1024, 64)).astype("float32")
model = keras.Sequential([keras.Input((64,)), layers.Dense(64, "relu"), layers.Dense(1)])
optimizer.build(model.trainable_variables)
model.compile(optimizer, "mse")
model.fit(x, x[:, :1], batch_size=64, epochs=3, verbose=0)
print("iterations:", int(optimizer.iterations))
