"""Estimates page-fault time on CPUs: malloc returns freed memory to the system after every micro-step.

XLA:CPU allocates the temporaries of a program in one piece with `malloc`, each time that it runs. glibc maps a piece
above 32 MiB by itself and unmaps it when it is freed (`mallopt(3)`: DEFAULT_MMAP_THRESHOLD_MAX), so the kernel fills
every page of it with zeros again as the next micro-step touches it. A micro-step with page faults takes 1.2 to 2.4
times as long as in a process that keeps freed memory (`studies/time_vs_this_cpu`).
"""

from __future__ import annotations

from cost_models.config import TrainConfig
from cost_models.hardware.cluster import Cluster
from cost_models.hardware.efficiency import efficiency_of
from cost_models.memory import step_memory
from cost_models.workload.workload import Workload
from cost_models.xla.profiles.choice import compiler_profile
from cost_models.xla.rules import rule

LARGEST_KEPT_BYTES = 2**25
"""glibc's DEFAULT_MMAP_THRESHOLD_MAX on 64-bit machines: larger pieces go back to the kernel when they are freed."""


def may_page(config: TrainConfig, cluster: Cluster) -> bool:
    """Return whether micro-steps may return memory: compiled programs of JAX on a CPU whose rate was measured."""
    return why_not_paging(config, cluster) is None


def why_not_paging(config: TrainConfig, cluster: Cluster) -> str | None:
    """Return why keeping freed memory cannot help there; None where it may help."""
    if compiler_profile(cluster.chip.kind).host_apart:
        return f"it only affects training on a CPU, and {cluster.name} is a {cluster.chip.kind.upper()}"
    if config.backend != "jax":
        return f"it only helps compiled programs of JAX, and this training runs on {config.backend}"
    if cluster.chip.fresh_page_bytes_per_second is None:
        return f"the cost of mapping memory again is not known for {cluster.name}"
    return None


def returned_bytes(workload: Workload, config: TrainConfig, cluster: Cluster) -> int:
    """Return the bytes that a micro-step returns to the kernel; 0 where the process keeps them.

    Without a compiler a micro-step frees many small pieces, which the C library keeps.
    """
    if config.keep_freed_memory or not config.jit_compile or not may_page(config, cluster):
        return 0
    cost = step_memory(workload, config, cluster)
    temporary_bytes = cost.gradients + cost.weight_copies + cost.activations + cost.workspace
    return temporary_bytes if temporary_bytes > LARGEST_KEPT_BYTES else 0


@rule("page-faults", "glibc mallopt(3): DEFAULT_MMAP_THRESHOLD_MAX; micro-steps timed with and without")
def paging_seconds(workload: Workload, config: TrainConfig, cluster: Cluster) -> float:
    """Return the seconds of a micro-step in which the kernel maps new pages; 0 where the rate is not known."""
    rate = cluster.chip.fresh_page_bytes_per_second
    return returned_bytes(workload, config, cluster) / (rate * efficiency_of(cluster).fresh_page_share) if rate else 0.0
