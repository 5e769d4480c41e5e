"""Reads and writes plan files (YAML), and checks that a plan can be applied."""

from __future__ import annotations

import contextlib
import os
import shlex
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from autoplan.errors import OutputError, PlanError
from autoplan.plan import next_commands, plan_yaml, schema
from autoplan.plan.records import Evidence, Plan, to_plain
from cost_models.config import BACKENDS_WITH_DISTRIBUTION, Precision

LARGEST_BYTES = 16 * 2**20
_MOST_FAULTS_SHOWN = 5


def read(path: Path | str) -> Plan:
    """Return the plan in the file at `path`.

    PlanError when there is none, when it is not readable as YAML, or when any schema, key or value in it is unknown:
    each fault with its line, its key and what was expected.
    """
    path = Path(path)
    text = _text(path)
    try:
        document = plan_yaml.parse(text)
    except plan_yaml.YamlProblem as problem:
        raise PlanError(_unreadable(path, problem)) from None
    if document.value is None:
        raise PlanError(f"{path} is empty; expected a plan as `autoplan tune` writes it")
    plan = schema.plan_from(document.value)
    if isinstance(plan, list):
        raise PlanError(_faulty(path, document, plan))
    return plan


load_plan = read
"""The name under which `autoplan` offers `read`."""


def write(plan: Plan, path: Path | str) -> Path:
    """Put `plan` at `path`, whole or not at all; a file that was there stays until the new one is complete.

    OutputError says why it could not be written, and where the plan was put instead.
    """
    path = Path(path)
    text = to_yaml(plan, path)
    try:
        _refuse_special(path)
        _replace(path.resolve(), text)
    except OSError as error:
        raise OutputError(f"the plan could not be written to {path}: {_why(error)}; {_rescue(text)}") from None
    except OutputError as error:
        raise OutputError(f"{error}; {_rescue(text)}") from None
    return path


def ensure_writable(path: Path | str) -> None:
    """Raise OutputError before a long study where a plan could not be written to `path`."""
    path = Path(path)
    _refuse_special(path)
    folder = path.resolve().parent
    if not folder.is_dir():
        missing = folder if path.is_symlink() else path.parent
        raise OutputError(f"there is no folder {missing} for {path.name}; create it, or choose another --output")
    try:
        if path.exists():
            path.open("r+b").close()
        with _temporary(path.resolve(), "autoplan tries whether a plan can be written here\n" * 100):
            pass
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {_why(error)}; choose another --output") from None


def to_yaml(plan: Plan, path: Path | str = "plan.yaml") -> str:
    """The text of a plan file; `path` is the name in the commands of its first lines."""
    plain = dict(to_plain(plan))
    for section in ("trials", "rejected"):
        plain[section] = [_inlined(record) for record in plain[section]]
    if plain["rescue"] is not None:
        plain["rescue"] |= {"tried": [_inlined(rung) for rung in plain["rescue"]["tried"]]}
    return _header(plan, path) + plan_yaml.render(plain)


def unsupported(plan: Plan) -> list[tuple[str, str, str]]:
    """Settings that a training cannot apply yet: key, the value in the plan, and what can be applied."""
    config, own = plan.config, plan.baseline.config
    found = []
    if config.mesh.model > 1:
        found.append(("config.mesh.model", str(config.mesh.model), "1"))
    if config.layout.shard_state and config.backend not in BACKENDS_WITH_DISTRIBUTION:
        found.append(("config.layout.shard_state", "true", "false, or backend to jax"))
    if config.precision is Precision.OTHER and own.precision is not Precision.OTHER:
        found.append(("config.precision", config.precision.value, f"{own.precision.value}, or another policy's name"))
    return found


def refuse_what_cannot_run(plan: Plan) -> None:
    """Raise PlanError for settings that would silently be ignored, with each key and the value to write instead."""
    faults = [
        f"{key} is {value}, which cannot be applied yet; set it to {able}" for key, value, able in unsupported(plan)
    ]
    if faults:
        raise PlanError("; ".join([*faults, "or tune again: `autoplan tune` writes what can be trained with"]))


