"""Recorded jaxprs: inlined calls, loops and branches with bodies, and dropped operations."""

import jax
import jax.numpy as jnp
import keras
import pytest
from keras import layers

from autoplan.worker.synthetic_data import synthetic_specs
from autoplan.worker.trace.jaxpr import record
from autoplan.worker.trace.train_step import trace_train_step
from cost_models.workload.workload import Kind, Phase, walk

S = jax.ShapeDtypeStruct
X = S((4, 8), "float32")
W = S((8, 8), "float32")


def recorded(fn, *specs):
    return record(jax.make_jaxpr(fn)(*specs))


def primitives(recording):
    return [op.primitive for op in recording.ops]


def test_all_kinds_of_calls_are_inlined():
    @jax.custom_vjp
    def custom(x):
        return jnp.tanh(x)

    custom.defvjp(lambda x: (jnp.tanh(x), x), lambda x, g: (g,))
    recording = recorded(lambda x: jax.jit(jnp.exp)(custom(x)), X)
    assert primitives(recording) == ["tanh", "exp"]
    first, second = recording.ops
    assert second.reads == first.writes
    assert recording.outputs == list(second.writes)


@jax.custom_batching.custom_vmap
def batched_by_hand(x):
    return jnp.tanh(x)


batched_by_hand.def_vmap(lambda size, batched, x: (batched_by_hand(x), batched[0]))


@pytest.mark.parametrize(
    "fn", [batched_by_hand, jax.lax.composite(jnp.tanh, "my.tanh")], ids=["custom_vmap", "composite"]
)
def test_functions_with_custom_batching_rules_are_inlined(fn):
    recording = recorded(lambda x: fn(x) + 1.0, X)
    assert primitives(recording) == ["tanh", "add"]
    assert not recording.unknown


def test_calls_out_of_the_program_are_counted_by_their_bytes_and_named():
    def host(x):
        return jax.pure_callback(lambda a: a, X, x)

    recording = recorded(host, X)
    (call,) = recording.ops
    assert call.kind is Kind.UNKNOWN
    assert (call.reads, call.writes) == (tuple(recording.inputs), tuple(recording.outputs))
    assert recording.unknown["pure_callback", "no rule: counted by the bytes that it reads and writes"] == 1


def test_unused_operations_are_dropped():
    def wasteful(x):
        _ = jnp.sin(x) @ jnp.ones((8, 8))
        return jnp.exp(x)

    assert primitives(recorded(wasteful, X)) == ["exp"]


def test_a_scan_is_one_iteration_with_a_repeat_count():
    def run(x, w):
        return jax.lax.scan(lambda carry, _: (jnp.tanh(carry @ w), carry.sum()), x, None, length=7)

    recording = recorded(run, X, W)
    (loop,) = (op for op in recording.ops if op.kind is Kind.LOOP)
    assert loop.repeat == 7
    assert [op.primitive for op in loop.body] == ["dot_general", "tanh", "reduce_sum", "dynamic_update_slice"]
    assert loop.results == loop.body[1].writes  # the carry that comes back


def test_stacked_inputs_of_a_scan_are_sliced():
    def run(xs):
        return jax.lax.scan(lambda carry, x: (carry + x, None), jnp.zeros(8), xs)[0]

    recording = recorded(run, S((5, 8), "float32"))
    (loop,) = (op for op in recording.ops if op.kind is Kind.LOOP)
    first = loop.body[0]
    assert first.primitive == "dynamic_slice"
    assert recording.tensors[first.writes[0]] == ("float32", (8,))


def test_a_loop_of_unknown_length_counts_once_and_is_reported():
    def run(x, n):
        return jax.lax.fori_loop(0, n, lambda i, c: c * 2.0, x)

    recording = recorded(run, X, S((), "int32"))
    (loop,) = (op for op in recording.ops if op.kind is Kind.LOOP)
    assert loop.repeat == 1
    assert recording.unknown["while", "trip count depends on data: its body is counted once"] == 1


def test_a_conditional_is_its_most_expensive_branch():
    def run(x, w, flag):
        return jax.lax.cond(flag, lambda: jnp.tanh(x), lambda: x @ w @ w)

    recording = recorded(run, X, W, S((), "bool"))
    (branch,) = (op for op in recording.ops if op.kind is Kind.BRANCH)
    assert [op.primitive for op in branch.body] == ["dot_general", "dot_general"]


def test_an_unknown_operation_is_kept_and_counted():
    def run(x):
        return jax.pure_callback(lambda v: v, X, x)

    recording = recorded(run, X)
    (op,) = (op for op in recording.ops if op.kind is Kind.UNKNOWN)
    assert op.primitive == "pure_callback"
    assert recording.tensors[op.writes[0]] == ("float32", (4, 8))
    assert sum(recording.unknown.values()) == 1


def test_typed_random_keys_have_a_size():
    recording = recorded(lambda seed: jax.random.uniform(jax.random.key(seed), (3,)), S((), "int32"))
    assert "key" in {dtype for dtype, _ in recording.tensors}
    assert Kind.RANDOM in {op.kind for op in recording.ops}


