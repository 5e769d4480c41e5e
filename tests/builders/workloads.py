"""Workloads and clusters made by hand, so that every figure follows from a formula on paper.

B stands for the batch dimension.
"""

from cost_models.hardware.cluster import Chip, Cluster, Link
from cost_models.workload.affine import Affine
from cost_models.workload.lstm import FLOAT_BYTES, Lstm
from cost_models.workload.workload import (
    ATTENTION_FORWARD,
    CAUSAL,
    LSTM_BACKWARD,
    LSTM_FORWARD,
    Kind,
    Op,
    Phase,
    Role,
    Tensor,
    UnknownOp,
    Variable,
    Workload,
)

B = "B"
GIB = 2**30


def dim(size):
    """A dimension: B, 3 * B as (B, 3), or a number."""
    if size == B:
        return Affine(0, 1)
    return Affine(0, size[1]) if isinstance(size, tuple) else Affine(size)


class Step:
    """A micro-step written operation by operation; methods return tensor numbers."""

    def __init__(self):
        self.tensors, self.ops, self.variables, self.inputs = [], [], [], []
        self.phase, self.layer = Phase.FORWARD, ""

    def tensor(self, *shape, dtype="float32"):
        self.tensors.append(Tensor(dtype, tuple(dim(size) for size in shape)))
        return len(self.tensors) - 1

    def input(self, *shape, dtype="float32"):
        self.inputs.append(self.tensor(*shape, dtype=dtype))
        return self.inputs[-1]

    def weight(self, path, *shape, role=Role.TRAINABLE, dtype="float32"):
        tensor = self.tensor(*shape, dtype=dtype)
        self.variables.append(Variable(path, role, tensor, tensor))
        return tensor

    def new_value(self, tensor, result):
        self.variables = [
            Variable(v.path, v.role, v.tensor, result) if v.tensor == tensor else v for v in self.variables
        ]

    def op(self, kind, reads, shape, *, dtype="float32", primitive=None, **more):
        write = self.tensor(*shape, dtype=dtype)
        name = primitive or kind.value
        self.ops.append(Op(kind, name, tuple(reads), (write,), phase=self.phase, layer=self.layer, **more))
        return write

    def dot(self, left, right, shape, m, k, n):
        m, k, n = dim(m), dim(k), dim(n)
        growing = next((size for size in (m, k, n) if not size.constant), None)
        scale = 2.0
        for size in (m, k, n):
            scale *= size.fixed if size.constant else 1
        flops = growing * scale if growing else Affine(scale)
        return self.op(Kind.DOT, (left, right), shape, flops=flops, gemm=(Affine(1), m, n, k), primitive="dot_general")

    def workload(self, *outputs, batch=8, **more):
        fields = {"precision": "float32", "remat": "none", "backend": "jax"} | more
        return Workload(
            local_batch=batch,
            tensors=tuple(self.tensors),
            ops=tuple(self.ops),
            variables=tuple(self.variables),
            inputs=tuple(self.inputs),
            outputs=tuple(outputs),
            **fields,
        )


def dense(k, n, batch=8, slots=0):
    """y = x w; loss = sum(relu(y)); w -= dw; `slots` further state variables of w's shape are updated from dw."""
    step = Step()
    w = step.weight("dense/kernel", k, n)
    states = [step.weight(f"optimizer/slot_{i}", k, n, role=Role.SLOT) for i in range(slots)]
    x = step.input(B, k)
    step.layer = "dense"
    y = step.dot(x, w, (B, n), B, k, n)
    a = step.op(Kind.ELEMENTWISE, (y,), (B, n), flops=Affine(0, n), primitive="max")
    loss = step.op(Kind.REDUCE, (a,), (), flops=Affine(0, n))
    step.phase = Phase.BACKWARD
    dy = step.op(Kind.ELEMENTWISE, (y,), (B, n), flops=Affine(0, n), primitive="select_n")
    dw = step.dot(x, dy, (k, n), k, B, n)
    step.phase = Phase.UPDATE
    for state in [w, *states]:
        step.new_value(state, step.op(Kind.ELEMENTWISE, (state, dw), (k, n), flops=Affine(k * n), primitive="sub"))
    return step.workload(loss, batch=batch)


def chip(kind="gpu", **changes):
    """A chip of round figures: 100 TFLOP/s, 1 TB/s, 16 GiB, no launch and no dispatch cost."""
    fields = {
        "name": "made",
        "kind": kind,
        "peak_flops_per_second": {"float32": 1e14, "bfloat16": 2e14},
        "memory_bytes": 16 * GIB,
        "usable_memory_bytes": 16 * GIB,
        "memory_bytes_per_second": 1e12,
        "kernel_launch_seconds": 0.0,
        "dispatch_seconds": 0.0,
    }
    return Chip(**fields | changes)


def cluster(kind="gpu", devices=1, *, link=None, simulated=False, local=False, **changes):
    """Devices of such chips behind a switch of 100 GB/s."""
    inner = link or Link("switch", 1e11, 0.0)
    made = chip(kind, **changes)
    return Cluster(f"made-{kind}", made, devices, inner_link=inner, simulated=simulated, local=local)


HEADS, HEAD = 8, 64


