"""Parses the YAML of plan files with the line number of each value, and writes values as readable YAML.

Reading follows YAML 1.2's core schema rather than PyYAML's 1.1: `no` is a word, `1e-5` is a number, and a date is text.
Tags, anchors and repeated keys are refused, because no plan has them and each can mislead or harm.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

Path = tuple[str | int, ...]

_TAG = "tag:yaml.org,2002:"
_CORE = {
    _TAG + "null": re.compile(r"^(?:~|null|Null|NULL|)$"),
    _TAG + "bool": re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"),
    _TAG + "int": re.compile(r"^[-+]?[0-9]+$"),
    _TAG + "float": re.compile(r"^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$"),
}
_LINE_WIDTH = 110
_SIGNIFICANT_DIGITS = 6


class YamlProblem(Exception):
    """Text that is no plain YAML document. `line` counts from 1; None when no line can be blamed."""

    def __init__(self, message: str, line: int | None = None, path: Path = ()) -> None:
        super().__init__(message)
        self.line = line
        self.path = path


class _CoreLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # the C parser where it was built
    """A safe loader that resolves plain scalars as YAML 1.2's core schema does."""

    yaml_implicit_resolvers: dict[str | None, list[tuple[str, re.Pattern[str]]]] = {None: list(_CORE.items())}


@dataclass
class Document:
    """A YAML document as plain values.

    `lines` maps the path of each key or item, `("config", "batch", "global")`, to its line, counted from 1.
    """

    value: Any
    lines: dict[Path, int] = field(default_factory=dict)

    def line_of(self, path: Path) -> int:
        """The line of `path`, else that of its nearest ancestor that is there."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


def parse(text: str) -> Document:
    """Read one YAML document. YamlProblem says what is wrong with the text, and where."""
    try:
        root = yaml.compose(text, Loader=_CoreLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise YamlProblem(str(error.problem or error.context), mark.line + 1 if mark else None) from None
    except yaml.YAMLError as error:
        raise YamlProblem(str(getattr(error, "reason", error))) from None
    except RecursionError:
        raise YamlProblem("nested too deep") from None
    document = Document(value=None)
    if root is not None:
        document.value = _Builder(document.lines).build(root, ())
    return document


class _Builder:
    """Turns YAML nodes into plain values, and notes the line of each."""

    def __init__(self, lines: dict[Path, int]) -> None:
        self._lines = lines
        self._seen: set[int] = set()

    def build(self, node: yaml.Node, path: Path) -> Any:
        self._lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.ScalarNode):
            return _scalar(node, path)
        if id(node) in self._seen:
            raise _problem("an alias (*name); expected the values themselves", node, path)
        self._seen.add(id(node))
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            return dict(self._entries(node, path))
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            return [self.build(item, (*path, index)) for index, item in enumerate(node.value)]
        raise _problem(f"the tag {node.tag}; expected plain values", node, path)

    def _entries(self, node: yaml.MappingNode, path: Path) -> Iterator[tuple[str, Any]]:
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise _problem("a key that is a list or a mapping; expected a name", key_node, path)
            here = (*path, str(key_node.value))
            line = key_node.start_mark.line + 1
            if here in self._lines:
                raise YamlProblem(f"this key is already on line {self._lines[here]}; keep only one", line, here)
            self._lines[here] = line
            yield str(key_node.value), self.build(value_node, here)


def _scalar(node: yaml.ScalarNode, path: Path) -> Any:
    text = str(node.value)
    match node.tag.removeprefix(_TAG):
        case "null":
            return None
        case "bool":
            return text.lower() == "true"
        case "int" | "float" as kind:
            return _number(text, kind, node, path)
        case "str":
            return text
    raise _problem(f"the tag {node.tag}; expected a plain value", node, path)


def _number(text: str, kind: str, node: yaml.Node, path: Path) -> int | float:
    try:
        number = int(text) if kind == "int" else float(text)
    except ValueError:
        number = math.inf
    if not math.isfinite(number):
        raise _problem("a number too large to read; expected a finite one", node, path)
    return number


def _problem(message: str, node: yaml.Node, path: Path) -> YamlProblem:
    return YamlProblem(message, node.start_mark.line + 1, path)


class Inline(dict[str, Any]):
    """A mapping to be written on one line: `{mode: none}`."""


class _PlanDumper(yaml.SafeDumper):
    """Block style; numbers with six significant digits; lists of numbers and words on one line; line breaks kept."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _write_float(dumper: _PlanDumper, value: float) -> yaml.Node:
    text = f"{value:.{_SIGNIFICANT_DIGITS}g}"
    if "." not in text and math.isfinite(value):
        mantissa, exponent, power = text.partition("e")
        text = f"{mantissa}.0{exponent}{power}"
    return dumper.represent_scalar(_TAG + "float", text)


def _write_text(dumper: _PlanDumper, value: str) -> yaml.Node:
    return dumper.represent_scalar(_TAG + "str", value, style="|" if "\n" in value else None)


def _write_list(dumper: _PlanDumper, value: list[Any]) -> yaml.Node:
    sentences = any(isinstance(item, str) and " " in item for item in value)
    nested = any(isinstance(item, Mapping | list) for item in value)
    return dumper.represent_sequence(_TAG + "seq", value, flow_style=not (sentences or nested))


def _write_inline(dumper: _PlanDumper, value: Inline) -> yaml.Node:
    return dumper.represent_mapping(_TAG + "map", value, flow_style=True)


_PlanDumper.add_representer(float, _write_float)
_PlanDumper.add_representer(str, _write_text)
_PlanDumper.add_representer(list, _write_list)
_PlanDumper.add_representer(Inline, _write_inline)
for _tag, _pattern in _CORE.items():
    # The dumper quotes whatever either schema would take for something other than text, `1e-4` and `08` included.
    _PlanDumper.add_implicit_resolver(_tag, _pattern, None)


def render(value: Mapping[str, Any]) -> str:
    """YAML text, keys in the order given. Numbers keep six significant digits, integers all of theirs."""
    return str(yaml.dump(value, Dumper=_PlanDumper, sort_keys=False, allow_unicode=True, width=_LINE_WIDTH))
