"""Compiles the cases of `lowering.py` with the product, and compares all figures with those of plain Keras and JAX."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from studies.memory_vs_compiler.lowering import BATCH, COLUMNS, FIGURES, PRECISION, UNFUSED, compiled_model

HERE = Path(__file__).resolve().parent
PLAIN, PRODUCT = HERE / "lowering_plain.csv", HERE / "lowering_product.csv"
CLUSTERS = {
    "A100": "gpu-a100-80gb-x8",
    "H100": "gpu-h100-80gb-x8",
    "TPU v4": "tpu-v4-8",
    "TPU v5e": "tpu-v5e-4",
}
_Case = tuple[str, str, str]


def rows(path: Path) -> dict[_Case, dict[str, str]]:
    """Return the rows of a table by target, devices and model."""
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        return {(row["target"], row["devices"], row["model"]): row for row in csv.DictReader(file)}


def compile_missing() -> None:
    """Compile with the product every case that plain Keras and JAX compiled."""
    known = rows(PRODUCT)
    for case in rows(PLAIN).keys() - known.keys():
        known[case] = _compiled(*case)
        print(",".join(known[case].values()), flush=True)
        with PRODUCT.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(known[one] for one in rows(PLAIN) if one in known)


def differences() -> list[str]:
    """Return a line for each case whose figures differ."""
    plain, product = rows(PLAIN), rows(PRODUCT)
    return [
        f"{' '.join(case)}: {[plain[case][one] for one in FIGURES]} and {[product[case][one] for one in FIGURES]}"
        for case in plain.keys() & product.keys()
        if any(plain[case][name] != product[case][name] for name in FIGURES)
    ]


def show() -> None:
    """Print peak and total bytes by target and devices, and how many cases are equal to the byte."""
    plain, product = rows(PLAIN), rows(PRODUCT)
    models = list(dict.fromkeys(model for _, _, model in plain))
    print(f"| target | devices | {' | '.join(models)} |")
    print(f"| --- | --- |{' --- |' * len(models)}")
    for target, devices in dict.fromkeys(case[:2] for case in plain):
        cells = [_cell(plain.get((target, devices, name)), product.get((target, devices, name))) for name in models]
        print(f"| {target} | {devices} | {' | '.join(cells)} |")
    both = plain.keys() & product.keys()
    print(f"\n{len(both) - len(differences())} of {len(both)} cases are equal in all five figures")
    print(*differences(), sep="\n")


def _cell(plain: dict[str, str] | None, product: dict[str, str] | None) -> str:
    if plain is None:
        return ""
    if plain["refused"]:
        return "refused" + (" by both" if product and product["refused"] else "")
    sign = "" if product is None else " =" if _figures(plain) == _figures(product) else " differs"
    return f"{int(plain['temporary_bytes']):,}{sign}"


def _figures(row: dict[str, str]) -> Iterable[str]:
    return [row[name] for name in FIGURES]


def _compiled(target: str, devices: str, name: str) -> dict[str, str]:
    import keras

    from autoplan.errors import AutoplanError
    from autoplan.worker import aot_compile

    case = {"target": target, "devices": devices, "model": name}
    keras.utils.clear_session()
    try:
        stated = _evidence(target, int(devices), name).memory
    except (aot_compile.ProgramTooLarge, aot_compile.CompilerRejection, AutoplanError, ValueError) as error:
        return case | dict.fromkeys(FIGURES, "") | {"refused": " ".join(str(error).split())[:160]}
    return case | {figure: str(getattr(stated, figure)) for figure in FIGURES} | {"refused": ""}


def _evidence(target: str, devices: int, name: str) -> Any:
    from autoplan.worker import aot_compile
    from autoplan.worker.synthetic_data import synthetic_specs
    from cost_models import Batch, Mesh, Precision, TrainConfig
    from cost_models.config import AttentionMode
    from cost_models.execution import platform_of
    from cost_models.hardware.compile_targets import compiler_target
    from cost_models.hardware.lookup import cluster

    hardware, model = cluster(CLUSTERS[target]), compiled_model(name)
    config = TrainConfig(
        Batch(BATCH, data=devices),
        precision=Precision(PRECISION),
        mesh=Mesh(devices),
        attention=AttentionMode("unfused" if name.endswith(UNFUSED) else "auto"),
    )
    specs = synthetic_specs(model, BATCH * devices)
    platform, compiler = platform_of(config, hardware), compiler_target(hardware)
    return aot_compile.compile_train_step(model, specs, config, compiler, platform, {}).evidence
