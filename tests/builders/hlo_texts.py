"""Compiled texts for tests: real ones from `tests/cost_models/hlo`, and small ones written by hand."""

from pathlib import Path

from cost_models.hlo.reader import workload_of

HERE = Path(__file__).resolve().parents[1] / "cost_models" / "hlo"
DEVICES = {
    "v5e_loop": 4,
    "v5e_sharded": 4,
    "v5e_convolution": 1,
    "v7x_sparse_core": 8,
    "a100_loop": 1,
    "a100_sharded": 8,
    "a100_convolution": 8,
}


def real(name):
    return (HERE / f"{name}.txt").read_text()


def program(entry, *others, header=""):
    """A compiled program: the lines of ENTRY, and whole computations that it calls."""
    body = "\n".join(f"  {line.strip()}" for line in entry.strip().splitlines())
    before = "".join(f"{other.strip()}\n\n" for other in others)
    return f"HloModule made, is_scheduled=true{header}\n\n{before}ENTRY %main (p: f32[]) -> f32[] {{\n{body}\n}}\n"


def read(text, axes=None):
    return workload_of(text, axes=axes or {}, local_batch=8, precision="float32", remat="none")


def only(text, **how):
    """The one operation of a program."""
    (op,) = read(text, **how).ops
    return op
