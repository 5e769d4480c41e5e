"""`Profile`: the rules and numbers by which one compiler turns workloads into kernels and buffers.

The pipeline, fusion, scheduling and buffer assignment walk these lists. `profiles/` has one profile a kind of device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import Any

from cost_models.workload.workload import Kind, Workload
from cost_models.xla.rules import Rule, registered

_LAST = "priority-fusion", "list-scheduler"


@dataclass(frozen=True)
class Uncertainty:
    """The interval around an estimate that contains the compiler's figure, as shares of the temporaries (below, above).

    loops and plain apply to steps with loops and to steps without convolutions; None: as for convolutions.
    """

    convolutions: tuple[float, float]
    plain: tuple[float, float] | None = None
    loops: tuple[float, float] | None = None


@dataclass(frozen=True)
class Profile:
    """The rules and numbers by which one compiler turns workloads into kernels and buffers.

    passes            rewrites of the workload before fusion, in order
    fusion            the policy that names the kernels: (workload, ops, outputs, profile, batch) -> kernels
    materialized      what is written to memory whatever it costs: (workload, graph, batch) -> tensors
    fusion_rules      rules that the policy looks up by name
    scheduler         orders of kernels to choose from: (workload, kernels, at once, profile, batch) -> orders
    buffer_rules      rules that buffer assignment looks up by name
    fusible           kinds of operations whose results need not be written to memory
    absorbing         kinds that compute fusible operands themselves, but write their own results
    free_moves        primitives that cost nothing: transposes that layout assignment removes, padding that only
                      convolutions and pooling read
    product_dtype     the dtype to which products round float32 operands (None: they do not)
    narrow            dtypes in which only the primitives of `native` run, everything else runs in float32
    native            see above
    tile_rows         elements down the second-minor dimension of a memory tile (0: no tiles)
    tile_lanes        elements across the minor dimension of a memory tile
    host_apart        the host prepares the next micro-step while the device works
    unseen            a share of the known temporaries that is added to them, because an underestimate ends a training
    uncertainty       the interval around the estimate
    """

    name: str
    fusion: Rule
    scheduler: Rule
    uncertainty: Uncertainty
    passes: tuple[Rule, ...] = ()
    materialized: tuple[Rule, ...] = ()
    fusion_rules: tuple[Rule, ...] = ()
    buffer_rules: tuple[Rule, ...] = ()
    fusible: frozenset[Kind] = frozenset()
    absorbing: frozenset[Kind] = frozenset()
    free_moves: frozenset[str] = frozenset()
    product_dtype: str | None = None
    narrow: frozenset[str] = frozenset()
    native: frozenset[str] = frozenset()
    tile_rows: int = 0
    tile_lanes: int = 0
    host_apart: bool = True
    unseen: float = 0.0

    @cached_property
    def rules(self) -> Mapping[str, Rule]:
        """Every rule of the profile by name."""
        listed = (*self.materialized, *self.fusion_rules, *self.passes, *self.buffer_rules)
        return {one.name: one for one in (self.fusion, self.scheduler, *listed)}

    def __contains__(self, name: str) -> bool:
        return name in self.rules

    def setting(self, name: str, key: str, default: Any = 0) -> Any:
        """Return what the profile binds for a rule, the default if the rule is off."""
        return dict(self.rules[name].settings).get(key, default) if name in self.rules else default

    @property
    def on_chip_bytes(self) -> int:
        """Bytes of memory on the chip in which whole values stay (0: there is none)."""
        return int(self.setting("vmem", "room"))

    def without(self, name: str) -> Profile:
        """Return the profile with a rule switched off; a profile that does not list the rule stays as it is.

        Program order and greedy lists take the place of another scheduler, priority fusion that of another policy.

        ValueError for a name that no rule has, and for the last scheduler or policy.
        """
        if name not in registered():
            raise ValueError(f"no rule is named {name!r}; known rules are {', '.join(sorted(registered()))}")
        if name in _LAST:
            raise ValueError(f"{name!r} cannot be switched off: every profile needs a fusion policy and a scheduler")
        if name == self.fusion.name:
            return replace(self, fusion=registered()[_LAST[0]])
        if name == self.scheduler.name:
            return replace(self, scheduler=registered()[_LAST[1]])
        return self.only(lambda one: one.name != name)

    def only(self, wanted: Callable[[Rule], bool]) -> Profile:
        """Return the profile with those of its listed rules that are wanted."""
        return replace(
            self,
            passes=tuple(filter(wanted, self.passes)),
            materialized=tuple(filter(wanted, self.materialized)),
            fusion_rules=tuple(filter(wanted, self.fusion_rules)),
            buffer_rules=tuple(filter(wanted, self.buffer_rules)),
        )

    @cached_property
    def _hash(self) -> int:
        return hash(tuple(getattr(self, item.name) for item in fields(self)))

    def __hash__(self) -> int:
        return self._hash


@lru_cache(maxsize=4096)
def structure_batch(workload: Workload, profile: Profile, batch: int) -> int:
    """Return the batch nearest to that of the trace at which every rule decides as it does at `batch`.

    Kernels are found for that batch.
    """
    for one in profile.rules.values():
        found = None if one.structure_batch is None else one.structure_batch(workload, profile, batch)
        if found is not None:
            return found
    return workload.local_batch
