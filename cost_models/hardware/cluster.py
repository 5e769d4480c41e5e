"""Chip, Link, Cluster: hardware as data. Published hardware lives in `devices/*.yaml` and is read by `catalogue.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from math import prod
from typing import Any

from cost_models.errors import HardwareError
from cost_models.hardware.catalogue import Figure, LinkRow, Name, Row, devices_of, parse, rows
from cost_models.validation import (
    flag,
    mapping,
    memory,
    number,
    optional,
    raised_as,
    read_mapping,
    several,
    text,
    whole,
)

LINK_KINDS = ("torus", "mesh", "switch", "direct", "network", "host", "memory")
CHIP_KINDS = ("tpu", "gpu", "cpu")
MOST_DEVICES = 2**24
"""Nobody has more, and every one of their divisors is looked at."""

# What one more simulated device adds to a small collective: 2 took 0.1 ms and 8 took 0.25 to 0.45 ms on two x86-64
# cores (jax 0.10.2, 2026-11-29).
_MEETING_SECONDS = 5e-5

_CHIP_FIGURES = ("peak_flops_per_second", "memory_bytes", "memory_bytes_per_second")
_CHIP = {
    "name": text,
    "kind": text,
    "peak_flops_per_second": mapping,
    "memory_bytes": memory,
    "usable_memory_bytes": memory,
    "memory_bytes_per_second": number,
    "kernel_launch_seconds": number,
    "dispatch_seconds": number,
    "compute_capability": optional(number),
    "fresh_page_bytes_per_second": optional(number),
    "host_micro_step_seconds": optional(number),
    "host_variable_seconds": optional(number),
    "processors": optional(whole),
    "cache_bytes": optional(memory),
    "sources": mapping,
}
_AMPERE = 8.0
"""Compute capability from which NVIDIA's matrix units take TF32 and bfloat16."""
_UNKNOWN_OR_POSITIVE = ("processors", "cache_bytes", "compute_capability", "fresh_page_bytes_per_second")
_LINK_FIGURES = ("kind", "bytes_per_second", "latency_seconds")
_LINK = {
    "kind": text,
    "bytes_per_second": number,
    "latency_seconds": number,
    "source": text,
    "launch_seconds": number,
    "efficiency": number,
}
_CLUSTER = {
    "name": text,
    "chip": mapping,
    "devices": whole,
    "hosts": whole,
    "inner_link": optional(mapping),
    "outer_link": optional(mapping),
    "topology": several(whole),
    "wraparound": several(flag),
    "simulated": flag,
    "local": flag,
}


