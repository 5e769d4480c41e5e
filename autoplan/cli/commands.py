"""Defines the commands of the `autoplan` CLI: each parses its options, calls the planner and prints the result."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autoplan import parsing
from autoplan._version import __version__
from autoplan.cli import framework
from autoplan.cli.framework import Commands, Format, SettingsCommand, SourceCommand, print_json, source_arguments

if TYPE_CHECKING:
    from rich.console import RenderableType

    from autoplan.sources.source import SourceSpec
    from autoplan.tuning.request import TuneRequest, TuneResult

_OPTIONS: dict[str, Any] = {
    "add_completion": False,
    "no_args_is_help": True,
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
    "context_settings": {"help_option_names": ["-h", "--help"], "max_content_width": 100},
}
app = typer.Typer(name="autoplan", cls=Commands, **_OPTIONS)
hardware_app = typer.Typer(help="Show the hardware catalogue; measure this machine.", **_OPTIONS)
app.add_typer(hardware_app, name="hardware")

Source = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="A training script, -m package.module, a file with build_model(), or package.module:function.",
        show_default=False,
    ),
]
Hardware = Annotated[str, typer.Option(help="local, a name from `autoplan hardware list`, or a YAML file.")]
PlanFile = Annotated[Path, typer.Argument(metavar="PLAN", help="A plan file.", show_default=False)]
Output = Annotated[
    Format,
    typer.Option(
        "--format", help="Format of the output: text, or json for programs.", callback=framework.remember_format
    ),
]
Headroom = Annotated[str, typer.Option(help="Share of a device's memory to keep free.", metavar="PERCENT")]
MemoryLimit = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Most memory that the training may use, such as 2GiB.", show_default=False),
]
Backend = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="jax, tensorflow or torch. Default: the script's own.", show_default=False),
]
AnyBackend = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="jax, tensorflow, torch, or auto to tune it. Default: the script's own.",
        show_default=False,
    ),
]
CompileCount = Annotated[
    int | None,
    typer.Option(
        "--compile", min=0, metavar="N", help="For absent hardware: compile at most N candidates.", show_default=False
    ),
]
FormerCompileCount = Annotated[int | None, typer.Option("--witness", min=0, hidden=True)]
"""The former name of `--compile`."""
EffectiveBatch = Annotated[
    str, typer.Option(metavar="keep|N|LO..HI", help="Samples per update: unchanged, N, or a range to search.")
]
Pins = Annotated[
    list[str] | None,
    typer.Option(metavar="K=V", help="Pin a setting, listed below, such as precision=float32. Repeatable."),
]
Names = Annotated[list[str] | None, typer.Option(metavar="K,...", help="Tune only these settings, listed below.")]
InputShape = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[NAME=]N,...",
        help="For a model without data: sizes of one sample that it leaves open, such as 224,224,3. Repeatable.",
        show_default=False,
    ),
]
Fit = Annotated[int, typer.Option(min=1, help="Which fit() call of a script, counted from 1.", metavar="N")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"autoplan {__version__}")
        raise typer.Exit


@app.callback()
def _autoplan(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Find, measure and apply the fastest way to run a Keras training script on a given machine."""


