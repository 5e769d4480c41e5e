"""Data as users of PyTorch write them, each row telling where it comes from."""

import random

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, Sampler, TensorDataset, get_worker_info


def rows(count):
    """`count` rows: x is the row's number, y its double."""
    x = torch.arange(count, dtype=torch.float32)[:, None]
    return TensorDataset(x, 2 * x)


class Stream(IterableDataset):
    """The same rows without an index, shared among the loader's workers."""

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        for row in range(first, self.count, step):
            value = torch.tensor([float(row)])
            yield value, 2 * value


class CountedStream(Stream):
    def __len__(self):
        return self.count


class Drawing(Dataset):
    """Augments: each row is shifted by numbers from three generators."""

    def __len__(self):
        return 40

    def __getitem__(self, row):
        return torch.rand(1) + float(np.random.rand()) + random.random(), torch.tensor([float(row)])


class Pairs(Sampler):
    """A batch sampler of its own: rows that belong together."""

    def __iter__(self):
        return iter([[0, 1], [2, 3, 4], [5]])

    def __len__(self):
        return 3