@dataclass(frozen=True)
class Chip:
    """What one JAX device offers. `None` and a missing key are "not published", never zero.

    peak_flops_per_second      by compute dtype ("float32", "bfloat16", "float16", ...), dense, of one device
    memory_bytes               what the device holds
    usable_memory_bytes        what the runtime leaves to a program (the capacity that plans are held against)
    memory_bytes_per_second    main-memory bandwidth
    kernel_launch_seconds      what a kernel costs however small it is
    dispatch_seconds           the host's work to start one compiled program
    kind                       "tpu" | "gpu" | "cpu"
    compute_capability         NVIDIA's number for what the chip can do (8.0: A100, 9.0: H100): compilers go by it
    fresh_page_bytes_per_second  how fast the kernel gives a process pages that it has not touched; None: not known, or
                               memory of a device's own
    host_micro_step_seconds    what `fit` takes for a micro-step beside the device, and host_variable_seconds for each
                               variable; None: not measured
    processors                 cores that its kernels are spread over, of a processor
    cache_bytes                what the last level of a processor's caches holds
    sources                    where each figure comes from, by its field (and dtype)

    Published figures are peaks; those of a measured machine are what it achieved, and its `sources` say so. For
    simulated devices every figure is one device's share of the processor that they have in common.
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
    """A way between devices. `bytes_per_second` is one way.

    kind     "torus" and "mesh": of ONE link to ONE neighbour of a chip (an axis has two); "mesh" closes no axis
             "direct": of the link to ONE peer, every device being wired to every other of its host
             "switch", "host" (PCIe), "network": of one device, all its ports together
             "memory": devices that are one processor's shares, and exchange through its memory
    latency_seconds  a hop or round trip; launch_seconds: what starting one collective costs, however small
    efficiency       the share of bytes_per_second that large collectives were seen to reach
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
    """The devices that one training job may use.

    devices_per_host x hosts == devices. `topology` is the torus shape of a TPU slice in chips, else ().
    `wraparound` tells for each topology axis whether it closes. `simulated` devices share one real processor.
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
        """JAX devices of one chip of the torus; 1 where there is no torus."""
        return self.devices // prod(self.topology) if self.topology else 1

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for job messages, plans and hardware files."""
        plain = asdict(self)
        plain["chip"]["peak_flops_per_second"] = dict(self.chip.peak_flops_per_second)
        plain["chip"]["sources"] = dict(self.chip.sources)
        return plain | {"topology": list(self.topology), "wraparound": list(self.wraparound)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Cluster:
        """The inverse of `to_dict`; the same as `from_mapping`."""
        return from_mapping(data)

    def summary(self) -> str:
        """One line: devices, shape, memory of one."""
        gib = self.chip.usable_memory_bytes / 2**30
        shape = f" ({'x'.join(map(str, self.topology))} chips)" if self.topology else ""
        over = f" on {self.hosts} hosts" if self.hosts > 1 else ""
        simulated = "simulated " if self.simulated else ""
        plural = "s" if self.devices > 1 else ""
        return f"{self.devices} {simulated}device{plural}{shape}{over} of {self.chip.name}, {gib:.2f} GiB usable each"


def cluster(name: str) -> Cluster:
    """The cluster that a catalogue name means.

    `tpu-<generation>-<N>` with N as Google counts, `gpu-<chip>[-x<GPUs a host>][-n<hosts>]`, or `cpu`.
    HardwareError as `catalogue.parse` says. A missing network figure is no error here: `outer_link` is then None.
    """
    found = parse(name)
    chip = _chip(found.row)
    if found.slice is None:
        return _machines(found, chip)
    part = found.slice
    return Cluster(
        name=found.canonical,
        chip=chip,
        devices=devices_of(found.row, part),
        hosts=part.hosts,
        inner_link=_link(found.row.link, kind="torus" if any(part.wraparound) else "mesh"),
        topology=part.topology,
        wraparound=part.wraparound,
    )


@dataclass(frozen=True)
class Known:
    """A row of `hardware list`. Figures are of one JAX device; `sizes` are a TPU's slices as they are named.

    float32_as     what float32 products run in by JAX's default precision, where that is not float32
    without_units  dtypes that the chip has no units for: not the same as a rate that nobody published
    """

    key: str
    kind: str
    title: str
    aliases: tuple[str, ...]
    devices_per_chip: int
    sizes: tuple[int, ...]
    memory_bytes: int
    usable_memory_bytes: int
    peak_flops_per_second: Mapping[str, float]
    memory_bytes_per_second: float
    source: str
    unverified: tuple[str, ...]
    float32_as: str | None = None
    without_units: tuple[str, ...] = ()


def known() -> list[Known]:
    """Every chip of the catalogue, one row a canonical key."""
    return [_known(row) for row in rows().values()]


def describe(name: str) -> dict[str, Any]:
    """All that the catalogue has on a name, as plain values for `hardware show`.

    `cluster` has the keys of `Cluster.to_dict`; `figures` lists value, sources, choice and doubt of every figure as
    published (of one chip, not of one device); `slices` the sizes on sale; `prices` dollars an hour with their basis.
    """
    found = parse(name)
    row = found.row
    return {
        "name": found.canonical,
        "title": row.title,
        "aliases": list(row.aliases),
        "devices_per_chip": row.devices_per_chip,
        "cluster": cluster(name).to_dict(),
        "figures": [{"figure": key, **_plain(figure)} for key, figure in row.all_figures().items()],
        "slices": [f"{row.key}-{size}" for size in row.slices],
        "slices_source": row.slices_source.describe() if row.slices_source else None,
        "prices": [
            {"basis": price.basis, "usd_per_chip_hour": price.figure.value, **_plain(price.figure)}
            for price in row.prices
        ],
    }


def from_mapping(data: Mapping[str, Any]) -> Cluster:
    """A cluster from plain values, as a hardware file has them: the keys of `Cluster.to_dict`.

    With `base: <catalogue name>` the other keys change that cluster; without it `chip` and its figures are required.
    HardwareError names an unknown or missing key, what was expected there, and a value that is no number.
    """
    if not isinstance(data, Mapping):
        raise HardwareError("a hardware description must be a mapping with the keys name, chip and devices")
    with raised_as(HardwareError):
        return _from_mapping(dict(data))


def _from_mapping(given: dict[str, Any]) -> Cluster:
    if "base" in given:
        given = _over(cluster(text(given.pop("base"), "base")).to_dict(), given)
    values = read_mapping(given, "hardware", _CLUSTER, required=("name", "chip", "devices"))
    chip = read_mapping(values["chip"], "chip", _CHIP, required=("name", "kind", *_CHIP_FIGURES))
    chip["peak_flops_per_second"] = read_mapping(chip["peak_flops_per_second"], "chip.peak_flops_per_second", number)
    chip.setdefault("usable_memory_bytes", chip["memory_bytes"])
    values["chip"] = Chip(**{"kernel_launch_seconds": 0.0, "dispatch_seconds": 0.0, **chip})
    for key in ("inner_link", "outer_link"):
        if values.get(key) is not None:
            values[key] = Link(**read_mapping(values[key], key, _LINK, required=_LINK_FIGURES))
    return Cluster(**values)


def share(whole_cluster: Cluster, devices: int, link: Link | None = None) -> Cluster:
    """One processor seen as `devices` simulated devices: each has an equal share of memory, rates and bandwidth.

    `link` is how they exchange, where that was measured; else through memory at their share of its bandwidth.
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
        latency_seconds=_MEETING_SECONDS,
        source="a device's share of the memory bandwidth; latency of meeting measured with jax 0.10.2 on two cores",
    )
    return replace(whole_cluster, chip=part, devices=devices, simulated=True, inner_link=link or through_memory)


def limited(cluster: Cluster, limit_bytes: int) -> Cluster:
    """The same devices with at most so much usable memory: simulated ones all together, else each of them."""
    chip = cluster.chip
    each = limit_bytes // cluster.devices if cluster.simulated else limit_bytes
    if each >= chip.usable_memory_bytes:
        return cluster
    sources = {**chip.sources, "usable_memory_bytes": "the limit that was asked for"}
    return replace(cluster, chip=replace(chip, usable_memory_bytes=each, sources=sources))


def _chip(row: Row) -> Chip:
    memory = int(row.figures["memory_bytes"].value) // row.devices_per_chip
    if "usable_memory_bytes_per_device" in row.figures:
        usable_figure = row.figures["usable_memory_bytes_per_device"]
        usable = int(usable_figure.value)
    else:
        usable_figure = row.figures["usable_memory_fraction"]
        usable = int(memory * usable_figure.value)
    capability = row.figures.get("compute_capability")
    sources = {f"peak_flops_per_second.{dtype}": figure.describe() for dtype, figure in row.peaks.items()}
    sources |= {key: figure.describe() for key, figure in row.figures.items()}
    return Chip(
        name=row.key,
        kind=row.kind,
        peak_flops_per_second={dtype: figure.value / row.devices_per_chip for dtype, figure in row.peaks.items()},
        memory_bytes=memory,
        usable_memory_bytes=usable,
        memory_bytes_per_second=row.figures["memory_bytes_per_second"].value / row.devices_per_chip,
        kernel_launch_seconds=row.figures["kernel_launch_seconds"].value,
        dispatch_seconds=row.figures["dispatch_seconds"].value,
        sources={**sources, "usable_memory_bytes": usable_figure.describe()},
        compute_capability=None if capability is None else capability.value,
    )


def _machines(found: Name, chip: Chip) -> Cluster:
    return Cluster(
        name=found.canonical,
        chip=chip,
        devices=found.chips_per_host * found.hosts * found.row.devices_per_chip,
        hosts=found.hosts,
        inner_link=_link(found.row.link),
        outer_link=_link(found.row.network),
    )


def _link(row: LinkRow | None, kind: str | None = None) -> Link | None:
    if row is None:
        return None
    values = {key: figure.value for key, figure in row.figures.items()}
    return Link(kind=kind or row.kind, source=row.figures["bytes_per_second"].describe(), **values)


def _known(row: Row) -> Known:
    chip = _chip(row)
    doubtful = tuple(key for key, figure in row.all_figures().items() if figure.unverified)
    return Known(
        key=row.key,
        kind=row.kind,
        title=row.title,
        aliases=row.aliases,
        devices_per_chip=row.devices_per_chip,
        sizes=tuple(row.slices),
        memory_bytes=chip.memory_bytes,
        usable_memory_bytes=chip.usable_memory_bytes,
        peak_flops_per_second=chip.peak_flops_per_second,
        memory_bytes_per_second=chip.memory_bytes_per_second,
        source=row.figures["memory_bytes"].describe(),
        unverified=doubtful,
        float32_as=_float32_as(chip),
        without_units=("bfloat16",) if chip.compute_capability and chip.compute_capability < _AMPERE else (),
    )


def _float32_as(chip: Chip) -> str | None:
    """NVIDIA's matrix units take float32 from Ampere on, as TF32; a TPU's multiply bfloat16."""
    if chip.kind == "tpu":
        return "bfloat16"
    return "TF32" if chip.compute_capability and chip.compute_capability >= _AMPERE else None


def _plain(figure: Figure) -> dict[str, Any]:
    return {
        "value": figure.value,
        "sources": list(figure.sources),
        "choice": figure.choice,
        "unverified": figure.unverified,
    }


def _over(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `changes` laid over it, mappings merged key by key."""
    merged = dict(base)
    for key, value in changes.items():
        below = merged.get(key)
        merged[key] = _over(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged


def _positive(what: str, value: float) -> None:
    if not value > 0:
        raise HardwareError(f"{what} is {value}; expected a number above zero")
