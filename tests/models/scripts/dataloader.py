"""Training from a torch DataLoader that shuffles, augments and reads in worker processes; another one validates."""

import os

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import torch
from torch.utils.data import DataLoader, Dataset


class Waves(Dataset):
    def __init__(self, rows, noise=0.0):
        self.x = torch.linspace(-3, 3, rows * 20).reshape(20, rows).T.contiguous()
        self.noise = noise

    def __len__(self):
        return len(self.x)

    def __getitem__(self, row):
        x = self.x[row]
        return {"wave": x + self.noise * torch.randn_like(x)}, torch.sin(x[:5]).mean(dim=0, keepdim=True)


keras.utils.set_random_seed(6)
train = DataLoader(Waves(900, noise=0.1), batch_size=32, shuffle=True, num_workers=1, persistent_workers=True)
validation = DataLoader(Waves(100), batch_size=50)

wave = keras.Input((20,), name="wave")
x = keras.layers.Dense(64, activation="tanh")(wave)
model = keras.Model({"wave": wave}, keras.layers.Dense(1)(x))
model.compile(optimizer=keras.optimizers.SGD(0.002, momentum=0.9), loss="mse")
model.fit(train, validation_data=validation, epochs=2, verbose=2)
