"""Tables of errors by source and family: raw, scaled by one factor, by order, and of a trivial estimate."""

from __future__ import annotations

import hashlib
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cost_models.time.roofline import peak_rate
from studies.time_vs_published.chips import machine

Row = dict[str, Any]
_LEFT_OUT = 3
_CONFIGURATION = ("chip", "precision", "model", "size", "devices", "batch", "stack", "framework")


def ratio(row: Row) -> float:
    """Return estimated / measured seconds."""
    return float(row["predicted_seconds"]) / float(row["measured_seconds"])


def error(ratios: Sequence[float]) -> float:
    """Return the mean absolute error in percent."""
    return 100 * statistics.mean(abs(one - 1) for one in ratios)


def least(rows: Sequence[Row], *names: str) -> float:
    """Return the mean absolute error in percent with the best constant for all rows that agree in these columns.

    With the columns of a configuration it is a lower bound for every estimate of configurations.
    """
    cells: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for row in rows:
        cells[tuple(row[name] for name in names)].append(ratio(row))
    of_each = (len(cell) * min(error([one / k for one in cell]) for k in cell) for cell in cells.values())
    return sum(of_each) / len(rows)


def scaled(rows: Sequence[Row], of: Callable[[Row], float] = ratio) -> list[float]:
    """Return the ratios, scaled by a factor from the three rows with the smallest hashes, which are left out."""
    ordered = sorted(rows, key=lambda row: hashlib.sha256(row["row"].encode()).hexdigest())
    chosen, rest = ordered[:_LEFT_OUT], ordered[_LEFT_OUT:]
    factor = statistics.geometric_mean(map(of, chosen))
    return [of(row) / factor for row in rest]


def tau(rows: Sequence[Row]) -> float:
    """Return Kendall's tau between measured and estimated seconds per sample."""
    measured, predicted = (
        np.array([float(row[f"{which}_seconds"]) / int(row["batch"]) for row in rows])
        for which in ("measured", "predicted")
    )
    signs = np.sign(measured[:, None] - measured) * np.sign(predicted[:, None] - predicted)
    return float(signs.sum() / (len(rows) * (len(rows) - 1)))


def trivial(rows: Sequence[Row]) -> list[float]:
    """Return the ratios for a constant MFU per source, chip and precision: the median of the same rows."""
    groups: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows:
        groups[row["chip"], row["precision"]].append(_at_full_rate(row) / float(row["measured_seconds"]))
    return [one / statistics.median(group) for group in groups.values() for one in group]


def _at_full_rate(row: Row) -> float:
    chip = machine(row["chip"], 4 if row["chip"].startswith("tpu") else 1, 1).chip
    return float(row["model_flops"]) / peak_rate(chip, row["precision"].removeprefix("mixed_"))


