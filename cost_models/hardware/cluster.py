"""`Chip`, `Link` and `Cluster`: the hardware values that cost models compute with.

`lookup.py` makes them of catalogue names, and `description.py` of hardware files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from math import prod
from typing import Any

from cost_models.errors import HardwareError

LINK_KINDS = ("torus", "mesh", "switch", "direct", "network", "host", "memory")
CHIP_KINDS = ("tpu", "gpu", "cpu")
MOST_DEVICES = 2**24
"""No cluster has more devices, and the mesh search visits every divisor of this number."""

# Seconds that one more simulated device adds to a small collective: 2 devices took 0.1 ms and 8 took 0.25 to 0.45 ms on
# two x86-64 cores (jax 0.10.2, 2026-11-29).
_RENDEZVOUS_SECONDS = 5e-5

_UNKNOWN_OR_POSITIVE = ("processors", "cache_bytes", "compute_capability", "fresh_page_bytes_per_second")


@dataclass(frozen=True)
class Chip:
    """One JAX device. `None` and a missing key mean "not published", never zero.

    peak_flops_per_second      by compute dtype ("float32", "bfloat16", "float16", ...), dense, of one device
    memory_bytes               memory of the device
    usable_memory_bytes        memory that the runtime leaves to a program: the capacity of the device
    memory_bytes_per_second    main-memory bandwidth
    kernel_launch_seconds      fixed cost of a kernel
    dispatch_seconds           host time to start one compiled program
    kind                       "tpu" | "gpu" | "cpu"
    compute_capability         NVIDIA's number for the features of the chip (8.0: A100, 9.0: H100); compilers use it
    fresh_page_bytes_per_second  rate at which the operating system maps new pages; None: not known, or the device has
                               its own memory
    host_micro_step_seconds    host time of `fit` for a micro-step, and host_variable_seconds for each variable; None:
                               not measured
    processors                 cores of a CPU that its kernels use
    cache_bytes                size of a CPU's last-level cache
    sources                    source of each figure, by its field (and dtype)

    Published figures are peaks. Figures of a measured machine are achieved rates, as its `sources` say. Each of several
    simulated devices has an equal share of one CPU's figures.
    """

    name: str
    kind: str
    peak_flops_per_second: Mapping[str, float]
    memory_bytes: int
    usable_memory_bytes: int
    memory_bytes_per_second: float
    kernel_launch_seconds: float
    dispatch_seconds: float
    sources: Mapping[str, str] = field(default_factory=dict)
    compute_capability: float | None = None
    fresh_page_bytes_per_second: float | None = None
    host_micro_step_seconds: float | None = None
    host_variable_seconds: float | None = None
    processors: int | None = None
    cache_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in CHIP_KINDS:
            raise HardwareError(f"chip kind '{self.kind}' of {self.name}; expected one of {', '.join(CHIP_KINDS)}")
        if not self.peak_flops_per_second:
            raise HardwareError(f"{self.name} has no peak_flops_per_second; give at least float32")
        for key, value in {**self.peak_flops_per_second, "memory_bytes": self.memory_bytes}.items():
            _positive(f"{self.name}: {key}", value)
        _positive(f"{self.name}: memory_bytes_per_second", self.memory_bytes_per_second)
        for key in _UNKNOWN_OR_POSITIVE:
            if getattr(self, key) is not None:
                _positive(f"{self.name}: {key}", getattr(self, key))
        if not 0 < self.usable_memory_bytes <= self.memory_bytes:
            raise HardwareError(
                f"{self.name}: usable_memory_bytes is {self.usable_memory_bytes}; "
                f"expected more than 0 and at most memory_bytes, {self.memory_bytes}"
            )


@dataclass(frozen=True)
class Link:
    """A link between devices. `bytes_per_second` counts one direction.

    kind     "torus" and "mesh": rate of ONE link to ONE neighbour of a chip (an axis has two); a "mesh" has no
             wraparound
             "direct": rate of the link to ONE peer; every device is wired to every other of its host
             "switch", "host" (PCIe), "network": rate of one device, all its ports together
             "memory": simulated devices of one CPU, which exchange through its memory
    latency_seconds  of a hop or round trip; launch_seconds: fixed cost of one collective
    efficiency       share of bytes_per_second that large collectives were measured to reach
    """

    kind: str
    bytes_per_second: float
    latency_seconds: float
    source: str = ""
    launch_seconds: float = 0.0
    efficiency: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in LINK_KINDS:
            raise HardwareError(f"link kind '{self.kind}'; expected one of {', '.join(LINK_KINDS)}")
        _positive(f"{self.kind} link: bytes_per_second", self.bytes_per_second)
        if not 0 < self.efficiency <= 1:
            raise HardwareError(f"{self.kind} link: efficiency is {self.efficiency}; expected a share of at most 1")

    @property
    def achieved_bytes_per_second(self) -> float:
        return self.bytes_per_second * self.efficiency


@dataclass(frozen=True)
class Cluster:
    """The devices of one training job.

    devices      devices_per_host x hosts
    topology     shape of a TPU slice in chips, else ()
    wraparound   whether each axis of the topology closes to a ring
    simulated    whether the devices share one CPU
    local        whether this machine's devices were measured
    """

    name: str
    chip: Chip
    devices: int
    hosts: int = 1
    inner_link: Link | None = None
    outer_link: Link | None = None
    topology: tuple[int, ...] = ()
    wraparound: tuple[bool, ...] = ()
    simulated: bool = False
    local: bool = False

    def __post_init__(self) -> None:
        if self.devices > MOST_DEVICES:
            raise HardwareError(f"{self.name}: {self.devices} devices; expected at most {MOST_DEVICES}")
        if self.devices < 1 or self.hosts < 1 or self.devices % self.hosts:
            raise HardwareError(f"{self.name}: {self.devices} devices do not spread evenly over {self.hosts} hosts")
        if self.topology and (min(self.topology) < 1 or self.devices % prod(self.topology)):
            raise HardwareError(f"{self.name}: {self.devices} devices do not fill a topology of {self.topology} chips")
        if len(self.wraparound) != len(self.topology):
            raise HardwareError(f"{self.name}: wraparound needs one true or false for each topology axis")
        if self.inner_link and self.inner_link.kind in ("torus", "mesh") and not self.topology:
            raise HardwareError(f"{self.name}: a {self.inner_link.kind} needs a topology, as in [2, 2, 1]")

    @property
    def devices_per_host(self) -> int:
        return self.devices // self.hosts

    @property
    def devices_per_chip(self) -> int:
        """JAX devices of one chip of a TPU slice; 1 without a topology."""
        return self.devices // prod(self.topology) if self.topology else 1

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for plans, hardware files and messages between processes."""
        plain = asdict(self)
        plain["chip"]["peak_flops_per_second"] = dict(self.chip.peak_flops_per_second)
        plain["chip"]["sources"] = dict(self.chip.sources)
        return plain | {"topology": list(self.topology), "wraparound": list(self.wraparound)}

    def summary(self) -> str:
        """Return one line: number of devices, shape, memory of a device."""
        gib = self.chip.usable_memory_bytes / 2**30
        shape = f" ({'x'.join(map(str, self.topology))} chips)" if self.topology else ""
        over = f" on {self.hosts} hosts" if self.hosts > 1 else ""
        simulated = "simulated " if self.simulated else ""
        plural = "s" if self.devices > 1 else ""
        return f"{self.devices} {simulated}device{plural}{shape}{over} of {self.chip.name}, {gib:.2f} GiB usable each"


