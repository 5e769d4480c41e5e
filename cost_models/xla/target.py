"""Target: what a compiler does for a kind of device, as data. Nothing else in the cost models asks which kind it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from cost_models.errors import HardwareError
from cost_models.workload.workload import Kind


@dataclass(frozen=True)
class Target:
    """How programs become kernels and buffers.

    fusible             kinds whose results need not reach memory
    products_compute    products take short elementwise chains of one operand in (XLA's Triton products)
    absorbing           kinds that take fusible producers in, though their own results are written
    epilogues           what an elementwise operation makes of a product's result is written instead of that result
    wide_products_apart  products of float32 write it where only products read it again, which then add the bias and
                        round (`epilogues.py`), and where a softmax follows (`row_maxima.py`)
    row_elements        of a row from which its maximum is taken in the kernel that finds it (`row_maxima.py`; 0: none)
    product_row_elements  the same where a product that makes the row is part of that kernel
    product_dtype       products round float32 operands to this dtype, and what only products read is kept in it
    widens              operations that a narrow dtype lacks run in float32, and what is kept of them is (`widening.py`)
    narrow              dtypes that lack all operations but those of `native`; all narrow ones lack long chains
    native              see above
    products_widen      products of narrow values run in float32, and read float32 from memory
    rounds              what runs in float32 instead of a narrow dtype is rounded after every operation all the same
    column_blocks       reductions over columns that run on fewer blocks than this leave much of the device idle: what
                        they would compute of narrow values is computed before them (0: no such thing)
    pads_unevenly       convolutions and windows add more padding at one end by themselves
    stacks_early        what loops stack up is there from the start of the program
    wide_column_blocks  the same of values in float32 that one operation makes
    chained_column_blocks  the same of values in float32 that more operations make
    cached_column_blocks  up to so many blocks chains count as such though a part of them is written, where long columns
                        in float32 take fewer bytes than `cached_column_bytes`: those of the caches of all cores
    cached_column_bytes  see above
    grouped_column_blocks  the same of narrow images whose channels are summed in groups
    copies_images       what comes from outside is copied into the layout of the convolutions that read it
    copies_kernels      weights of convolutions are copied into another layout
    adds_beside         a gradient that is added to that of a convolution's input is added by the convolution
    recomputes          readers compute what is cheap again, and a library takes reductions in (`recomputing.py`)
    lends_places        temporaries stand in the places of state that waits for its new value (`state_places.py`)
    pools_on_padded     max-pooling that pads looks for its maxima on a padded copy
    rewrites            random words, erfc, masks and operands of products become other operations (`rewriting.py`)
    library_elements    elements from which on a library takes reductions and what is around them (0: none does)
    breadth_first       kernels run in the order in which they can start, whatever memory that takes
    keeps_long_chains   random bits and the like are computed once when several kernels read them
    keeps_long_operands  and so are narrow values that they convert, where others read these, too
    keeps_gated         products with a logistic function are kept where sums read them, in steps of half precision
    keeps_joined        and so are joined features of images in float32 whose channels are summed over short rows
    costly_to_pool      what is made with one of these primitives is written before pooling reads it
    keeps_masks         what compares values of the forward pass is kept for the backward pass where it is smaller
    weighs_traffic      a value is kept where reading its sources again would move more bytes; else where more than
                        `copies` kernels would compute it
    copies              see above
    memory_orders       kernels run in the best of the orders that XLA's memory schedulers try (`memory_order.py`)
    elementwise_in_place  an elementwise result takes the place of an operand that nobody reads afterwards (`rows.py`)
    sums_beside_choices  gradients and their new sums stand beside the old ones while loss scaling chooses
    scatters_compute    scatters take the producers of what they add in
    lodges              temporaries lie where new state will be that takes no old one's place (`state_places.py`)
    averages            sets that stand beside gradients where accumulation chooses: their average, copies of the sums
    arithmetic          bytes that could be moved in the time that an operation takes on one element, where that is
                        weighed against reading what was kept of it
    arithmetic_unpacked  what is added to that for sequences of more samples than a word has bits, where no signs are
                        packed (`packed_masks.py`)
    turns_state         products of what is in memory make gradients of kernels with more outputs than inputs the other
                        way round, and the state that they update is copied so first (`liveness.py`)
    costly              elementwise operations that are not computed twice, whatever the traffic
    writes_joined       features that are joined across the lanes of tiles are written where several operations read it
    writes_iota         constants of counting numbers are written out
    free_transposes     layouts are chosen so that transposes cost nothing
    tile_rows           elements down the second-minor dimension of a memory tile (0: no tiles)
    tile_lanes          elements across the minor dimension of a memory tile
    on_chip_bytes       room for whole values on the chip, which take none of the device's memory there (0: none)
    dot_workspace_bytes scratch of a library's matrix product
    scatters_pooling    the gradient of max-pooling is a scatter into zeros, with the position of each maximum as
                        indices
    host_apart          the host prepares the next micro-step while the device works
    unseen              a share of the known temporaries that is added to them: what is missing ends a training, what is
                        too much does not
    uncertainty         where the compiler's figure may lie (below, above), as shares of the temporaries; what is on the
                        chip comes on top of it (`memory.py`): what was seen when whole training steps were compiled
                        with jax 0.10.2 (`studies/memory_vs_compiler`). On GPUs 238 of 268 compiled steps lie in it or
                        in the two below, 170 of these of models that are none of that study's. What is kept around
                        convolutions is known least: rules that are missing keep values, so most is above
    plain_uncertainty   the same of steps without convolutions and loops, where it is another
    loop_uncertainty    the same of steps with loops: XLA orders and shares these less predictably
    """

    name: str
    fusible: frozenset[Kind]
    absorbing: frozenset[Kind]
    products_compute: bool
    epilogues: bool
    wide_products_apart: bool
    row_elements: int
    product_row_elements: int
    product_dtype: str | None
    widens: bool
    narrow: frozenset[str]
    native: frozenset[str]
    products_widen: bool
    rounds: bool
    column_blocks: int
    wide_column_blocks: int
    chained_column_blocks: int
    cached_column_blocks: int
    cached_column_bytes: int
    grouped_column_blocks: int
    copies_images: bool
    copies_kernels: bool
    adds_beside: bool
    stacks_early: bool
    pads_unevenly: bool
    recomputes: bool
    lends_places: bool
    pools_on_padded: bool
    rewrites: bool
    library_elements: int
    breadth_first: bool
    keeps_long_chains: bool
    keeps_long_operands: bool
    keeps_gated: bool
    keeps_joined: bool
    costly_to_pool: frozenset[str]
    keeps_masks: bool
    weighs_traffic: bool
    copies: int
    memory_orders: bool
    elementwise_in_place: bool
    sums_beside_choices: bool
    scatters_compute: bool
    lodges: bool
    averages: int
    unseen: float
    arithmetic: tuple[tuple[str, float], ...]
    arithmetic_unpacked: tuple[tuple[str, float], ...]
    turns_state: bool
    costly: frozenset[str]
    writes_joined: bool
    writes_iota: bool
    free_transposes: bool
    tile_rows: int
    tile_lanes: int
    on_chip_bytes: int
    dot_workspace_bytes: int
    scatters_pooling: bool
    host_apart: bool
    uncertainty: tuple[float, float]
    plain_uncertainty: tuple[float, float] | None = None
    loop_uncertainty: tuple[float, float] | None = None


_FUSIBLE = frozenset({Kind.ELEMENTWISE, Kind.EXPENSIVE, Kind.RANDOM, Kind.BROADCAST, Kind.MOVE, Kind.GATHER})

_COSTLY = frozenset(
    {"div", "exp", "exp2", "expm1", "log", "log1p", "logistic", "pow", "rem", "rsqrt", "sqrt", "cbrt", "tanh", "erf"}
    | {"sin", "cos", "tan", "atan2", "sinh", "cosh"}
)

_NATIVE_ON_GPU = frozenset(
    {"max", "min", "abs", "neg", "exp", "log", "select_n", "reduce_max", "reduce_min", "argmax", "argmin"}
    | {"eq", "ne", "lt", "le", "gt", "ge", "eq_to", "lt_to", "le_to"}
)
"""What XLA leaves in bfloat16 on GPUs before Hopper, as its optimised text shows (jax 0.10.2, A100)."""

_CUBLAS_BYTES = 4 * 2**20  # as XLA gives it before Hopper

_GPU = Target(
    name="gpu",
    fusible=_FUSIBLE,
    absorbing=frozenset({Kind.REDUCE, Kind.POOL, Kind.POOL_GRADIENT}),
    products_compute=True,
    epilogues=False,
    wide_products_apart=False,
    row_elements=0,
    product_row_elements=0,
    product_dtype=None,
    widens=True,
    narrow=frozenset({"bfloat16"}),
    native=_NATIVE_ON_GPU,
    products_widen=False,
    rounds=False,
    column_blocks=288,  # A100: 256 were computed apart, 317 were not (jax 0.10.2)
    wide_column_blocks=40,  # A100: 32 were computed apart, 48 were not
    chained_column_blocks=108,  # its cores: 96 were computed apart, 128 were not
    cached_column_blocks=80,  # A100: 80 were computed apart, 96 were not
    cached_column_bytes=108 * 192 * 2**10,  # A100: columns of 21.0 MB were computed apart, of 25.2 MB they were not
    grouped_column_blocks=160,  # A100: 128 were computed apart, 192 were not
    stacks_early=True,
    pads_unevenly=False,  # cuDNN pads both ends alike
    copies_images=False,
    copies_kernels=True,  # cuDNN takes them with output channels first
    adds_beside=True,
    recomputes=False,
    lends_places=False,
    pools_on_padded=False,
    rewrites=False,
    library_elements=0,
    breadth_first=False,
    keeps_long_chains=True,
    keeps_long_operands=True,
    keeps_gated=True,
    keeps_joined=True,
    costly_to_pool=frozenset(),
    keeps_masks=True,
    weighs_traffic=True,
    copies=0,
    memory_orders=True,
    elementwise_in_place=True,
    sums_beside_choices=True,
    scatters_compute=True,
    lodges=True,
    averages=1,
    unseen=0.0125,  # compiled steps hold 0.8% more on the mean of 82 (A100), 1.0% of 16 (H100), 0.0% on both medians
    arithmetic=(),
    arithmetic_unpacked=(),
    turns_state=False,
    costly=frozenset(),
    writes_joined=False,
    writes_iota=False,
    free_transposes=True,
    tile_rows=0,
    tile_lanes=0,
    on_chip_bytes=0,
    dot_workspace_bytes=0,  # Triton's products need none
    scatters_pooling=True,
    host_apart=True,
    uncertainty=(0.06, 0.14),
    plain_uncertainty=(0.1, 0.09),
    loop_uncertainty=(0.1, 0.1),
)
_TPU = Target(
    name="tpu",
    fusible=_FUSIBLE,
    absorbing=frozenset({Kind.REDUCE, Kind.DOT, Kind.CONV}),
    products_compute=False,
    epilogues=True,
    wide_products_apart=False,
    row_elements=8192,  # 8,192 were, 10,000 were not (jax 0.10.2)
    product_row_elements=2048,  # 2,048 were, 4,096 were not
    product_dtype="bfloat16",
    widens=False,
    narrow=frozenset(),
    native=frozenset(),
    products_widen=False,
    rounds=False,
    column_blocks=0,
    wide_column_blocks=0,
    chained_column_blocks=0,
    cached_column_blocks=0,
    cached_column_bytes=0,
    grouped_column_blocks=0,
    copies_images=True,
    copies_kernels=False,
    adds_beside=False,
    stacks_early=False,
    pads_unevenly=True,
    recomputes=False,
    lends_places=False,
    pools_on_padded=False,
    rewrites=False,
    library_elements=0,
    breadth_first=False,
    keeps_long_chains=False,
    keeps_long_operands=False,
    keeps_gated=False,
    keeps_joined=False,
    costly_to_pool=frozenset(),
    keeps_masks=False,
    weighs_traffic=True,
    copies=0,
    memory_orders=False,
    elementwise_in_place=False,
    sums_beside_choices=False,
    scatters_compute=False,
    lodges=False,
    averages=0,
    unseen=0.0,
    arithmetic=(),
    arithmetic_unpacked=(
        ("erfc", 6.0),
    ),  # v5e: exact GELU's factor is kept in bfloat16 (more than 4), not in float32 (8)
    turns_state=False,
    costly=frozenset(),
    writes_joined=True,
    writes_iota=False,
    free_transposes=True,
    tile_rows=8,
    tile_lanes=128,
    on_chip_bytes=112 * 2**20,
    dot_workspace_bytes=0,
    scatters_pooling=False,
    host_apart=True,
    uncertainty=(0.08, 0.08),
)
_V4_ARITHMETIC = (("div", 3.0), ("exp", 2.5), ("expm1", 2.5), ("logistic", 5.5), ("tanh", 5.5), ("erfc", 12.0))
_TPU_V4 = replace(_TPU, name="tpu v4", arithmetic=_V4_ARITHMETIC)
"""Between bounds that this compiler's choices give (jax 0.10.2). It keeps attention's probabilities in bfloat16 (div:
more than 2), silu (exp and div: more than 4), exp (more than 2) and the factor of exact GELU; it computes again a
softmax in bfloat16 (div: less than 4), elu (expm1: less than 4), softplus, and the gradients of logits (exp: less than
6) and of attention's scores (div: less than 6). Of the same steps v5e computes all but exp, tanh and logistic again."""
_ERFC = (("erfc", 12.0),)
"""The factor of exact GELU is kept, as on v4; silu, elu, softplus and softmax are computed again, as on v5e."""
_TPU_V5P = replace(_TPU, name="tpu v5p", arithmetic=_ERFC)
_TPU_V6E = replace(_TPU_V5P, name="tpu v6e", wide_products_apart=True, turns_state=True)
_TPU_V7X = replace(_TPU_V6E, name="tpu v7x", turns_state=False)
_CPU = replace(
    _GPU,
    name="cpu",
    recomputes=True,
    lends_places=True,
    pools_on_padded=True,
    rewrites=True,
    free_transposes=False,
    library_elements=4096,  # of an operand or the result (IsInstructionPreferredByYnn)
    breadth_first=True,
    fusible=_FUSIBLE - {Kind.RANDOM},  # drawn in a loop that writes its words (jax's threefry rolls its rounds there)
    native=frozenset(),
    products_widen=True,
    rounds=True,
    column_blocks=0,
    wide_column_blocks=0,
    chained_column_blocks=0,
    cached_column_blocks=0,
    cached_column_bytes=0,
    grouped_column_blocks=0,
    copies_kernels=False,
    adds_beside=False,
    absorbing=frozenset({Kind.REDUCE}),
    products_compute=False,
    pads_unevenly=True,
    weighs_traffic=False,
    copies=2,
    memory_orders=False,
    elementwise_in_place=False,
    sums_beside_choices=False,
    scatters_compute=False,
    lodges=False,
    averages=2,
    unseen=0.0,
    costly=_COSTLY,
    keeps_long_operands=False,
    keeps_gated=False,
    keeps_joined=False,
    writes_iota=True,
    dot_workspace_bytes=0,
    scatters_pooling=True,
    host_apart=False,
    uncertainty=(0.1, 0.1),
    plain_uncertainty=None,
    loop_uncertainty=None,
)
_BY_CAPABILITY = (
    (
        9.0,
        replace(
            _GPU,
            name="gpu hopper",
            native=_NATIVE_ON_GPU | {"add", "add_any", "sub", "mul", "integer_pow", "square"},
            wide_column_blocks=66,  # half its cores: 64 were computed apart, 128 were not
            chained_column_blocks=132,  # its cores
            cached_column_bytes=132 * 256 * 2**10,
            costly_to_pool=frozenset({"expm1"}),  # elu was kept in bfloat16, on an A100 it was not
        ),
    ),
    (8.0, _GPU),
    (0.0, replace(_GPU, name="gpu volta", products_compute=False, dot_workspace_bytes=_CUBLAS_BYTES)),
)
"""From the newest on: Hopper has arithmetic in bfloat16, and before Ampere products are the library's, which computes
nothing of its operands and wants scratch."""
_ON_ANOTHER_BACKEND = (0.5, 1.0)
"""No compiler's figures were held against these: half as much or twice as much of the temporaries is possible."""
_BY_CHIP: Mapping[str, Target] = {
    "tpu-v4": _TPU_V4,
    "tpu-v5p": _TPU_V5P,
    "tpu-v6e": _TPU_V6E,
    "tpu-v7x": _TPU_V7X,
}
"""Chips whose compiler differs from that of their kind."""
_TARGETS: Mapping[str, Target] = {"gpu": _GPU, "tpu": _TPU, "cpu": _CPU}


_EAGER: Mapping[str, Any] = {
    "widens": False,
    "copies_images": False,
    "copies_kernels": False,
    "adds_beside": False,
    "stacks_early": False,
    "recomputes": False,
    "lends_places": False,
    "pools_on_padded": False,
    "rewrites": False,
    "rounds": False,
    "library_elements": 0,
    "breadth_first": False,
    "fusible": frozenset(),
    "absorbing": frozenset(),
    "memory_orders": False,
    "keeps_long_operands": False,
    "keeps_gated": False,
    "keeps_joined": False,
    "elementwise_in_place": False,
    "sums_beside_choices": False,
    "scatters_compute": False,
    "lodges": False,
    "averages": 0,
    "unseen": 0.0,
    "products_compute": False,
    "epilogues": False,
    "wide_products_apart": False,
    "row_elements": 0,
    "product_dtype": None,
    "free_transposes": False,
    "on_chip_bytes": 0,
}
"""Of whoever runs operations one by one: nothing is fused, moved, or made again."""


def target_of(
    chip_kind: str,
    jit_compile: bool = True,
    backend: str = "jax",
    compute_capability: float | None = None,
    chip: str = "",
) -> Target:
    """What compiles for this kind of chip; without a compiler every operation is a kernel that writes its result.

    backend             workloads are traced on JAX: what another backend keeps alive of the same step is less certain
    compute_capability  of an NVIDIA chip; None is taken for an A100's
    chip                its name in the catalogue; one that is not told apart is taken for the usual one of its kind

    HardwareError for a kind that nobody described.
    """
    if chip_kind not in _TARGETS:
        known = ", ".join(_TARGETS)
        raise HardwareError(f"no compiler rules for a {chip_kind!r} device; known kinds are {known}")
    target = _BY_CHIP.get(chip, _TARGETS[chip_kind])
    if chip_kind == "gpu" and compute_capability is not None:
        target = next(made for least, made in _BY_CAPABILITY if compute_capability >= least)
    if backend != "jax":
        target = replace(
            target,
            name=f"{target.name} {backend}",
            uncertainty=_ON_ANOTHER_BACKEND,
            plain_uncertainty=None,
            loop_uncertainty=None,
        )
    if jit_compile:
        return target
    return replace(target, name=f"{target.name} eager", **_EAGER)


def library_target(chip_kind: str) -> Target:
    """What becomes of a step that runs by a library's kernels, one a layer and pass, with no compiler."""
    compiled = target_of(chip_kind)
    return replace(compiled, name=f"{compiled.name} library", adds_beside=False)
