"""The scripts that the study trains, with their arguments and the pin of the second plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from studies import harness
from studies.public_examples import cases as public
from studies.public_examples.replaced import synthetic_files

HERE = Path(__file__).resolve().parent
OWN = HERE / "scripts"


@dataclass(frozen=True)
class Script:
    """A script and how it is run.

    fit      which of its fits is tuned
    pin      options of its pinned plan
    modules  folders for PYTHONPATH
    files    files that it needs in its folder, as `studies.public_examples` names them
    """

    path: Path
    arguments: tuple[str, ...] = ()
    fit: int = 1
    pin: tuple[str, ...] = ("--fix", "accumulation=2")
    environment: Mapping[str, str] = field(default_factory=dict)
    modules: tuple[Path, ...] = ()
    files: str | None = None

    def prepare(self, folder: Path) -> None:
        """Put the files that the script needs into its folder."""
        if self.files:
            synthetic_files.prepare(self.files, folder)


def _of_tests(name: str, *arguments: str, fit: int = 1, pin: str = "accumulation=2") -> Script:
    return Script(harness.SCRIPTS / f"{name}.py", arguments, fit, ("--fix", pin))


NEW = (
    *("mnist_convnet", "text_classification", "timeseries_transformer", "autoencoder", "siamese_contrastive", "vae"),
    *("collaborative_filtering", "wide_and_deep", "seq2seq_lstm", "tiny_unet", "pointnet", "mlp_mixer"),
    "no_labels",
)
SCRIPTS: Mapping[str, Script] = {
    **{name: Script(OWN / f"{name}.py") for name in NEW},
    "remainder": _of_tests("remainder"),
    "arguments_callbacks": _of_tests("arguments_callbacks", "--learning-rate", "0.001"),
    "subclassed": _of_tests("subclassed"),
    "tfdata": _of_tests("tfdata"),
    "builder": _of_tests("builder"),
    "two_fits": _of_tests("two_fits", fit=2, pin="accumulation=2"),
    "schedule": _of_tests("schedule", pin="accumulation=2"),
    "pydataset": _of_tests("pydataset"),
    "generator": _of_tests("generator"),
    "folds": _of_tests("folds", fit=2),
    "own_loss": _of_tests("own_loss"),
    "fine_tuning": _of_tests("fine_tuning", fit=2),
    "messy": _of_tests("messy"),
    "contrastive": _of_tests("contrastive"),
    "custom_train_step": _of_tests("custom_train_step"),
    "mixed_policy": _of_tests("mixed_policy"),
    "mlp": _of_tests("mlp"),
    "mlp:accumulation": _of_tests("mlp", "--batch-size", "8", "--accumulation", "8", "--epochs", "4"),
    "resnet20": _of_tests("resnet20", "--epochs", "3"),
    "resnet20:accumulation": _of_tests("resnet20", "--batch-size", "4", "--accumulation", "8", "--epochs", "3"),
    "decoder": _of_tests("decoder"),
    "decoder:dropout": _of_tests("decoder", "--dropout", "0.1"),
    "decoder:accumulation": _of_tests("decoder", "--batch-size", "2", "--accumulation", "8"),
}
"""Names of scripts, the scripts, and how they are run."""


def public_examples(checkout: Path, data: Path) -> dict[str, Script]:
    """Return the public examples that run on JAX, with synthetic data, as far as the checkout has them.

    data  folder for synthetic files, which are kept between runs
    """
    found = {}
    for name, case in public.CASES.items():
        path = checkout / case.path
        if "jax" in case.backends and path.exists():
            fit = int(case.options[case.options.index("--fit") + 1]) if "--fit" in case.options else 1
            environment = public.synthetic_data_for(case, data)
            found[f"public_{name}"] = Script(
                path, fit=fit, environment=environment, modules=(public.REPLACED,), files=case.prepare
            )
    return found
