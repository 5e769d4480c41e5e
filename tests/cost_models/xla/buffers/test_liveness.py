"""Bytes alive at each kernel, against counting by hand."""

from cost_models.workload.workload import Kind, Op, Phase, Role
from cost_models.xla.buffers.liveness import schedule
from cost_models.xla.buffers.schedule import Updates
from cost_models.xla.profiles.choice import compiler_profile
from tests.builders.workloads import B, Step, dense

GPU, TPU, CPU = compiler_profile("gpu"), compiler_profile("tpu"), compiler_profile("cpu")
VOLTA = compiler_profile("gpu", compute_capability=7.0)  # its products are a library's, which wants scratch
K, N = 512, 256
SCRATCH = VOLTA.setting("dot-workspace", "size")


def test_one_dense_layer_by_hand():
    """Alive at the gradient of the kernel: y and dy (4 B N each), the gradient (4 K N) and a library's scratch."""
    plan = schedule(dense(K, N), VOLTA, Updates.AT_ONCE)
    assert [kernel.op.primitive for kernel in plan.kernels] == [
        "dot_general",
        "reduce",
        "select_n",
        "dot_general",
        "sub",
    ]
    for batch in (8, 64, 4096):
        peak, at = plan.peak(batch)
        assert peak == 4 * batch * N + 4 * K * N + SCRATCH + 4  # y has died at dy; the loss is kept
        assert at == 3


def test_a_gradient_dies_in_its_update_or_waits_for_the_others():
    step, n = Step(), 2048
    weights = [step.weight(f"w{i}", n, n) for i in range(3)]
    x = step.input(B, n)
    step.phase = Phase.BACKWARD
    gradients = [step.dot(x, x, (n, n), n, B, n) for _ in weights]
    step.phase = Phase.UPDATE
    for weight, gradient in zip(weights, gradients, strict=True):
        step.new_value(weight, step.op(Kind.ELEMENTWISE, (weight, gradient), (n, n), primitive="sub"))
    workload = step.workload()
    one = 4 * n * n
    in_program_order = GPU.without("memory-scheduler")
    assert schedule(workload, in_program_order, Updates.AT_ONCE).peak(8)[0] == one
    assert schedule(workload, GPU, Updates.TOGETHER).peak(8)[0] == 3 * one


def test_new_state_takes_the_old_states_place():
    """Three copies of state are updated in place: no temporary but the gradient."""
    plan = schedule(dense(K, N, slots=2), GPU, Updates.AT_ONCE)
    gradient = 4 * K * N
    assert plan.peak(1)[0] == gradient + 4 * N + 4


def test_an_elementwise_result_stands_beside_its_operand_and_on_gpus_and_processors_in_its_place():
    step = Step()
    a = step.op(Kind.REDUCE, (step.input(B, 4, N),), (B, N))
    end = step.op(Kind.ELEMENTWISE, (a,), (B, N), primitive="exp")
    workload = step.workload(end)
    batch = 2**20  # too much for the chip of a TPU
    for target in (TPU, GPU.without("elementwise-in-place")):
        assert schedule(workload, target, Updates.AT_ONCE).peak(batch)[0] == 2 * 4 * batch * N
    for target in (GPU, CPU):
        assert schedule(workload, target, Updates.AT_ONCE).peak(batch)[0] == 4 * batch * N


def test_the_rows_of_a_softmax_never_lie_in_place_of_what_they_are_made_of():
    """x / sum(x) over rows is one kernel with its sum; over columns it is not."""
    for shape, beside in (((B,), 2), ((N,), 1)):
        step = Step()
        x = step.op(Kind.SORT, (step.input(B, N),), (B, N))
        total = step.op(Kind.REDUCE, (x,), shape)
        spread = step.op(Kind.BROADCAST, (total,), (B, N))
        end = step.op(Kind.SORT, (step.op(Kind.ELEMENTWISE, (x, spread), (B, N), primitive="div"),), (B, N))
        plan = schedule(step.workload(end), GPU, Updates.AT_ONCE)
        divided = next(place for place, kernel in enumerate(plan.kernels) if kernel.op.primitive == "div")
        assert plan.live(8)[divided] == beside * 4 * 8 * N + 4 * (8 if shape == (B,) else N)


