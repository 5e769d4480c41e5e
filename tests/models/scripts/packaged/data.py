from pathlib import Path

import numpy as np


def load(samples):
    scale = float((Path(__file__).parent / "scale.txt").read_text())
    x = scale * np.random.default_rng(26).normal(size=(samples, 8)).astype("float32")
    return x, x.sum(axis=1, keepdims=True)