@app.command(cls=SettingsCommand, short_help="Find, measure and write the fastest plan.")
def tune(
    context: typer.Context,
    source: Source,
    hardware: Hardware = "local",
    backend: AnyBackend = None,
    devices: Annotated[int | None, typer.Option(min=1, metavar="N", help="Simulate N devices on this CPU.")] = None,
    trials: Annotated[int, typer.Option(min=1, metavar="N", help="Try at most N configurations.")] = 20,
    budget: Annotated[str | None, typer.Option(metavar="TIME", help="Spend at most this time, such as 10m.")] = None,
    effective_batch: EffectiveBatch = "keep",
    fix: Pins = None,
    only: Names = None,
    fit: Fit = 1,
    input_shape: InputShape = None,
    study: Annotated[str | None, typer.Option(metavar="PATH|URL", help="Where trials are stored.")] = None,
    headroom: Headroom = "8%",
    memory_limit: MemoryLimit = None,
    output: Annotated[Path, typer.Option(metavar="FILE", help="Where the plan is written.")] = Path("plan.yaml"),
    scratch: Annotated[bool, typer.Option("--scratch", help="Run trials in an empty working directory.")] = False,
    no_measure: Annotated[
        bool, typer.Option("--no-measure", help="Plan by analytic estimates only; run no trial.")
    ] = False,
    compile_: CompileCount = None,
    witness: FormerCompileCount = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the candidates and stop.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="With --dry-run: print all candidates.")] = False,
    format_: Output = Format.TEXT,
) -> None:
    """Measure candidate configurations, choose the fastest with the same training results, and write it as a plan.

    Ctrl-C, SIGTERM or closing the terminal ends the trials and starts the verification; a second signal ends the
    verification. Either way the best plan so far is written. Run the same command again to continue the study.
    Exit codes: 0 with a plan, 130 after a signal, 2 for a refused option or source, 3 if nothing that keeps the options
    runs, fits in memory, or was measured within the budget and the number of trials.
    """
    from autoplan.sources import keras_backend
    from autoplan.tuning.request import TuneRequest

    request = TuneRequest(
        source=_resolve(source, source_arguments(context), fit, input_shape),
        hardware=hardware,
        backend=None if backend is None else keras_backend.check_option(backend),
        devices=devices,
        trials=trials,
        budget_seconds=None if budget is None else parsing.duration_seconds(budget),
        effective_batch=parsing.batch_range(effective_batch),
        fix=parsing.settings(fix or []),
        only=parsing.names(only or []),
        study=study,
        headroom=parsing.share(headroom),
        memory_limit_bytes=None if memory_limit is None else parsing.size_bytes(memory_limit),
        output=None if dry_run else output,
        measure=not no_measure,
        compile_count=witness if compile_ is None else compile_,
        dry_run=dry_run,
        scratch=scratch,
    )
    if everything and not dry_run:
        raise parsing.refused("--all needs --dry-run, because it prints all candidates of a dry run")
    with framework.interrupted_by_signals():
        _answer_tune(_tuned(request, format_), format_, everything=everything)


def _tuned(request: TuneRequest, format_: Format) -> TuneResult:
    """Tune, with progress on stdout, or on stderr where stdout is for the JSON document."""
    from autoplan import planner
    from autoplan.plan import file
    from autoplan.reports import progress
    from autoplan.tuning.space import options

    # Errors in the options are reported before the source is run.
    options.parse_fix(request.fix)
    options.free_fields(request.only)
    if request.output is not None:
        file.ensure_writable(request.output)
    stream = sys.stderr if format_ is Format.JSON else sys.stdout
    with progress.watching(stream) as watch:
        return planner.tune(request, watch)


def _answer_tune(result: TuneResult, format_: Format, *, everything: bool) -> None:
    from autoplan.plan.records import to_plain
    from autoplan.reports import plan_table

    with framework.answering(result.written_to):
        if format_ is Format.TEXT:
            plan_table.print_to(plan_table.open_console(sys.stdout), plan_table.tuned(result, everything=everything))
        elif result.plan is None:
            print_json(plan_table.shortlist_document(result))
        else:
            print_json(to_plain(result.plan))
    if result.interrupted:
        raise typer.Exit(framework.INTERRUPTED)


@app.command(cls=SourceCommand, short_help="Estimate memory and time of one configuration.")
def estimate(
    context: typer.Context,
    source: Source,
    hardware: Hardware = "local",
    batch_size: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Samples per micro-step over all devices, as fit's batch_size."),
    ] = None,
    accumulation: Annotated[int | None, typer.Option(min=1, metavar="N", help="Micro-steps per update.")] = None,
    precision: Annotated[str | None, typer.Option(metavar="P", help="A dtype policy, such as mixed_bfloat16.")] = None,
    remat: Annotated[
        str | None, typer.Option(metavar="MODE", help="Rematerialization: none, activations or full.")
    ] = None,
    attention: Annotated[
        str | None, typer.Option(metavar="MODE", help="Attention: auto (Keras chooses the kernel) or unfused.")
    ] = None,
    steps_per_execution: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Micro-steps per call of the compiled program.")
    ] = None,
    mesh: Annotated[
        str | None,
        typer.Option(metavar="AXES", help="Devices by axis, such as data=4,model=2. Default: data=<all devices>."),
    ] = None,
    shard_state: Annotated[
        bool, typer.Option("--shard-state", help="Split weights, gradients and optimizer state over the data axis.")
    ] = False,
    evidence: Annotated[
        str, typer.Option(metavar="TIER", help="analytic, or compiled: use the hardware's own compiler.")
    ] = "analytic",
    fit: Fit = 1,
    input_shape: InputShape = None,
    headroom: Headroom = "8%",
    explain: Annotated[bool, typer.Option("--explain", help="Describe each part.")] = False,
    format_: Output = Format.TEXT,
) -> None:
    """Estimate the memory and time of one configuration on some hardware. Does not run the training.

    Settings that are not given are the script's own, except the mesh: without --mesh the batch is split over all
    devices of the hardware. The rates of `local` are measured once and stored.
    """
    from autoplan import planner
    from autoplan.reports import progress
    from autoplan.tuning.request import EstimateRequest

    counts = {"global": batch_size, "accumulation": accumulation, "steps_per_execution": steps_per_execution}
    settings = {**counts, **_known_modes(precision, remat, attention), "shard_state": shard_state or None}
    request = EstimateRequest(
        source=_resolve(source, source_arguments(context), fit, input_shape),
        hardware=hardware,
        settings={name: value for name, value in settings.items() if value is not None},
        mesh=None if mesh is None else parsing.mesh_axes(mesh),
        headroom=parsing.share(headroom),
        explain=explain,
        compile=parsing.choice("--evidence", evidence, ["analytic", "compiled"]) == "compiled",
    )
    with progress.watching(sys.stderr) as watch:
        answer = planner.estimate(request, watch)
    from autoplan.reports import estimate as estimate_report

    _answer(format_, answer.to_dict, lambda: estimate_report.estimated(answer, explain=explain))