def share(whole_cluster: Cluster, devices: int, link: Link | None = None) -> Cluster:
    """Return one CPU as `devices` simulated devices with equal shares of memory, rates and bandwidth.

    `link` is the measured link between them; by default they exchange through memory at their share of its bandwidth.
    """
    chip = whole_cluster.chip
    part = replace(
        chip,
        peak_flops_per_second={dtype: peak / devices for dtype, peak in chip.peak_flops_per_second.items()},
        memory_bytes=chip.memory_bytes // devices,
        usable_memory_bytes=chip.usable_memory_bytes // devices,
        memory_bytes_per_second=chip.memory_bytes_per_second / devices,
        fresh_page_bytes_per_second=chip.fresh_page_bytes_per_second and chip.fresh_page_bytes_per_second / devices,
        processors=chip.processors and max(1, chip.processors // devices),
        cache_bytes=chip.cache_bytes and max(1, chip.cache_bytes // devices),
        sources={**chip.sources, "simulated": f"one of {devices} equal shares of a single processor"},
    )
    through_memory = Link(
        kind="memory",
        bytes_per_second=part.memory_bytes_per_second,
        latency_seconds=_RENDEZVOUS_SECONDS,
        source="a device's share of the memory bandwidth; rendezvous latency measured with jax 0.10.2 on two cores",
    )
    return replace(whole_cluster, chip=part, devices=devices, simulated=True, inner_link=link or through_memory)


def limited(cluster: Cluster, limit_bytes: int) -> Cluster:
    """Return the same devices with at most `limit_bytes` of usable memory: each, or all together if simulated."""
    chip = cluster.chip
    each = limit_bytes // cluster.devices if cluster.simulated else limit_bytes
    if each >= chip.usable_memory_bytes:
        return cluster
    sources = {**chip.sources, "usable_memory_bytes": "the requested limit"}
    return replace(cluster, chip=replace(chip, usable_memory_bytes=each, sources=sources))


def _positive(what: str, value: float) -> None:
    if not value > 0:
        raise HardwareError(f"{what} is {value}; expected a number above zero")
