"""Write `autoplan/API.md`, the reference of the Python API, from the docstrings: `python .ci/api_page.py`."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "autoplan/API.md"
_RETURNED = {"autoplan.comparison.result": "Comparison", "autoplan.runtime.timing.user_step": "StepMeasurement"}
"""Classes that public functions return, by their module. They are not names of the package."""
_ITEM = re.compile(r"([A-Za-z_][\w.*]*(?:, [A-Za-z_*][\w.]*)*) {2,}(\S.*)")
"""A line such as `budget           seconds, or a time with units`."""
_HEAD = """# Python API

Generated from the docstrings by `python .ci/api_page.py`. The commands have their own help: `autoplan --help`.
"""


def page() -> str:
    """Return the whole page as Markdown. Nothing that imports a framework is imported."""
    import autoplan
    import cost_models

    seen: dict[int, str] = {}
    parts = [_HEAD]
    for package in (autoplan, cost_models):
        parts += [f"## `{package.__name__}`", _text(package.__doc__)]
        for name in package.__all__:
            thing = getattr(package, name)
            if inspect.isroutine(thing) or inspect.isclass(thing):
                full_name = f"{package.__name__}.{name}"
                twin = seen.setdefault(id(thing), full_name)
                source = inspect.getsource(thing)
                parts += described(full_name, source) if twin == full_name else _reference(full_name, twin)
        for module, name in _RETURNED.items():
            if module.startswith(package.__name__):
                parts += described(name, source_of_class(_file_of(module), name))
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _file_of(module: str) -> Path:
    """Return the file of a module, which may import a framework and is therefore not imported."""
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(module)
    return Path(spec.origin)


def source_of_class(path: Path, name: str) -> str:
    """Return the source of a class in a file."""
    text = path.read_text(encoding="utf-8")
    node = next(one for one in ast.parse(text).body if isinstance(one, ast.ClassDef) and one.name == name)
    return ast.get_source_segment(text, node) or ""


def _reference(name: str, twin: str) -> list[str]:
    return [f"### `{name}`", f"The same as `{twin}`."]


def described(name: str, source: str) -> Iterator[str]:
    """Yield the heading of a function or class, its signature or fields, its docstring, and its methods."""
    short = name.rpartition(".")[2]
    source = textwrap.dedent(source)
    node = ast.parse(source).body[0]
    yield f"### `{name}`"
    if isinstance(node, ast.FunctionDef):
        yield _code(re.sub(r"^def \w+", f"def {short}", _header(node, source)))
        yield _text(ast.get_docstring(node))
    if isinstance(node, ast.ClassDef):
        fields = [ast.get_source_segment(source, one) or "" for one in node.body if _is_field(one)]
        yield _code("\n    ".join([f"class {node.name}:", *(fields or ["..."])]))
        yield _text(ast.get_docstring(node))
        for method in node.body:
            if isinstance(method, ast.FunctionDef) and not method.name.startswith("_"):
                yield f"#### `{short}.{method.name}`"
                yield _code(textwrap.dedent(_header(method, source)))
                yield _text(ast.get_docstring(method))


def _is_field(node: ast.stmt) -> bool:
    """Whether this line of a class is a public field or a member of an enumeration."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return any(isinstance(one, ast.Name) and not one.id.startswith(("_", "model_config")) for one in targets)


def _header(node: ast.FunctionDef, source: str) -> str:
    """Return the decorators and the signature, as they are formatted in the source."""
    first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
    lines = source.splitlines()[first - 1 : node.body[0].lineno - 1]
    return re.sub(r"  # noqa.*", "", "\n".join(lines)).rstrip(":")


def _code(text: str) -> str:
    return f"```python\n{text}\n```"


def _text(docstring: str | None) -> str:
    """Return a docstring as Markdown: aligned names become a list, indented blocks become code."""
    blocks = inspect.cleandoc(docstring or "").split("\n\n")
    return "\n\n".join(_block(block) for block in _whole_code(blocks) if block.strip())


def _whole_code(blocks: list[str]) -> Iterator[str]:
    """Join blocks of one piece of code, which blank lines separate."""
    code: list[str] = []
    for block in blocks:
        if block.startswith("    "):
            code.append(block)
            continue
        if code:
            yield "\n\n".join(code)
            code = []
        yield block
    if code:
        yield "\n\n".join(code)


def _block(block: str) -> str:
    if block.startswith("    "):
        return _code(textwrap.dedent(block))
    lines: list[str] = []
    column = 0  # where the descriptions of a list are aligned
    for line in block.splitlines():
        if item := _ITEM.fullmatch(line) or (column and re.fullmatch(rf"(\w+) (?<=^.{{{column}}})(\S.*)", line)):
            names = ", ".join(f"`{one}`" for one in item[1].split(", "))
            lines += [*([""] if lines and not column else []), f"- {names}: {item[2]}"]
            column = item.start(2)
        elif column and line.startswith(" "):
            lines.append(f"  {line.strip()}")
        else:
            lines += [*([""] if column else []), line]
            column = 0
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