def test_temporaries_lie_where_a_new_state_will_be_that_takes_no_old_ones_place():
    """The old value is never read, so the program does not take it in, and its new one has room from the start."""
    step = Step()
    unread, x = step.weight("slot", 64, N, role=Role.SLOT), step.input(B, N)
    made = step.op(Kind.SORT, (x,), (B, N))
    largest = step.op(Kind.SORT, (made,), (B, N))
    step.phase = Phase.UPDATE
    step.new_value(unread, step.op(Kind.REDUCE, (largest,), (64, N)))
    plan = schedule(step.workload(), GPU, Updates.AT_ONCE)
    assert plan.peak(64)[0] == 4 * 64 * N  # one of the two in that room
    assert plan.peak(65)[0] == 2 * 4 * 65 * N  # neither fits
    assert schedule(step.workload(), TPU, Updates.AT_ONCE).live(8).max() <= 2 * 4 * 8 * N


def test_a_loop_holds_its_temporaries_once_however_often_it_runs():
    def looping(repeat):
        step = Step()
        x, w = step.input(B, N), step.weight("w", N, N)
        inner, out = step.tensor(B, N), step.tensor(B, N)
        half = step.tensor(B, N)
        body = (
            Op(Kind.DOT, "dot_general", (x, w), (half,)),
            Op(Kind.REDUCE, "reduce", (half,), (inner,)),
        )
        step.ops.append(Op(Kind.LOOP, "scan", (x, w), (out,), repeat=repeat, body=body, results=(inner,)))
        return step.workload(out)

    peaks = {schedule(looping(repeat), CPU, Updates.AT_ONCE).peak(64)[0] for repeat in (1, 100)}
    assert peaks == {3 * 4 * 64 * N}  # the result, and both of an iteration


def scaled_update():
    """As loss scaling has it: the update of one weight stands in a branch."""
    step = Step()
    w = step.weight("w", N, N)
    x = step.input(B, N)
    step.phase = Phase.BACKWARD
    gradient = step.dot(x, x, (N, N), N, B, N)
    step.phase = Phase.UPDATE
    new = step.tensor(N, N)
    body = (Op(Kind.ELEMENTWISE, "sub", (w, gradient), (new,), phase=Phase.UPDATE),)
    step.ops.append(Op(Kind.BRANCH, "cond", (w, gradient), (new,), body=body, results=(new,), phase=Phase.UPDATE))
    step.new_value(w, new)
    return step


def test_a_branch_that_updates_state_does_so_in_place():
    """Loss scaling: the whole update stands behind the question whether the gradients are finite."""
    step = scaled_update()
    assert schedule(step.workload(), CPU, Updates.AT_ONCE).peak(8)[0] == 4 * N * N


def test_on_cpus_an_elementwise_result_takes_the_place_of_an_operand_of_its_shape():
    step = Step()
    a = step.op(Kind.SORT, (step.input(B, N),), (B, N))
    b = step.op(Kind.ELEMENTWISE, (a,), (B, N), primitive="exp")
    workload = step.workload(step.op(Kind.SORT, (b,), (B, N)))
    assert schedule(workload, CPU, Updates.AT_ONCE).peak(8)[0] == 2 * 4 * 8 * N
    columns = schedule(workload, CPU, Updates.AT_ONCE).temporaries
    assert (columns.tensor[0], columns.birth[0]) == (b, 0)  # one buffer, from the first kernel on


def shrinking(batch, n=1024):
    """One dense layer's gradients: of its weights, which frees a large input, and of that input."""
    step = Step()
    w, x = step.weight("w", n, n), step.input(B, n)
    made = step.op(Kind.SORT, (x,), (B, n))
    y = step.dot(made, w, (B, n), B, n, n)
    step.phase = Phase.BACKWARD
    d_w = step.dot(made, y, (n, n), n, B, n)
    d_x = step.dot(y, w, (B, n), B, n, n)
    step.phase = Phase.UPDATE
    step.new_value(w, step.op(Kind.ELEMENTWISE, (w, d_w), (n, n), primitive="sub"))
    return step.workload(d_x, batch=batch), w


def test_state_whose_new_value_comes_before_its_last_reader_is_copied():
    """A large batch makes list scheduling work out the weights' gradient first; XLA then copies the old weights."""
    for batch, copied in ((64, False), (8192, True)):
        workload, w = shrinking(batch)
        plan = schedule(workload, GPU, Updates.AT_ONCE, batch)
        assert (w in plan.copied) is copied
        assert (w in plan.temporaries.tensor) is copied


def test_orders_are_compared_without_the_copies_that_follow_from_them():
    workload, w = shrinking(8192)
    plan = schedule(workload, GPU, Updates.AT_ONCE, 8192)
    assert plan.ordered_peak(8192) <= plan.peak(8192)[0]
    assert w in plan.temporaries.tensor[plan.alive(plan.peak(8192)[1])]