def attention(length, *, causal=False, weights_dtype="bfloat16"):
    """softmax(q k) v of one layer in bfloat16, forward alone, with its scores in memory."""
    step = Step()
    step.layer = "attention"
    query, key, value = (step.input(B, HEADS, length, HEAD, dtype="bfloat16") for _ in range(3))
    pairs = (B, HEADS, length, length)
    flops = Affine(0, 2 * HEADS * length * length * HEAD)
    groups = Affine(0, HEADS)
    gemm = (groups, Affine(length), Affine(length), Affine(HEAD))
    scores = step.op(Kind.DOT, (query, key), pairs, dtype="bfloat16", flops=flops, gemm=gemm)
    if causal:
        ends = [step.op(Kind.BROADCAST, (), (length, length), dtype="int32", primitive="iota") for _ in range(2)]
        mask = step.op(Kind.ELEMENTWISE, ends, (length, length), dtype="bool", primitive="ge")
        scores = step.op(Kind.ELEMENTWISE, (mask, scores), pairs, dtype="bfloat16", primitive="select_n")
    largest = step.op(Kind.REDUCE, (scores,), (B, HEADS, length), dtype="bfloat16")
    weights = step.op(Kind.ELEMENTWISE, (scores, largest), pairs, dtype=weights_dtype, primitive="exp")
    gemm = (groups, Affine(length), Affine(HEAD), Affine(length))
    shape = (B, HEADS, length, HEAD)
    return step.workload(step.op(Kind.DOT, (weights, value), shape, dtype="bfloat16", flops=flops, gemm=gemm))


def fused_attention(length, *, causal=False):
    """The forward pass of the same layer as one kernel, as it is traced for a GPU from Ampere on."""
    step = Step()
    query, key, value = (step.input(B, length, HEADS, HEAD, dtype="bfloat16") for _ in range(3))
    product = 2 * HEADS * length * length * HEAD
    made = [step.tensor(B, length, HEADS, HEAD, dtype="bfloat16"), step.tensor(B, HEADS, length)]
    step.ops.append(
        Op(
            Kind.ATTENTION,
            ATTENTION_FORWARD + CAUSAL * causal,
            (query, key, value),
            tuple(made),
            flops=Affine(0, 2 * product // (2 if causal else 1)),
            gemm=(Affine(0, HEADS), Affine(length), Affine(length), Affine(HEAD)),
        )
    )
    return step.workload(*made)


def recurrent(length, inputs, hidden, batch=16):
    """An LSTM in one call, its outputs squared, and the call of its backward pass."""
    step, one = Step(), Lstm(1, length, inputs, hidden)
    fixed = FLOAT_BYTES * one.weights
    weights = step.weight("lstm/weights", one.weights)
    x = step.input(B, length, inputs)
    state = step.op(Kind.BROADCAST, (), (1, B, hidden))
    lengths = step.op(Kind.BROADCAST, (), (B,), dtype="int32")
    step.layer = "lstm"

    def call(primitive, reads, shapes, flops):
        made = [step.tensor(*shape) for shape in shapes]
        step.tensors.append(Tensor("float32", (Affine(fixed, one.workspace_bytes - fixed),)))
        writes = (*made, len(step.tensors) - 1)
        gemm = (Affine(1), Affine(0, 1), Affine(4 * hidden), Affine(hidden))
        more = {"flops": Affine(0, flops), "gemm": gemm, "phase": step.phase, "layer": "lstm"}
        step.ops.append(Op(Kind.LSTM, primitive, tuple(reads), writes, **more))
        return made

    states = [(1, B, hidden)] * 2
    shapes = [(B, length, hidden), *states, ((B, one.reserve_bytes),)]
    y, _, _, reserve = call(LSTM_FORWARD, (x, state, state, weights, lengths), shapes, one.forward_flops)
    step.phase = Phase.BACKWARD
    dy = step.op(Kind.ELEMENTWISE, (y,), (B, length, hidden), primitive="mul")
    reads = (dy, state, state, x, state, state, weights, y, reserve, lengths)
    shapes = [(B, length, inputs), *states, (one.weights,)]
    dw = call(LSTM_BACKWARD, reads, shapes, one.backward_flops)[3]
    step.phase = Phase.UPDATE
    step.new_value(weights, step.op(Kind.ELEMENTWISE, (weights, dw), (one.weights,), primitive="sub"))
    return step.workload(batch=batch)


def looping(width=96):
    """A workload with a loop of three iterations."""
    step = Step()
    x = step.input(B, width)
    inner = step.tensor(B, width)
    body = (Op(Kind.ELEMENTWISE, "tanh", (x,), (inner,), flops=Affine(0, width)),)
    out = step.op(Kind.LOOP, (x,), (B, width), primitive="scan", repeat=3, body=body, results=(inner,))
    return step.workload(out, unknown_ops=(UnknownOp("while", 1, "trip count"),), notes=("a note",))


def two_layers(width=256):
    """Two dense layers: both gradients, then both updates, as frameworks write them; and the names of the results."""
    step = Step()
    first, second = step.weight("first", width, width), step.weight("second", width, width)
    x = step.input(B, width)
    h = step.dot(x, first, (B, width), B, width, width)
    y = step.dot(h, second, (B, width), B, width, width)
    step.phase = Phase.BACKWARD
    d_second = step.dot(h, y, (width, width), width, B, width)
    d_h = step.dot(y, second, (B, width), B, width, width)
    d_first = step.dot(x, d_h, (width, width), width, B, width)
    step.phase = Phase.UPDATE
    names = {h: "h", y: "y", d_second: "d_second", d_h: "d_h", d_first: "d_first"}
    for layer, weight, gradient in (("first", first, d_first), ("second", second, d_second)):
        new = step.op(Kind.ELEMENTWISE, (weight, gradient), (width, width), primitive="sub")
        step.new_value(weight, new)
        names[new] = f"new_{layer}"
    return step.workload(), names


def named(order, names):
    """The names of what kernels write, in their order."""
    return [names[kernel.writes[0]] for kernel in order]
