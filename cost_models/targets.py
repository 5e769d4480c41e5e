"""Target: what a compiler does for a kind of device, as data. Nothing else in the cost models asks which kind it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from cost_models.errors import HardwareError
from cost_models.workload import Kind


@dataclass(frozen=True)
class Target:
    """How programs become kernels and buffers.

    fusible             kinds whose results need not reach memory
    absorbing           kinds that take fusible producers in, though their own results are written
    epilogues           what an elementwise operation makes of a product's result is written instead of that result
    product_dtype       products round float32 operands to this dtype, and what only products read is kept in it
    keeps_long_chains   random bits and the like are computed once when several kernels read them
    weighs_traffic      a value is kept where reading its sources again would move more bytes; else where more than
                        `copies` kernels would compute it
    copies              see above
    costly              elementwise operations that are not computed twice, whatever the traffic
    writes_iota         constants of counting numbers are written out
    free_transposes     layouts are chosen so that transposes cost nothing
    tile_row_bytes      bytes down the second-minor dimension of a memory tile (0: no tiles)
    tile_lanes          elements across the minor dimension of a memory tile
    dot_workspace_bytes scratch of a library's matrix product
    reuses_operands     an elementwise result may take the place of an operand that nobody reads afterwards
    scatters_pooling    the gradient of max-pooling is a scatter into zeros, with the position of each maximum as
                        indices
    host_apart          the host prepares the next micro-step while the device works
    uncertainty         where the compiler's figure may lie (below, above), as shares of the temporaries: what was seen
                        when whole training steps of a dozen models were compiled with jax 0.10.2 (A100, TPU v5e, CPU)
    """

    name: str
    fusible: frozenset[Kind]
    absorbing: frozenset[Kind]
    epilogues: bool
    product_dtype: str | None
    keeps_long_chains: bool
    weighs_traffic: bool
    copies: int
    costly: frozenset[str]
    writes_iota: bool
    free_transposes: bool
    tile_row_bytes: int
    tile_lanes: int
    dot_workspace_bytes: int
    reuses_operands: bool
    scatters_pooling: bool
    host_apart: bool
    uncertainty: tuple[float, float]


_FUSIBLE = frozenset({Kind.ELEMENTWISE, Kind.EXPENSIVE, Kind.RANDOM, Kind.BROADCAST, Kind.MOVE, Kind.GATHER})

_COSTLY = frozenset(
    {"div", "exp", "exp2", "expm1", "log", "log1p", "logistic", "pow", "rem", "rsqrt", "sqrt", "cbrt", "tanh", "erf"}
    | {"sin", "cos", "tan", "atan2", "sinh", "cosh"}
)

_GPU = Target(
    name="gpu",
    fusible=_FUSIBLE,
    absorbing=frozenset({Kind.REDUCE, Kind.POOL, Kind.POOL_GRADIENT}),
    epilogues=False,
    product_dtype=None,
    keeps_long_chains=True,
    weighs_traffic=True,
    copies=0,
    costly=frozenset(),
    writes_iota=False,
    free_transposes=True,
    tile_row_bytes=0,
    tile_lanes=0,
    dot_workspace_bytes=4 * 2**20,  # cuBLAS before Hopper, as XLA gives it
    reuses_operands=False,
    scatters_pooling=True,
    host_apart=True,
    uncertainty=(0.1, 0.2),
)
_TPU = Target(
    name="tpu",
    fusible=_FUSIBLE,
    absorbing=frozenset({Kind.REDUCE, Kind.DOT, Kind.CONV}),
    epilogues=True,
    product_dtype="bfloat16",
    keeps_long_chains=False,
    weighs_traffic=True,
    copies=0,
    costly=frozenset(),
    writes_iota=False,
    free_transposes=True,
    tile_row_bytes=32,  # 8 rows of float32, 16 of bfloat16
    tile_lanes=128,
    dot_workspace_bytes=0,
    reuses_operands=True,
    scatters_pooling=False,
    host_apart=True,
    uncertainty=(0.25, 0.15),
)
_CPU = replace(
    _GPU,
    name="cpu",
    absorbing=frozenset({Kind.REDUCE}),
    weighs_traffic=False,
    copies=2,
    costly=_COSTLY,
    writes_iota=True,
    dot_workspace_bytes=0,
    reuses_operands=False,
    scatters_pooling=True,
    host_apart=False,
    uncertainty=(0.35, 0.6),
)
_ON_ANOTHER_BACKEND = (0.5, 1.0)
"""No compiler's figures were held against these: half as much or twice as much of the temporaries is possible."""
_TARGETS: Mapping[str, Target] = {"gpu": _GPU, "tpu": _TPU, "cpu": _CPU}


def target_of(chip_kind: str, jit_compile: bool = True, backend: str = "jax") -> Target:
    """What compiles for this kind of chip; without a compiler every operation is a kernel that writes its result.

    backend  workloads are traced on JAX: what another backend keeps alive of the same step is less certain

    HardwareError for a kind that nobody described.
    """
    if chip_kind not in _TARGETS:
        known = ", ".join(_TARGETS)
        raise HardwareError(f"no compiler rules for a {chip_kind!r} device; known kinds are {known}")
    target = _TARGETS[chip_kind]
    if backend != "jax":
        target = replace(target, name=f"{chip_kind} {backend}", uncertainty=_ON_ANOTHER_BACKEND)
    if jit_compile:
        return target
    return replace(
        target,
        name=f"{target.name} eager",
        fusible=frozenset(),
        absorbing=frozenset(),
        epilogues=False,
        product_dtype=None,
        free_transposes=False,
    )
