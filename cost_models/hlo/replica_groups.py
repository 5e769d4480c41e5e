"""Parses the replica groups of HLO collectives, and finds the mesh axes along which they run.

Devices are numbered row-major over the mesh's axes in the order given, as `jax.sharding.Mesh` and XLA number them.
Forms, from openxla/xla `hlo/ir/replica_group.cc` and `hlo/ir/mesh_and_axis.cc`:

    {{0,1},{2,3}}                      explicit; {} is one group of all devices
    [2,4]<=[8], [4,2]<=[2,4]T(1,0)     iota, reshaped, transposed, and split into 2 groups of 4
    mesh['a'=2,'b'=4] {'b'}            along axes of a mesh that the compiler named; 'b':(2)2 is a part of an axis, and
                                       `, device_ids=([4,2]T(1,0))` after the axes gives another order of devices
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import prod

import numpy as np
import numpy.typing as npt

from cost_models.errors import WorkloadError
from cost_models.hlo.shapes import numbers, split

Groups = tuple[tuple[int, ...], ...]

_IOTA = re.compile(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?$")
_MESH = re.compile(r"@?mesh\[(?P<axes>[^\]]*)\](?:, device_ids=\((?P<ids>.*)\))?\s*\{(?P<along>[^}]*)\}$", re.DOTALL)
_AXIS = re.compile(r"['\"]?(?P<name>[\w.\-]+)['\"]?=(?P<size>\d+)")
_ALONG = re.compile(r"['\"]?(?P<name>[\w.\-]+)['\"]?(?::\((?P<before>\d+)\)(?P<size>\d+))?$")


@dataclass(frozen=True, slots=True)
class Line:
    """The mesh axes of a collective: "data", "data,model", or the size of its groups where no axis matches.

    stride  distance in device order between neighbours of a group, as for `parallel/collectives.py`
    """

    axis: str
    devices: int
    stride: int


def groups_of(text: str, devices: int) -> Groups:
    """Return the groups of `replica_groups=...` among `devices`. WorkloadError for an unknown form."""
    text = text.strip()
    if iota := _IOTA.match(text):
        return _counted(*(numbers(part or "") for part in iota.groups()))
    if mesh := _MESH.match(text):
        return _along(mesh["axes"], mesh["ids"], mesh["along"])
    if not text.startswith("{"):
        raise WorkloadError(f"replica_groups={text[:80]} has a form that this version cannot read")
    explicit = tuple(numbers(group) for group in re.findall(r"\{([\d,\s]+)\}", text[1:-1]))
    return explicit or (tuple(range(devices)),)


def line_of(groups: Groups, axes: Mapping[str, int]) -> Line:
    """Return the mesh axes along which exactly these groups run."""
    wanted = {frozenset(group) for group in groups}
    for names in _subsets(axes):
        if wanted == set(map(frozenset, _lines(axes, names))):
            return _line(axes, names)
    first = groups[0]
    return Line(str(len(first)), len(first), max(1, first[1] - first[0]) if len(first) > 1 else 1)


def line_of_pairs(pairs: Sequence[tuple[int, int]], axes: Mapping[str, int]) -> Line:
    """Return the fewest mesh axes that contain these (source, target) pairs."""
    for names in _subsets(axes):
        place = {device: number for number, group in enumerate(_lines(axes, names)) for device in group}
        if all(place.get(source, -1) == place.get(target, -2) for source, target in pairs):
            return _line(axes, names)
    devices = len({device for pair in pairs for device in pair})
    return Line(str(devices), devices, 1)


def pairs_of(text: str) -> tuple[tuple[int, int], ...]:
    """Return the pairs of `source_target_pairs=...`."""
    flat = numbers(text)
    return tuple(zip(flat[::2], flat[1::2], strict=False))


def _subsets(axes: Mapping[str, int]) -> list[tuple[str, ...]]:
    """Return the subsets of axes longer than one device, small subsets first, each in the mesh's order."""
    long = [name for name, size in axes.items() if size > 1]
    return [names for count in range(1, len(long) + 1) for names in combinations(long, count)]


def _lines(axes: Mapping[str, int], names: Sequence[str]) -> Groups:
    order = list(axes)
    along = [order.index(name) for name in names]
    across = [place for place in range(len(order)) if place not in along]
    grid = np.arange(prod(axes.values())).reshape([*axes.values()]).transpose([*across, *along])
    return _rows(grid.reshape(-1, prod(axes[name] for name in names)))


def _line(axes: Mapping[str, int], names: Sequence[str]) -> Line:
    order = list(axes)
    stride = prod(axes[name] for name in order[order.index(names[-1]) + 1 :])
    return Line(",".join(names), prod(axes[name] for name in names), stride)


def _counted(shape: tuple[int, ...], reshaped: tuple[int, ...], order: tuple[int, ...]) -> Groups:
    try:
        grid = np.arange(prod(reshaped)).reshape(reshaped)
        return _rows((grid.transpose(order) if order else grid).reshape(shape).reshape(shape[0], -1))
    except ValueError:
        raise WorkloadError(f"replica_groups={list(shape)}<={list(reshaped)} does not add up") from None


def _along(axes: str, ids: str | None, along: str) -> Groups:
    """Return the groups along axes of the compiler's mesh; a part of an axis splits that axis in three."""
    sizes = {match["name"]: int(match["size"]) for match in _AXIS.finditer(axes)}
    parts: dict[str, list[tuple[int, int]]] = {name: [] for name in sizes}
    order: list[tuple[str, int]] = []
    for item in split(along):
        match = _ALONG.match(item.strip())
        if match is None or match["name"] not in sizes:
            raise WorkloadError(f"replica_groups along {item.strip()!r}, which is no axis of mesh[{axes}]")
        whole = sizes[match["name"]]
        before, size = (int(match["before"]), int(match["size"])) if match["size"] else (1, whole)
        parts[match["name"]].append((before, size))
        order.append((match["name"], before))
    dims: list[int] = []
    place: dict[tuple[str, int], int] = {}
    for name, whole in sizes.items():
        done = 1
        for before, size in sorted(parts[name]):
            dims.append(before // done)
            place[name, before] = len(dims)
            dims.append(size)
            done = before * size
        dims.append(whole // done)
    grid = _device_ids(ids, prod(sizes.values())).reshape(dims)
    chosen = [place[key] for key in order]
    others = [axis for axis in range(len(dims)) if axis not in chosen]
    return _rows(grid.transpose([*others, *chosen]).reshape(-1, prod(dims[axis] for axis in chosen)))


def _device_ids(text: str | None, devices: int) -> npt.NDArray[np.int64]:
    """Return the compiler's order of devices: an iota, `[2,4]T(1,0)`, or a list."""
    if text is None:
        return np.arange(devices)
    counted = re.match(r"\[([\d,]+)\](?:<=\[([\d,]+)\])?T\(([\d,]+)\)$", text.strip())
    if counted:
        grid = np.arange(devices).reshape(numbers(counted[2] or counted[1]))
        return grid.transpose(numbers(counted[3])).reshape(-1)
    listed = numbers(text)
    if sorted(listed) != list(range(devices)):
        raise WorkloadError(f"device_ids=({text[:80]}) of replica_groups do not number {devices} devices")
    return np.array(listed)


def _rows(grid: npt.NDArray[np.int64]) -> Groups:
    return tuple(tuple(int(device) for device in row) for row in grid)
