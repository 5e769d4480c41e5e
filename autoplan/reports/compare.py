"""Formats the result of `autoplan compare` as text: where the training fits, at which speed and price."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table

from autoplan import formatting
from autoplan.comparison.result import Comparison, FitVerdict, HardwareRow
from autoplan.plan.records import Evidence
from autoplan.reports.plan_table import heading, notes_section, open_table
from cost_models.config import Batch, Mesh

_GIB = 2**30
_SHOWN_GIB = 0.01


def compared(found: Comparison) -> RenderableType:
    """Return a table with a row for each kind of hardware, and notes."""
    rows = {verdict: [row for row in found.rows if row.verdict is verdict] for verdict in FitVerdict}
    trains, lacking = rows[FitVerdict.TRAINS], [*rows[FitVerdict.UNCERTAIN], *rows[FitVerdict.TOO_LARGE]]
    parts: list[RenderableType] = [_headline(found)]
    if trains:
        parts += [_table(trains, found.by_cost), _legend(found)]
    if lacking:
        parts += [heading("Hardware on which it does not fit, or may not fit"), _lacking(lacking)]
    if rows[FitVerdict.NOT_KNOWN]:
        parts += [heading("Hardware without an estimate"), _unknown(rows[FitVerdict.NOT_KNOWN])]
    if found.by_cost and trains:
        parts += _prices(trains)
    return Group(*parts, *notes_section([*_smaller(found.rows), *found.notes, *_of_rows(found.rows)]))


def _headline(found: Comparison) -> str:
    baseline = found.observation.config
    trains = sum(row.verdict is FitVerdict.TRAINS for row in found.rows)
    kinds = formatting.counted(len(found.rows), "kind")
    return (
        f"{found.source.path or found.source.module}: {found.observation.parameters:,} parameters; "
        f"the baseline, which is the script's own configuration, is {baseline.describe()}.\n"
        f"The training fits on {trains} of {kinds} of hardware. {_tiers(found.rows)}"
    )


def _tiers(rows: Sequence[HardwareRow]) -> str:
    tiers = {row.evidence for row in rows}
    if tiers == {Evidence.ANALYTIC}:
        return "Every figure is analytic: nothing was run, measured or compiled."
    return (
        "Nothing was run or measured. Rows marked compiled show the compiled program, with times by a roofline model."
    )


def _table(rows: Sequence[HardwareRow], by_cost: bool) -> RenderableType:
    columns = ["hardware", "best configuration", "GiB needed", "margin", "samples/s", "MFU"]
    table = open_table(*columns, *(["USD per\nmillion\nsamples"] if by_cost else []), "evidence")
    _keep_whole(table, "best configuration")
    for row in rows:
        cost = [_usd(row.usd_per_million_samples)] if by_cost else []
        table.add_row(
            row.hardware,
            _words(row),
            _needed(row),
            formatting.percent(row.margin),
            formatting.rate(row.samples_per_second),
            formatting.percent(row.mfu),
            *cost,
            row.evidence.value,
        )
    return table


def _keep_whole(table: Table, but: str) -> None:
    """Keep figures on one line; the column `but` may wrap."""
    table.collapse_padding = True
    for column in table.columns:
        column.no_wrap = column.header != but


def _legend(found: Comparison) -> str:
    order = (
        "by cost, at the first price listed below, and hardware without a price is last"
        if found.by_cost
        else "by speed, all devices together"
    )
    return (
        f"Rows are sorted {order}. GiB needed is the upper end of the estimate for one device; margin is the share "
        f"of its memory that stays free, at least {formatting.percent(found.headroom)}. MFU counts only the devices in "
        "use." + (" USD per million is the price of a million samples." if found.by_cost else "")
    )


def _words(row: HardwareRow) -> str:
    """Return the number of devices and the configuration, without a mesh of one axis, which is that number."""
    config = row.config
    if config is None:
        return "—"
    used = config.mesh.devices
    devices = formatting.counted(row.devices, "device") if used == row.devices else f"{used} of {row.devices} devices"
    if config.mesh.model > 1:
        return f"{devices}: {config.describe()}"
    alone = config.with_(
        mesh=Mesh(), batch=Batch.from_global(config.batch.global_size, accumulation=config.batch.accumulation)
    )
    return f"{devices}: {alone.describe()}"


def _needed(row: HardwareRow) -> str:
    return f"{_gib(row.needed_bytes)} of {_gib(row.capacity_bytes)}"


def _gib(count: int | None) -> str:
    if count is None:
        return formatting.NOT_KNOWN
    return f"<{_SHOWN_GIB}" if count < _SHOWN_GIB * _GIB else formatting.significant(count / _GIB)


def _usd(cost: float | None) -> str:
    return "no price" if cost is None else formatting.significant(cost)


def _lacking(rows: Sequence[HardwareRow]) -> RenderableType:
    table = open_table("hardware", "GiB needed", "by configuration", "what would help", "evidence")
    _keep_whole(table, "by configuration")
    table.columns[3].no_wrap = False
    for row in rows:
        needed = _needed(row)
        if row.verdict is FitVerdict.UNCERTAIN and row.least_bytes != row.needed_bytes:
            needed = f"{_gib(row.least_bytes)} to {needed}"
        table.add_row(row.hardware, needed, _words(row), row.would_help or "—", row.evidence.value)
    return table


def _unknown(rows: Sequence[HardwareRow]) -> RenderableType:
    table = open_table("hardware", "reason")
    for row in rows:
        table.add_row(row.hardware, row.reason or "no estimate is possible")
    return table


def _prices(rows: Sequence[HardwareRow]) -> list[RenderableType]:
    """Return the catalogue's prices with their basis; the sources with their dates follow once."""
    table = open_table("hardware", "USD per chip-hour", "chips", "basis")
    for row in rows:
        for offer in row.offers:
            table.add_row(row.hardware, f"{offer.usd_per_chip_hour:g}", str(row.chips), offer.basis)
    sources = dict.fromkeys(source for row in rows for offer in row.offers for source in offer.sources)
    if not sources:
        return [heading("Prices"), "The catalogue has no prices for this hardware."]
    return [heading("Prices"), table, f"Sources: {'; '.join(sources)}."]


def _smaller(rows: Sequence[HardwareRow]) -> list[str]:
    """Return notes on the sizes that were considered before the size in the table."""
    passed = [name for row in rows if row.verdict is FitVerdict.TRAINS for name in row.looked_at[:-1]]
    smaller = [f"smaller sizes on which it does not or may not fit: {', '.join(passed)}"] if passed else []
    largest = {row.hardware: row.looked_at for row in rows if row.verdict is not FitVerdict.TRAINS}
    tried = [f"{names[0]} to {names[-1]}" for names in largest.values() if len(names) > 1]
    return [*smaller, *([f"it does not or may not fit on any size of: {', '.join(tried)}"] if tried else [])]


def _of_rows(rows: Sequence[HardwareRow]) -> list[str]:
    return [f"{row.hardware}: {note}" for row in rows for note in row.notes]
