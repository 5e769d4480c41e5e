"""Computes time and bytes of collectives (all-reduce, all-gather ...) on rings, tori, switches and shared memory.

Payloads are bytes of the FULL array: the result of an all-gather, and each device's operand of an all-reduce or a
reduce-scatter. An all-to-all re-splits an array that is already split over the group.

V payload, n devices, W bytes a second one way (achieved: peak x efficiency). Sources: Thakur et al. 2005 (the ring,
section 4.4), the JAX scaling book (`sharding.md` for tori, `gpus.md` for switches), and for several hosts the busbw
convention of nccl-tests.

    gather phase   all-gather and reduce-scatter; an all-reduce is one of each (a single pass in shared memory)
        switch, host     V (n-1)/n / W
        direct           V (n-1)/n / (W (n-1)): every device drives its link to each peer at once
        torus            V (n-1)/n / (sum over axes: 2W if the axis closes, else W)
        several hosts    V (n-1)/n / min(W inside, devices a host x W of the network): one ring through all devices,
                         whose host-to-host stretch is shared by the network ports of the group's devices there
        memory           traffic 2V (each device reads and writes V) over its share of the bandwidth
    exchange       all-to-all
        switch, host     V (n-1)/n^2 / W
        direct           V / n^2 / W
        torus            the narrowest bisection of an axis: V/4 over the links that cross it
        several hosts    the slower of the exchange within hosts and the exchange between them
        memory           traffic 2V/n
    pass           collective-permute: each device sends V bytes to one other device
        switch, host     V / W
        direct, torus    V over one link
        several hosts    V over the network
        memory           traffic 2V
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import ceil, prod
from statistics import NormalDist

from cost_models.errors import ConfigError, HardwareError
from cost_models.hardware.cluster import Cluster, Link


@dataclass(frozen=True)
class Collective:
    """Cost of one collective, as a value that adds.

    seconds           without any overlap
    bytes_per_device  bytes that one device sends
    kind              "all_reduce" | "all_gather" | "reduce_scatter" | "all_to_all" | "collective_permute"; sums of
                      different kinds are "several"
    """

    kind: str
    seconds: float
    bytes_per_device: int

    def __add__(self, other: Collective) -> Collective:
        kinds = {self.kind, other.kind} - {NOTHING.kind}
        kind = NOTHING.kind if not kinds else kinds.pop() if len(kinds) == 1 else "several"
        return Collective(kind, self.seconds + other.seconds, self.bytes_per_device + other.bytes_per_device)

    def times(self, count: int) -> Collective:
        """Return the cost of `count` such collectives, one after the other."""
        return Collective(self.kind, self.seconds * count, self.bytes_per_device * count)


NOTHING = Collective("none", 0.0, 0)
"""The cost of no communication; the start of a sum."""


def all_reduce(payload_bytes: int, cluster: Cluster, devices: int, *, stride: int = 1) -> Collective:
    """Return the cost of summing V bytes of each of `devices` on every device. Sends 2V(n-1)/n.

    `stride` is the distance in the cluster's device order between neighbours of the group: 1 for the last mesh axis,
    the size of the axes after it for another. ConfigError for a group that the cluster cannot form, HardwareError for
    a link without published figures.
    """
    if devices == 1:
        return NOTHING
    way = _way(cluster, devices, stride)
    seconds = way.launch_seconds + way.reduce_seconds(payload_bytes)
    return Collective("all_reduce", seconds, ceil(2 * payload_bytes * (devices - 1) / devices))


def all_gather(payload_bytes: int, cluster: Cluster, devices: int, *, stride: int = 1) -> Collective:
    """Return the cost of gathering V/n bytes of each device on every device. Sends V(n-1)/n. Errors as `all_reduce`."""
    if devices == 1:
        return NOTHING
    way = _way(cluster, devices, stride)
    seconds = way.launch_seconds + way.gather_seconds(payload_bytes)
    return Collective("all_gather", seconds, ceil(payload_bytes * (devices - 1) / devices))


def reduce_scatter(payload_bytes: int, cluster: Cluster, devices: int, *, stride: int = 1) -> Collective:
    """Return the cost of summing V bytes; each device gets V/n of the sum. Sends V(n-1)/n. Errors as `all_reduce`."""
    if devices == 1:
        return NOTHING
    way = _way(cluster, devices, stride)
    seconds = way.launch_seconds + way.scatter_seconds(payload_bytes)
    return Collective("reduce_scatter", seconds, ceil(payload_bytes * (devices - 1) / devices))


def all_to_all(payload_bytes: int, cluster: Cluster, devices: int, *, stride: int = 1) -> Collective:
    """Return the cost of re-splitting V bytes along another dimension, V/n on each device. Sends V(n-1)/n^2."""
    if devices == 1:
        return NOTHING
    way = _way(cluster, devices, stride)
    seconds = way.launch_seconds + way.exchange_seconds(payload_bytes)
    return Collective("all_to_all", seconds, ceil(payload_bytes * (devices - 1) / devices**2))


def collective_permute(payload_bytes: int, cluster: Cluster, devices: int, *, stride: int = 1) -> Collective:
    """Return the cost of sending V bytes from each device to one other device."""
    if devices == 1:
        return NOTHING
    way = _way(cluster, devices, stride)
    return Collective("collective_permute", way.launch_seconds + way.pass_seconds(payload_bytes), payload_bytes)


_SPREAD = 0.08 / 5.4
"""Standard deviation of the seconds of GPUs of one kind, as a share of their mean."""


def slowest_of(devices: int) -> float:
    """Return the expected time of the slowest of `devices` GPUs, as a multiple of a typical GPU's time.

    All others wait for the slowest. It is the expected largest of as many normal values (Blom 1958). GPUs of one kind
    differ by 8% under their power limits (Sinha et al. 2022, arXiv 2208.11035: from whisker to whisker, which is 5.4
    standard deviations).
    """
    if devices == 1:
        return 1.0
    return 1.0 + _SPREAD * NormalDist().inv_cdf((devices - 0.375) / (devices + 0.25))


class _Way(ABC):
    """The connection of a group of devices. Seconds are for a payload of V bytes, without the launch."""

    @property
    @abstractmethod
    def launch_seconds(self) -> float: ...

    @abstractmethod
    def gather_seconds(self, payload_bytes: float) -> float: ...

    @abstractmethod
    def exchange_seconds(self, payload_bytes: float) -> float: ...

    @abstractmethod
    def pass_seconds(self, payload_bytes: float) -> float: ...

    def scatter_seconds(self, payload_bytes: float) -> float:
        """Return the seconds of a reduce-scatter, by default those of an all-gather."""
        return self.gather_seconds(payload_bytes)

    def reduce_seconds(self, payload_bytes: float) -> float:
        """Return the seconds of an all-reduce: a reduce-scatter, then an all-gather."""
        return self.scatter_seconds(payload_bytes) + self.gather_seconds(payload_bytes)


@dataclass(frozen=True)
class _Ring(_Way):
    """A ring of `members` over a switch or PCIe."""

    members: int
    link: Link

    @property
    def launch_seconds(self) -> float:
        return self.link.launch_seconds

    @property
    def bytes_per_second(self) -> float:
        return self.link.achieved_bytes_per_second

    def gather_seconds(self, payload_bytes: float) -> float:
        n = self.members
        return payload_bytes * (n - 1) / n / self.bytes_per_second + (n - 1) * self.link.latency_seconds

    def exchange_seconds(self, payload_bytes: float) -> float:
        n = self.members
        return payload_bytes * (n - 1) / n**2 / self.bytes_per_second + self.link.latency_seconds

    def pass_seconds(self, payload_bytes: float) -> float:
        return payload_bytes / self.link.achieved_bytes_per_second + self.link.latency_seconds


@dataclass(frozen=True)
class _Direct(_Ring):
    """Every member is wired to every other; the link's figures are those of one wire."""

    @property
    def bytes_per_second(self) -> float:
        return self.link.achieved_bytes_per_second * (self.members - 1)


