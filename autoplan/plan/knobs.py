"""`KNOBS`, the table of knobs: a new knob needs a row, from which parsing, schema, study, reports and export follow.

Plan schema, `--fix` and `--only`, study, explanation, rescue, pruning, export, checks, known issues and the runtime
read this table. A row says how a knob is read, written and named. The field of TrainConfig says what the knob affects
(`cost_models.config.Affects`), `tuning.space.legal_values` which values are legal when, and `runtime.apply` how a
value is applied.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum, StrEnum, auto
from typing import Any, Literal

from cost_models.config import Affects, AttentionMode, Precision, RematMode, TrainConfig


class Tuning(Enum):
    """How tuning treats a knob.

    FREE            `--only` can name it, and the search changes it
    LAST_RESORT     the search changes it only where nothing fits without
    CHOSEN_BEFORE   chosen before the configurations of one search are listed
    FIXED           keeps the script's own value
    DERIVED         follows from other knobs
    """

    FREE = auto()
    LAST_RESORT = auto()
    CHOSEN_BEFORE = auto()
    FIXED = auto()
    DERIVED = auto()


class Tradeoff(IntEnum):
    """The cost to the user of changing a knob, the least first."""

    ACCUMULATION = 0
    PRECISION = 1
    REMAT = 2
    MESH = 3
    PROGRAM = 4
    TRAINING = 5


@dataclass(frozen=True)
class ValueKind:
    """A type of values: how they are read, checked and compared.

    type       the annotation in the schema of plans, with pydantic's `constraints`
    parse      reads the text of `--fix`; ValueError for other text
    expected   what `parse` expects, in words
    amount     how large a change from one value to another is
    example    a value, as text
    """

    type: Any
    parse: Callable[[str], Any]
    expected: str
    amount: Callable[[Any, Any], float]
    example: str
    constraints: Mapping[str, Any] = field(default_factory=dict, hash=False)


def whole_number(least: int = 1) -> ValueKind:
    """Return the kind of whole numbers from `least` on."""

    def parse(text: str) -> int:
        if int(text) < least:
            raise ValueError(text)
        return int(text)

    return ValueKind(int, parse, f"a whole number of at least {least}", octaves, str(8 * least), {"ge": least})


def choice(members: type[StrEnum], *, never_set: Iterable[StrEnum] = ()) -> ValueKind:
    """Return the kind of an enumeration's members. `--fix` cannot set those in `never_set`."""
    allowed = [member for member in members if member not in never_set]

    def parse(text: str) -> StrEnum:
        member = members(text)
        if member not in allowed:
            raise ValueError(text)
        return member

    def amount(own: Any, other: Any) -> float:
        return 0.0 if own == other else 1.0 + list(members).index(members(other))

    return ValueKind(members, parse, "one of " + ", ".join(allowed), amount, allowed[0].value)


def octaves(one: float, other: float) -> float:
    """Return the number of doublings between two numbers."""
    return abs(math.log2(one / other))


def _flag(text: str) -> bool:
    known = {"true": True, "on": True, "yes": True, "false": False, "off": False, "no": False}
    if text.lower() not in known:
        raise ValueError(text)
    return known[text.lower()]


def _differs(one: Any, other: Any) -> float:
    return float(one != other)


FLAG = ValueKind(bool, _flag, "true or false", _differs, "true")
BACKEND = ValueKind(Literal["jax", "tensorflow", "torch"], str, "one of jax, tensorflow, torch", _differs, "jax")