def first_line(plan: Plan) -> str:
    """Return the evidence of a plan in one line."""
    hardware = plan.hardware
    devices = f"{hardware.devices}{' simulated' if hardware.simulated else ''} device"
    devices += "s" if hardware.devices != 1 else ""
    if plan.evidence is not Evidence.MEASURED:
        done = "run" if plan.evidence is Evidence.COMPILED else "measured"
        return f"Nothing was {done} for this plan: its figures are {plan.evidence}, for {hardware.name} ({devices})."
    differs = f" {plan.trains_differently}" if plan.trains_differently else ""
    return f"An autoplan plan, measured on {hardware.name} ({devices}).{differs}"


def _header(plan: Plan, path: Path | str) -> str:
    story = shlex.join(["autoplan", "explain", str(path)])
    lines = "".join(f"#   {line}\n" for line in next_commands.train_lines(plan, path))
    how = " in Python, with x and y as `fit` takes them" if next_commands.in_python(plan, path) else ""
    return f"# {first_line(plan)}\n# To train with it{how}:\n{lines}# Details: {story}\n"


def _inlined(record: dict[str, Any]) -> dict[str, Any]:
    return {key: plan_yaml.Inline(value) if key in {"config", "figures"} else value for key, value in record.items()}


def _text(path: Path) -> str:
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise PlanError(f"{path} is a folder; expected a plan file")
        if not stat.S_ISREG(status.st_mode):
            raise PlanError(f"{path} is not a regular file; expected a plan file")
        if status.st_size > LARGEST_BYTES:
            raise PlanError(
                f"{path} holds {status.st_size / 2**20:.1f} MiB; a plan has at most {LARGEST_BYTES // 2**20} MiB. "
                "Is it another file?"
            )
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise PlanError(f"there is no plan at {path}; `autoplan tune SOURCE --output {path}` writes one") from None
    except OSError as error:
        raise PlanError(f"{path} cannot be read: {_why(error)}") from None
    except UnicodeDecodeError as error:
        raise PlanError(f"{path} is not a text file (byte {error.start}); expected a plan in YAML") from None


def _unreadable(path: Path, problem: plan_yaml.YamlProblem) -> str:
    where = f"{path}:{problem.line}" if problem.line else str(path)
    key = schema.Fault(problem.path, "").key
    if key:
        return f"{where}: {key}: {problem}"
    return f"{where}: not readable as YAML: {problem}; the file may be damaged or cut off"


def _faulty(path: Path, document: plan_yaml.Document, faults: list[schema.Fault]) -> str:
    located = sorted(faults, key=lambda fault: document.line_of(fault.path))
    lines = [
        f"{path}:{document.line_of(fault.path)}: " + (f"{fault.key}: " if fault.key else "") + fault.message
        for fault in located[:_MOST_FAULTS_SHOWN]
    ]
    if len(faults) > _MOST_FAULTS_SHOWN:
        lines.append(f"and {len(faults) - _MOST_FAULTS_SHOWN} more")
    return "\n".join(lines)


def _refuse_special(path: Path) -> None:
    """Renaming over a folder fails, and over a device it would replace the device."""
    if path.is_dir():
        raise OutputError(f"{path} is a folder; expected the name of a file, such as {path / 'plan.yaml'}")
    if path.exists() and not path.is_file():
        raise OutputError(f"{path} is not a regular file; expected the name of a file, such as plan.yaml")


def _replace(path: Path, text: str) -> None:
    with _temporary(path, text) as temporary:
        if path.exists():
            temporary.chmod(stat.S_IMODE(path.stat().st_mode))
        temporary.replace(path)


@contextlib.contextmanager
def _temporary(path: Path, text: str) -> Iterator[Path]:
    """Yield a file beside `path` with `text` on disk; it is removed at the end unless it was renamed."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.chmod(0o666 & ~_umask())
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def _umask() -> int:
    """Return the permissions that this process removes from new files (reading them requires setting them)."""
    current = os.umask(0)
    os.umask(current)
    return current


def _rescue(text: str) -> str:
    """Keep a plan that could not go where it should, and say where it is; where no disk takes it, the message does."""
    folder, kept = "a temporary folder", None
    try:
        folder = tempfile.gettempdir()
        descriptor, name = tempfile.mkstemp(prefix="plan-", suffix=".yaml", text=True)
        kept = Path(name)
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        if kept is not None:
            kept.unlink(missing_ok=True)
        return f"it could not be stored in {folder} either ({_why(error)}); this is the plan:\n\n{text}"
    return f"it is stored in {kept}"


def _why(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