@dataclass(frozen=True)
class _Hosts(_Way):
    """One ring through `hosts` hosts with `per_host` members in each."""

    inner: _Ring | None
    network: Link
    hosts: int
    per_host: int

    @property
    def launch_seconds(self) -> float:
        return max(self.network.launch_seconds, self.inner.launch_seconds if self.inner else 0.0)

    def gather_seconds(self, payload_bytes: float) -> float:
        n = self.hosts * self.per_host
        rate = self.per_host * self.network.achieved_bytes_per_second
        latency = (self.hosts - 1) * self.network.latency_seconds
        if self.inner:
            rate = min(rate, self.inner.bytes_per_second)
            latency += (n - 1) * self.inner.link.latency_seconds
        return payload_bytes * (n - 1) / n / rate + latency

    def exchange_seconds(self, payload_bytes: float) -> float:
        n = self.hosts * self.per_host
        leaving = payload_bytes / n * (n - self.per_host) / n
        outside = leaving / self.network.achieved_bytes_per_second + self.network.latency_seconds
        staying = payload_bytes / self.hosts**2
        return max(outside, self.inner.exchange_seconds(staying) if self.inner else 0.0)

    def pass_seconds(self, payload_bytes: float) -> float:
        return payload_bytes / self.network.achieved_bytes_per_second + self.network.latency_seconds