@dataclass(frozen=True)
class Knob:
    """One row of the table.

    path              keys in a plan: a field of TrainConfig, or a field and its part
    kind              how values are read and compared
    description       what the schema of plans says
    tuning            how tuning treats it
    tradeoff          what changing it gives up; None where another knob's row says it
    name              its flat name, in conditions of known issues and in studies; "": the last key of the path
    label             its name in lists of changes; "": as `--fix` spells it
    attribute         the attribute that holds a part, where it is not the key
    aliases           further spellings for `--fix`
    in_every_plan     whether plans of every version have the key; others may lack it, and then the default holds
    slower_because    value -> why a configuration with it is not tried where its estimate is slower than that of
                      another value and all else is equal. Empty: estimates do not decide
    compile_argument  whether it is an argument of `model.compile`
    keras_statement   the statement, with `{value}`, that sets it before the model is built; "": export has its own.
                      A mapping has the statement of each value, for a knob that stays as the script has it
    """

    path: tuple[str, ...]
    kind: ValueKind
    description: str = ""
    tuning: Tuning = Tuning.FREE
    tradeoff: Tradeoff | None = Tradeoff.PROGRAM
    name: str = ""
    label: str = ""
    attribute: str = ""
    aliases: tuple[str, ...] = ()
    in_every_plan: bool = False
    slower_because: Mapping[Any, str] = field(default_factory=dict, hash=False)
    compile_argument: bool = False
    keras_statement: str | Mapping[Any, str] = field(default="", hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name or self.path[-1])
        object.__setattr__(self, "attribute", self.attribute or self.path[-1])
        object.__setattr__(self, "label", self.label or self.spelling)

    @property
    def field(self) -> str:
        """The field of TrainConfig that holds the knob; `--only` names fields."""
        return self.path[0]

    @property
    def spelling(self) -> str:
        """The key as `--fix` takes it: `mesh.data`."""
        return ".".join(self.path)

    @property
    def affects(self) -> Affects:
        """The things that change with the knob."""
        return TrainConfig.affects(self.field)

    def value(self, config: TrainConfig) -> Any:
        """Return its value in a configuration, as plain text or number."""
        found = getattr(config, self.field)
        if len(self.path) > 1:
            found = getattr(found, self.attribute)
        return found.value if isinstance(found, StrEnum) else found

    def statement(self, config: TrainConfig, own: TrainConfig) -> str:
        """Return the statement that sets the value of a configuration before the model is built; "" for none.

        own   the script's own configuration, from which a knob with a statement for each value may not differ
        """
        value = self.value(config)
        if isinstance(self.keras_statement, str):
            return self.keras_statement.format(value=value) if self.can_be_set(config) else ""
        same = value == self.value(own) == TrainConfig.default(self.field)
        return "" if same else self.keras_statement.get(value, "")

    def can_be_set(self, config: TrainConfig) -> bool:
        """Return whether the value in a configuration can be set by name."""
        try:
            self.kind.parse(formatted(self.value(config)))
        except ValueError:
            return False
        return True

    def set(self, config: TrainConfig, value: Any) -> TrainConfig:
        """Return the configuration with another value. Parts of the batch and the mesh change only together."""
        if isinstance(self.kind.type, type) and issubclass(self.kind.type, StrEnum):
            value = self.kind.type(value)
        if len(self.path) > 1:
            value = replace(getattr(config, self.field), **{self.attribute: value})
        return config.with_(**{self.field: value})


