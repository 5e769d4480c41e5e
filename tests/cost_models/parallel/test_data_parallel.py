"""Communication of data parallelism, on steps small enough to count it by hand."""

from cost_models.parallel.data_parallel import collectives
from cost_models.workload.workload import Kind, Phase
from tests.builders.workloads import B, Step, dense

K, N = 96, 40


def test_the_gradient_of_a_dense_layer_and_its_loss():
    found = collectives(dense(K, N))
    assert found.gradient_bytes == 4 * K * N
    assert found.statistics_bytes == ((4, 1),)  # the loss


def normalised(layers):
    """Layers whose statistics run over the batch: two sums forward, two backward, two gradients of N."""
    step = Step()
    x = step.input(B, N)
    for _ in range(layers):
        gamma, beta = step.weight("gamma", N), step.weight("beta", N)
        step.phase = Phase.FORWARD
        mean, square = (step.op(Kind.REDUCE, (x,), (N,)) for _ in range(2))
        x = step.op(Kind.ELEMENTWISE, (x, mean, square, gamma, beta), (B, N))
        step.phase = Phase.BACKWARD
        sums = [step.op(Kind.REDUCE, (x,), (N,)) for _ in range(2)]
        x = step.op(Kind.ELEMENTWISE, (x, *sums), (B, N))
        gradients = [step.op(Kind.REDUCE, (x,), (1, N)) for _ in range(2)]
        for weight, gradient in zip((gamma, beta), gradients, strict=True):
            flat = step.op(Kind.VIEW, (gradient,), (N,))
            step.phase = Phase.UPDATE
            step.new_value(weight, step.op(Kind.ELEMENTWISE, (weight, flat), (N,)))
            step.phase = Phase.BACKWARD
    return step.workload()


def test_statistics_over_the_batch_meet_one_by_one_and_gradients_together():
    found = collectives(normalised(5))
    assert found.gradient_bytes == 5 * 2 * 4 * N
    assert found.statistics_bytes == ((4 * N, 5 * 4),)


def test_sums_within_a_sample_need_nobody_else():
    step = Step()
    x = step.input(B, N)
    within = step.op(Kind.REDUCE, (x,), (B,))
    assert collectives(step.workload(within)).statistics_bytes == ()