@dataclass(frozen=True)
class _Memory(_Way):
    """Simulated devices of one CPU. The link's rate is that of one share while all devices work.

    `spare` is the factor by which a member's rate grows because devices outside `devices x stride` are idle.
    Every collective begins with a rendezvous, which costs a latency per member. Then each member reads and writes
    memory: 2V to gather or to reduce, V + V/n to scatter a sum, 2V/n to exchange.
    """

    members: int
    link: Link
    spare: float

    @property
    def bytes_per_second(self) -> float:
        return self.link.achieved_bytes_per_second * self.spare

    @property
    def launch_seconds(self) -> float:
        return self.link.launch_seconds + self.members * self.link.latency_seconds

    def gather_seconds(self, payload_bytes: float) -> float:
        return 2 * payload_bytes / self.bytes_per_second

    def scatter_seconds(self, payload_bytes: float) -> float:
        return payload_bytes * (1 + 1 / self.members) / self.bytes_per_second

    def reduce_seconds(self, payload_bytes: float) -> float:
        return self.gather_seconds(payload_bytes)

    def exchange_seconds(self, payload_bytes: float) -> float:
        return 2 * payload_bytes / self.members / self.bytes_per_second

    def pass_seconds(self, payload_bytes: float) -> float:
        return 2 * payload_bytes / self.bytes_per_second