def groups_of(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    """Return the rows by source and family. The memory layouts of timm are separate, as in its two tables."""
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        source = row["source"] + (" (channels first)" if "first" in row["stack"] else "")
        groups[source, row["family"]].append(row)
    return dict(sorted(groups.items()))


def summary(rows: Sequence[Row]) -> None:
    """Print the tables of README.md."""
    print("| source | family | rows | raw MAPE | median ratio | with one factor | floor | tau | constant MFU, fitted |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for (source, family), chosen in groups_of(rows).items():
        _line(source, family, chosen)
    for family in ("transformer", "convolutional"):
        _line("all", family, [row for row in rows if row["family"] == family])
    _scaling(rows)
    _limits([row for row in rows if row["family"] == "transformer"])
    _repeats(rows)
    _memory(rows)
    _outliers(rows)


def _line(source: str, family: str, rows: Sequence[Row]) -> None:
    ratios = list(map(ratio, rows))
    enough = len(rows) > 2 * _LEFT_OUT and source != "all"
    after = f"{error(scaled(rows)):.1f}%" if enough else ""
    order = f"{tau(rows):.2f}" if enough else ""
    if source == "all":
        parts = [one for one in groups_of(rows).values() if len(one) > 2 * _LEFT_OUT]
        after = f"{error([r for part in parts for r in scaled(part)]):.1f}%"
    sources = [rows] if source != "all" else list(groups_of(rows).values())
    flat = f"{error([r for part in sources for r in trivial(part)]):.1f}%"
    middle = statistics.median(ratios)
    floor = f"{least(rows, 'source', *_CONFIGURATION):.1f}%" if _repeated(rows) else ""
    print(
        f"| {source} | {family} | {len(rows)} | {error(ratios):.1f}% | {middle:.2f} | {after} | {floor} | {order} "
        f"| {flat} |"
    )


def _repeated(rows: Sequence[Row]) -> list[list[Row]]:
    """Return the configurations with several rows in one source."""
    cells: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        cells[tuple(row[name] for name in ("source", *_CONFIGURATION))].append(row)
    return [cell for cell in cells.values() if len(cell) > 1]


def _limits(rows: Sequence[Row]) -> None:
    """Print the error that remains with the best constant for each value of more and more columns."""
    steps = {"one constant": (), "by GPU": ("chip",), "and precision": ("precision",)}
    steps |= {"and model, length, kernels": ("model", "size", "stack", "framework"), "and devices": ("devices",)}
    steps |= {"and batch: floor": ("batch",)}
    print(f"\n| transformers, constants fitted | rows | {' | '.join(steps)} |\n|{' --- |' * (2 + len(steps))}")
    for (source, _), chosen in groups_of(rows).items():
        if len(chosen) > 2 * _LEFT_OUT:
            names: tuple[str, ...] = ()
            errors = [f"{least(chosen, *(names := names + more)):.1f}%" for more in steps.values()]
            print(f"| {source} | {len(chosen)} | {' | '.join(errors)} |")


def _scaling(rows: Sequence[Row]) -> None:
    """Print the throughput per device of ResNet-50 on eight devices relative to one, estimated and published."""
    print("\n| ResNet-50, 8 devices against 1 | published | predicted |\n| --- | --- | --- |")
    chosen = [row for row in rows if row["model"].startswith("resnet50") and row["source"] != "timm"]
    alike: dict[tuple[str, ...], dict[str, Row]] = defaultdict(dict)
    for row in chosen:
        key = tuple(row[name] for name in ("source", "chip", "precision", "batch", "stack", "framework"))
        alike[key].setdefault(row["devices"], row)
    for key, by_devices in sorted(alike.items()):
        if {"1", "8"} <= set(by_devices) and ("v100" in key[1] or "a100" in key[1]):
            one, eight = by_devices["1"], by_devices["8"]
            published, predicted = (
                100 * float(one[f"{which}_seconds"]) / float(eight[f"{which}_seconds"])
                for which in ("measured", "predicted")
            )
            print(f"| {', '.join(key)} | {published:.1f}% | {predicted:.1f}% |")


def _repeats(rows: Sequence[Row]) -> None:
    """Print how far runs of one configuration deviate from the geometric mean of their seconds."""
    print("\n| published more than once | rows | deviation from their mean | floor | largest ratio |")
    print("| --- | --- | --- | --- | --- |")
    for (source, family), chosen in groups_of(rows).items():
        if several := _repeated(chosen):
            seconds = [[float(row["measured_seconds"]) for row in cell] for cell in several]
            ratios = [statistics.geometric_mean(cell) / one for cell in seconds for one in cell]
            farthest = max(max(cell) / min(cell) for cell in seconds)
            floor = least([row for cell in several for row in cell], *_CONFIGURATION)
            print(
                f"| {source}, {family} | {len(ratios)} of {len(chosen)} | {error(ratios):.1f}% | {floor:.1f}% "
                f"| {farthest:.2f} times |"
            )


def _memory(rows: Sequence[Row]) -> None:
    known = [row for row in rows if row["measured_gib"]]
    if not known:
        return
    print("\n| memory of | rows | MAPE | median ratio | fit |\n| --- | --- | --- | --- | --- |")
    groups: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in known:
        groups[row["source"], row["model"], row["precision"]].append(row)
    for key, chosen in sorted(groups.items()):
        ratios = [float(row["predicted_gib"]) / float(row["measured_gib"]) for row in chosen]
        fits = sum(row["fits"] == "True" for row in chosen)
        print(f"| {', '.join(key)} | {len(chosen)} | {error(ratios):.0f}% | {statistics.median(ratios):.2f} | {fits} |")


def _outliers(rows: Sequence[Row], worst: int = 12) -> None:
    """Print the models with the largest deviations from the median ratio of their source."""
    print("\n| largest deviations | rows | ratio to the median of the source |\n| --- | --- | --- |")
    far: list[tuple[float, str, int]] = []
    for (source, _), chosen in groups_of(rows).items():
        middle = statistics.median(map(ratio, chosen))
        models: dict[str, list[float]] = defaultdict(list)
        for row in chosen:
            models[row["model"]].append(ratio(row) / middle)
        far += [(statistics.median(found), f"{source}: {name}", len(found)) for name, found in models.items()]
    for value, name, count in sorted(far, key=lambda one: -abs(math.log(one[0])))[:worst]:
        print(f"| {name} | {count} | {value:.2f} |")


def figure(rows: Sequence[Row], place: Path) -> None:
    """Draw estimated against measured seconds per micro-step, by source. Needs matplotlib."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    drawing, axes = plt.subplots(figsize=(6, 5))
    for source in sorted({row["source"] for row in rows}):
        chosen = [row for row in rows if row["source"] == source]
        measured, predicted = (
            [float(row[f"{which}_seconds"]) for row in chosen] for which in ("measured", "predicted")
        )
        axes.scatter(measured, predicted, s=7, label=source, alpha=0.6)
    axes.set(xscale="log", yscale="log", xlabel="published seconds", ylabel="predicted seconds")
    ends = [0.01, 60]
    axes.plot(ends, ends, color="black", linewidth=0.7)
    axes.legend(fontsize=7)
    drawing.tight_layout()
    drawing.savefig(place, dpi=90)
