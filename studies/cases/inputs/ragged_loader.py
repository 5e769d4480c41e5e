import os

os.environ["KERAS_BACKEND"] = "torch"
import keras
import numpy as np
import torch
from keras import layers

keras.utils.set_random_seed(0)


class Sentences(torch.utils.data.Dataset):
    def __len__(self):
        return 2048

    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        return torch.from_numpy(rng.integers(1, 300, int(rng.integers(5, 60)))), float(index % 2)


def padded(samples):
    tokens = torch.nn.utils.rnn.pad_sequence([one for one, _ in samples], batch_first=True)
    return tokens, torch.tensor([label for _, label in samples])[:, None]


loader = torch.utils.data.DataLoader(Sentences(), batch_size=32, shuffle=False, collate_fn=padded)
model = keras.Sequential(
    [
        keras.Input((None,), dtype="int32"),
        layers.Embedding(300, 32),
        layers.GlobalAveragePooling1D(),
        layers.Dense(1),
    ]
)
model.compile("adam", keras.losses.BinaryCrossentropy(from_logits=True))
model.fit(loader, epochs=1, verbose=2)