@dataclass(frozen=True)
class _Torus(_Way):
    """A box of chips with `per_chip` of the group's devices on each.

    `sharing` groups use the same links at once (the other devices of the same chips). Devices of one chip combine
    through its memory before and after: V over `chip_bytes_per_second` in each phase.
    """

    lengths: tuple[int, ...]
    closed: tuple[bool, ...]
    link: Link
    per_chip: int
    sharing: int
    chip_bytes_per_second: float

    @property
    def launch_seconds(self) -> float:
        return self.link.launch_seconds

    @property
    def bytes_per_second(self) -> float:
        """Rate at which a corner chip can receive: two links for each axis that closes, one for each other axis."""
        links = sum(2 if closes else 1 for length, closes in self._axes())
        return links * self.link.achieved_bytes_per_second / self.sharing

    def _axes(self) -> Iterator[tuple[int, bool]]:
        return ((length, closes) for length, closes in zip(self.lengths, self.closed, strict=True) if length > 1)

    def _on_chip_seconds(self, payload_bytes: float) -> float:
        return payload_bytes / self.chip_bytes_per_second if self.per_chip > 1 else 0.0

    def gather_seconds(self, payload_bytes: float) -> float:
        chips = prod(self.lengths)
        if chips == 1:
            return self._on_chip_seconds(payload_bytes)
        hops = sum(length // 2 if closes else length - 1 for length, closes in self._axes())
        over_links = payload_bytes * (chips - 1) / chips / self.bytes_per_second
        return over_links + hops * self.link.latency_seconds + self._on_chip_seconds(payload_bytes)

    def exchange_seconds(self, payload_bytes: float) -> float:
        chips = prod(self.lengths)
        rate = self.link.achieved_bytes_per_second / self.sharing
        cuts = [payload_bytes / 4 / (chips / length * (2 if closes else 1) * rate) for length, closes in self._axes()]
        hops = sum(length // 2 if closes else length - 1 for length, closes in self._axes())
        on_chip = self._on_chip_seconds(payload_bytes / (chips * self.per_chip))
        return max(cuts, default=0.0) + hops * self.link.latency_seconds + on_chip

    def pass_seconds(self, payload_bytes: float) -> float:
        if prod(self.lengths) == 1:
            return self._on_chip_seconds(payload_bytes)
        rate = self.link.achieved_bytes_per_second / self.sharing
        return payload_bytes / rate + self.link.latency_seconds


def _way(cluster: Cluster, devices: int, stride: int) -> _Way:
    if devices < 1 or stride < 1 or devices * stride > cluster.devices:
        raise ConfigError(
            f"a group of {devices} devices, every {stride}, does not fit into the {cluster.devices} of {cluster.name}"
        )
    link = cluster.inner_link
    if link is not None and link.kind in ("torus", "mesh"):
        return _torus(cluster, link, devices, stride)
    if link is not None and link.kind == "memory":
        return _Memory(devices, link, spare=cluster.devices / (devices * stride))
    return _machines(cluster, devices, stride)


def _machines(cluster: Cluster, devices: int, stride: int) -> _Way:
    per_host = min(devices, max(1, cluster.devices_per_host // stride))
    if devices % per_host:
        raise ConfigError(
            f"a group of {devices} devices does not spread evenly over hosts with {per_host} of them each"
        )
    hosts = devices // per_host
    inner = None
    if per_host > 1:
        link = _needed(cluster, "inner_link")
        inner = (_Direct if link.kind == "direct" else _Ring)(per_host, link)
        if hosts == 1:
            return inner
    return _Hosts(inner, _needed(cluster, "outer_link"), hosts, per_host)


def _needed(cluster: Cluster, which: str) -> Link:
    link: Link | None = getattr(cluster, which)
    if link is None:
        where = "within a host" if which == "inner_link" else "between hosts"
        raise HardwareError(
            f"no figure is known for the link {where} of {cluster.name}; describe it as `{which}` in a YAML file "
            f"with `base: {cluster.name}`, giving kind, bytes_per_second and latency_seconds"
        )
    return link


def _torus(cluster: Cluster, link: Link, devices: int, stride: int) -> _Torus:
    """Return the box of chips that a group fills; groups of smaller stride fill the best boxes first."""
    on_chip = cluster.devices_per_chip
    per_chip = max(1, min(devices, on_chip // stride))
    if devices % per_chip:
        raise ConfigError(
            f"a group of {devices} devices does not fill chips of {cluster.name}, which have {per_chip} each"
        )
    below = _box(cluster.topology, cluster.wraparound, max(1, stride // on_chip), cluster.name)
    left = tuple(length // used for length, used in zip(cluster.topology, below, strict=True))
    open_ = tuple(closes and used == 1 for closes, used in zip(cluster.wraparound, below, strict=True))
    lengths = _box(left, open_, ceil(devices / per_chip), cluster.name)
    return _Torus(
        lengths=lengths,
        closed=tuple(closes and mine == whole for closes, mine, whole in zip(open_, lengths, left, strict=True)),
        link=link,
        per_chip=per_chip,
        sharing=on_chip // per_chip,
        chip_bytes_per_second=cluster.chip.memory_bytes_per_second,
    )


@lru_cache(maxsize=1024)
def _box(topology: tuple[int, ...], wraparound: tuple[bool, ...], chips: int, name: str) -> tuple[int, ...]:
    """Return the lengths of a box of `chips` chips that tiles the topology: whole axes if possible, then most links."""
    divisors = [[d for d in range(1, length + 1) if length % d == 0] for length in topology]
    boxes = [box for box in product(*divisors) if prod(box) == chips]
    if not boxes:
        shape = "x".join(map(str, topology))
        raise ConfigError(f"a group on {chips} chips does not tile the {shape} chips that {name} has for it")

    def merit(box: tuple[int, ...]) -> tuple[bool, int]:
        axes = [(used, whole, wraps) for used, whole, wraps in zip(box, topology, wraparound, strict=True) if used > 1]
        return all(used == whole for used, whole, _ in axes), sum(2 if w and u == t else 1 for u, t, w in axes)

    return max(boxes, key=merit)