def test_arrays_that_the_program_closes_over_are_constants():
    table = jnp.arange(80.0).reshape(8, 10)
    recording = recorded(lambda x: x @ table, X)
    assert [recording.tensors[number] for number in recording.constants] == [("float32", (8, 10))]


def layered(x, w):
    with jax.named_scope("block"), jax.named_scope("dense"):
        h = x @ w
    with jax.named_scope("loss"):
        return jnp.sum(h * h)


def step(x, w):
    value, gradient = jax.value_and_grad(layered, argnums=1)(x, w)
    with jax.named_scope("optimizer"):
        return value, w - 0.1 * gradient


def test_phases_and_layers_come_from_the_scopes():
    places = {(op.primitive, op.phase, op.layer) for op in recorded(step, X, W).ops}
    assert ("dot_general", Phase.FORWARD, "block/dense") in places
    assert ("dot_general", Phase.BACKWARD, "block/dense") in places
    assert ("sub", Phase.UPDATE, "optimizer") in places


def test_a_rematerialized_region_begins_with_a_barrier():
    def loss(x, w):
        return jnp.sum(jax.checkpoint(lambda x: jnp.tanh(jnp.tanh(x @ w) @ w))(x))

    recording = recorded(jax.grad(loss, argnums=1), X, W)
    (fence,) = (op for op in recording.ops if op.kind is Kind.BARRIER)
    after = recording.ops[recording.ops.index(fence) + 1 :]
    recomputed = [op for op in after if op.region == fence.region and op.phase is Phase.FORWARD]
    assert [op.primitive for op in recomputed].count("dot_general") == 2
    assert set(fence.writes) >= {read for op in recomputed[:1] for read in op.reads}


def test_without_rematerialization_there_is_no_barrier():
    recording = recorded(jax.checkpoint(jnp.tanh), X)
    assert primitives(recording) == ["tanh"]


def test_the_number_of_dispatches_is_that_of_the_outer_operations():
    assert recorded(lambda x: jnp.exp(jax.jit(lambda y: jnp.sin(jnp.cos(y)))(x)), X).dispatches == 2


def test_a_branchs_operations_write_its_outputs_themselves():
    def run(x, w, flag):
        return jax.lax.cond(flag, lambda: (x, jnp.tanh(x)), lambda: (x @ w, x))

    recording = recorded(run, X, W, S((), "bool"))
    (branch,) = (op for op in recording.ops if op.kind is Kind.BRANCH)
    assert branch.body[-1].writes[0] == branch.writes[0]
    assert branch.results[0] == branch.writes[0]
    assert branch.results[1] in branch.reads  # handed through as it is


@jax.custom_vjp
def clipped(x):
    return jnp.tanh(x)


clipped.defvjp(lambda x: (jnp.tanh(x), x), lambda x, upstream: (upstream * jnp.cos(x),))


class Inside(layers.Layer):
    """Return the operations of a dense layer inside a function that `wrap` returns."""

    def __init__(self, wrap, **kwargs):
        super().__init__(**kwargs)
        self.wrap, self.inner = wrap, layers.Dense(8, name="inner")

    def call(self, x):
        return self.wrap(self.inner, x)


def test_every_operation_has_its_layer_and_phase_in_every_structure():
    """Nested models, a layer used twice, loops, branches, and custom derivatives."""
    scanned = Inside(lambda inner, x: jax.lax.scan(lambda c, _: (inner(c), None), x, None, length=3)[0], name="scanned")
    chosen = Inside(lambda inner, x: keras.ops.cond(keras.ops.sum(x) > 0, lambda: inner(x), lambda: x), name="chosen")
    own = Inside(lambda inner, x: clipped(inner(x)), name="own")
    nested = keras.Sequential([keras.Input((8,)), layers.Dense(8, name="first"), layers.Dense(8)], name="nested")
    shared = layers.Dense(8, name="shared")
    inputs = keras.Input((8,))
    model = keras.Model(inputs, layers.Dense(1, name="head")(shared(own(chosen(scanned(shared(nested(inputs))))))))
    model.compile(optimizer="sgd", loss="mse")
    workload = trace_train_step(model, synthetic_specs(model, 4), local_batch=4)
    assert workload.unknown_ops == ()
    products = [(op.layer, op.phase) for op in walk(workload.ops) if op.kind is Kind.DOT]
    named = ("nested/first", "shared", "scanned/inner", "chosen/inner", "own/inner", "head")
    for layer in named:
        uses = 2 if layer == "shared" else 1
        assert products.count((layer, Phase.FORWARD)) == uses
        assert products.count((layer, Phase.BACKWARD)) == (1 if layer == "nested/first" else 2 * uses)
    assert [op.phase for op in workload.ops if op.primitive == "cos"] == [Phase.BACKWARD]
    loops = [op for op in workload.ops if op.kind is Kind.LOOP]
    assert [(op.repeat, op.phase) for op in loops] == [(3, Phase.FORWARD), (3, Phase.BACKWARD)]
    update = {op.layer for op in workload.ops if op.phase is Phase.UPDATE}
    assert any(name.startswith("sgd") for name in update)  # Keras counts optimizers of one name