def formatted(value: Any) -> str:
    """Return a value as `--fix` takes it and as tables show it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


KNOBS: tuple[Knob, ...] = (
    Knob(("backend",), BACKEND, "the Keras backend", tuning=Tuning.CHOSEN_BEFORE, in_every_plan=True),
    Knob(
        ("precision",),
        choice(Precision, never_set=[Precision.OTHER]),
        "a Keras dtype policy",
        tradeoff=Tradeoff.PRECISION,
        in_every_plan=True,
        keras_statement='keras.config.set_dtype_policy("{value}")',
    ),
    Knob(
        ("batch", "local"),
        whole_number(),
        "samples on one device in one micro-step",
        tuning=Tuning.DERIVED,
        tradeoff=None,
    ),
    Knob(
        ("batch", "global"),
        whole_number(),
        "samples per micro-step over all devices, as fit's batch_size: local x mesh.data",
        tradeoff=None,
        label="global batch",
        attribute="global_size",
        aliases=("batch",),
        in_every_plan=True,
    ),
    Knob(
        ("batch", "accumulation"),
        whole_number(),
        "micro-steps per update",
        tradeoff=Tradeoff.ACCUMULATION,
        label="accumulation",
        aliases=("accumulation",),
        in_every_plan=True,
    ),
    Knob(
        ("batch", "effective"),
        whole_number(),
        "samples per update: global x accumulation",
        tuning=Tuning.DERIVED,
        tradeoff=Tradeoff.TRAINING,
    ),
    Knob(
        ("mesh", "data"),
        whole_number(),
        "devices over which the batch is split",
        tradeoff=Tradeoff.MESH,
        label="mesh data",
        in_every_plan=True,
    ),
    Knob(
        ("mesh", "model"),
        whole_number(),
        "devices over which weights are split",
        tuning=Tuning.FIXED,
        tradeoff=Tradeoff.MESH,
        in_every_plan=True,
    ),
    Knob(
        ("layout", "shard_state"),
        FLAG,
        "weights, gradients and optimizer state are split over the data axis",
        tuning=Tuning.LAST_RESORT,
        tradeoff=Tradeoff.MESH,
        in_every_plan=True,
    ),
    Knob(
        ("remat", "mode"),
        choice(RematMode),
        "rematerialization: which activations are computed again instead of stored",
        tradeoff=Tradeoff.REMAT,
        name="remat",
        label="remat",
        aliases=("remat",),
        in_every_plan=True,
    ),
    Knob(
        ("attention",),
        choice(AttentionMode),
        "whether Keras may compute attention with one fused kernel, or keeps scores in memory",
        keras_statement={
            "auto": "keras.config.enable_flash_attention()  # and remove your own disable_flash_attention()",
            "unfused": "keras.config.disable_flash_attention()",
        },
    ),
    Knob(
        ("steps_per_execution",),
        whole_number(),
        "micro-steps per call of the compiled program",
        in_every_plan=True,
        compile_argument=True,
    ),
    Knob(
        ("jit_compile",),
        FLAG,
        "whether Keras compiles the training step",
        in_every_plan=True,
        compile_argument=True,
    ),
    Knob(
        ("keep_freed_memory",),
        FLAG,
        "on a CPU, the process keeps memory that a micro-step frees, for the next micro-step",
        slower_because={
            False: "they are estimated to be faster with keep_freed_memory, because no page is mapped again",
            True: "the process returns no freed memory to the system in any case, so keep_freed_memory has no effect",
        },
    ),
)
"""In the order of a plan."""


def by_name() -> dict[str, Knob]:
    """Return the rows under their flat names. ValueError for two rows with one name."""
    found = {knob.name: knob for knob in KNOBS}
    if len(found) < len(KNOBS):
        raise ValueError("two rows of the table of knobs have the same name")
    return found


def tunable_fields() -> tuple[str, ...]:
    """Return the fields that `--only` can name."""
    return tuple(dict.fromkeys(knob.field for knob in KNOBS if knob.tuning is Tuning.FREE))


def process_fields() -> tuple[str, ...]:
    """Return the fields that hold for a whole process and cannot change once its backend has threads."""
    return tuple(dict.fromkeys(knob.field for knob in KNOBS if Affects.PROCESS & knob.affects))


def build_fields() -> tuple[str, ...]:
    """Return the fields that must be set before the model is built."""
    return tuple(dict.fromkeys(knob.field for knob in KNOBS if Affects.BUILD & knob.affects))


def parts_of(name: str) -> tuple[Knob, ...]:
    """Return the knobs of one field."""
    return tuple(knob for knob in KNOBS if knob.field == name)


def values(config: TrainConfig) -> dict[str, Any]:
    """Return the values of all knobs but the derived ones, under their flat names, as plain text and numbers."""
    return {knob.name: knob.value(config) for knob in KNOBS if knob.tuning is not Tuning.DERIVED}


def searched_values(config: TrainConfig) -> dict[str, Any]:
    """Return the values that a study distinguishes configurations by."""
    left_out = (Tuning.DERIVED, Tuning.FIXED)
    return {knob.name: knob.value(config) for knob in KNOBS if knob.tuning not in left_out}


def changes(before: TrainConfig, after: TrainConfig) -> list[str]:
    """Return what changes, in words: `["accumulation 4", "precision mixed_bfloat16"]`.

    A global batch that follows from the accumulation under the same effective batch is left out.
    """
    old, new = values(before), values(after)
    same_effective = before.batch.effective == after.batch.effective
    implied = {"global"} if same_effective and old["accumulation"] != new["accumulation"] else set()
    rows = by_name()
    return [
        f"{rows[name].label} {formatted(new[name])}" for name in new if new[name] != old[name] and name not in implied
    ]


def with_field_of(config: TrainConfig, name: str, other: TrainConfig) -> TrainConfig:
    """Return a configuration with one field of another one, on this mesh. ConfigError where that does not divide."""
    if name == "batch":
        return config.with_(batch=other.batch.on(config.mesh))
    return config.with_(**{name: getattr(other, name)})