def _known_modes(precision: str | None, remat: str | None, attention: str | None) -> dict[str, str | None]:
    """Return the values of these options. ConfigError for a value that is not one of the known ones."""
    from cost_models.config import AttentionMode, Precision, RematMode

    precisions = [known.value for known in Precision if known is not Precision.OTHER]
    return {
        "precision": None if precision is None else parsing.choice("--precision", precision, precisions),
        "remat": None if remat is None else parsing.choice("--remat", remat, list(RematMode)),
        "attention": None if attention is None else parsing.choice("--attention", attention, list(AttentionMode)),
    }


@app.command(cls=SettingsCommand, short_help="Compare hardware: where a training fits, its speed and its cost.")
def compare(
    context: typer.Context,
    source: Source,
    hardware: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME,...", help="Names from `autoplan hardware list`, YAML files, local."),
    ] = None,
    family: Annotated[
        list[str] | None,
        typer.Option(metavar="FAMILY,...", help="tpu, gpu, nvidia, amd, cpu or all. Default: tpu,gpu."),
    ] = None,
    cost: Annotated[bool, typer.Option("--cost", help="Show the cost of a million samples, cheapest first.")] = False,
    evidence: Annotated[
        str, typer.Option(metavar="TIER", help="analytic, or compiled: also use the compilers of the named hardware.")
    ] = "analytic",
    effective_batch: EffectiveBatch = "keep",
    fix: Pins = None,
    backend: Backend = None,
    fit: Fit = 1,
    input_shape: InputShape = None,
    headroom: Headroom = "8%",
    format_: Output = Format.TEXT,
) -> None:
    """Compare hardware: where the training fits, with which configuration, at which speed and cost.

    Does not run the training. Without --hardware, each chip is shown in the smallest size on which the training fits,
    of at most 64 chips.
    """
    from autoplan import planner
    from autoplan.reports import compare as compare_report
    from autoplan.reports import progress
    from autoplan.tuning.request import CompareRequest
    from autoplan.tuning.space import options

    request = CompareRequest(
        source=_resolve(source, source_arguments(context), fit, input_shape),
        hardware=parsing.names(hardware or [], "--hardware"),
        families=parsing.names(family or [], "--family"),
        backend=backend,
        effective_batch=parsing.batch_range(effective_batch),
        fix=parsing.settings(fix or []),
        headroom=parsing.share(headroom),
        by_cost=cost,
        compile=parsing.choice("--evidence", evidence, ["analytic", "compiled"]) == "compiled",
    )
    options.parse_fix(request.fix)
    with framework.interrupted_by_signals(), progress.watching(sys.stderr) as watch:
        found = planner.compare(request, watch)
    _answer(format_, found.to_dict, lambda: compare_report.compared(found))


