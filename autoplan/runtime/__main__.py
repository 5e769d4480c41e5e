"""Runs `python -m autoplan.runtime train --plan PLAN SOURCE [-- ARGS]`, the process that `autoplan train` starts."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from autoplan.errors import AutoplanError
from autoplan.machine import process_settings
from autoplan.plan import file
from autoplan.sources import source


def main(arguments: list[str]) -> int:
    """Train. Exceptions and exit codes of the script pass through unchanged."""
    own, script_arguments = _split(arguments)
    parser = argparse.ArgumentParser(prog="autoplan train")
    parser.add_argument("command", choices=["train"])
    parser.add_argument("source")
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--fit", type=int, default=1)
    parsed = parser.parse_args(own)
    try:
        plan = file.read(parsed.plan)
        file.refuse_what_cannot_run(plan)
        spec = source.resolve(parsed.source, script_arguments, parsed.fit)
        os.environ["KERAS_BACKEND"] = plan.config.backend
        # Must happen before a backend starts its threads.
        messages = process_settings.apply(plan.config)
        from autoplan.runtime.run_source import run_source
        from autoplan.runtime.train import Training, log

        for message in messages:
            log(f"{message}; the rest of the plan is applied")
        Training(plan, spec).run(run_source, cache_directory())
    except AutoplanError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    return 0


def cache_directory() -> Path | None:
    """Return the folder that caches compiled programs between trainings; None if the user has configured a cache."""
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return None
    return Path(".autoplan").resolve() / "compilation_cache"


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    if "--" not in arguments:
        return arguments, []
    separator = arguments.index("--")
    return arguments[:separator], arguments[separator + 1 :]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