@app.command(cls=SourceCommand, short_help="Run a script with a plan applied.")
def train(
    context: typer.Context,
    source: Source,
    plan: Annotated[Path, typer.Option(metavar="PLAN", help="The plan to train with.", show_default=False)],
) -> None:
    """Run the whole script with the plan applied."""
    from autoplan import plan_check
    from autoplan.plan import file

    arguments = source_arguments(context)
    found = file.read(plan)
    fit = found.source.fit.index
    _resolve(source, arguments, fit)
    for line in plan_check.verdict(found, plan_check.here(found)).warnings(plan.name):
        typer.echo(f"note: {line}", err=True)
    # The runtime imports Keras, so it replaces this process instead of being imported by it.
    command = [sys.executable, "-m", "autoplan.runtime", "train", "--plan", str(plan), "--fit", str(fit), source]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [*command, *(["--", *arguments] if arguments else [])])


@app.command(short_help="Explain a plan.")
def explain(plan: PlanFile, format_: Output = Format.TEXT) -> None:
    """Explain a plan: what it changes and why, what was tried, what was not, and notes."""
    from autoplan.plan import file
    from autoplan.plan.records import to_plain
    from autoplan.reports import plan_table

    found = file.read(plan)
    _answer(format_, lambda: dict(to_plain(found)), lambda: plan_table.explained(found, plan))


@app.command(short_help="Print a plan as plain Keras calls.")
def export(
    plan: PlanFile,
    to: Annotated[str, typer.Option(metavar="python", help="The export target; only python so far.")] = "python",
) -> None:
    """Print the plan as plain Keras calls, for a script that must not depend on autoplan."""
    from autoplan import export as exporting
    from autoplan.plan import file

    typer.echo(exporting.exported(file.read(plan), to), nl=False)


@app.command(short_help="Check whether a plan is still valid here.")
def check(plan: PlanFile, format_: Output = Format.TEXT) -> None:
    """Check whether a plan is still valid here: versions, hardware and source. The exit code is 2 if it is not."""
    from autoplan import plan_check
    from autoplan.plan import file

    found = file.read(plan)
    verdict = plan_check.verdict(found, plan_check.here(found))
    _answer(format_, verdict.to_dict, lambda: "\n".join(verdict.lines(str(plan))))
    if not verdict.valid:
        raise typer.Exit(2)


@app.command(short_help="Print the JSON schema of plan files.")
def schema() -> None:
    """Print the JSON schema of plan files."""
    from autoplan.plan import schema as plan_schema

    print_json(plan_schema.json_schema())


@hardware_app.command("list", short_help="List the known chips and their names.")
def list_hardware(format_: Output = Format.TEXT) -> None:
    """List the known chips with all their names."""
    from autoplan.reports import hardware

    _answer(format_, hardware.known_document, hardware.known_table)


@hardware_app.command("show", short_help="Show all figures of one kind of hardware.")
def show_hardware(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name from `hardware list`, local, or a YAML file.")],
    format_: Output = Format.TEXT,
) -> None:
    """Show all figures of one kind of hardware, each with its sources and notes."""
    from autoplan.reports import hardware

    described = hardware.described(name)
    _answer(format_, lambda: described, lambda: hardware.description(described))


@hardware_app.command("probe", short_help="Measure the speed of this machine.")
def probe_hardware(backend: Backend = None, format_: Output = Format.TEXT) -> None:
    """Measure the speed that this machine reaches, and store it for `--hardware local`."""
    from autoplan import planner
    from autoplan.reports import hardware
    from autoplan.sources import keras_backend

    name = keras_backend.choose(backend).name
    profile = planner.probe(name)
    _answer(format_, lambda: profile, lambda: hardware.probed(profile, name))


def _answer(format_: Format, document: Callable[[], dict[str, Any]], report_: Callable[[], RenderableType]) -> None:
    """Print the answer as one JSON document or as text."""
    with framework.answering():
        if format_ is Format.JSON:
            print_json(document())
            return
        from autoplan.reports import plan_table

        plan_table.print_to(plan_table.open_console(sys.stdout), report_())


def _resolve(source: str, arguments: list[str], fit_index: int, shapes: list[str] | None = None) -> SourceSpec:
    from autoplan.sources.source import resolve

    given = parsing.input_shapes(shapes or [])
    return resolve(source, arguments, fit_index).model_copy(update={"input_shapes": given})


def main() -> None:
    """Run the `autoplan` command."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal without an arrow or micro sign must show a question mark, not a traceback.
        getattr(stream, "reconfigure", lambda **_: None)(errors="replace")
    try:
        app()
    except Exception as error:  # noqa: BLE001 -- every other error ends in a short message and a crash file
        sys.exit(framework.report_crash(error))
