"""Computes the identity of a study from source, hardware, versions and space; only an equal identity shares trials."""

from __future__ import annotations

from pathlib import Path

from autoplan import formatting
from autoplan._version import __version__
from autoplan.jobs.runner import JobRunner
from autoplan.machine import local_hardware, this_machine
from autoplan.sources.source import SourceSpec
from autoplan.tuning.estimates.findings import Findings
from autoplan.tuning.trials.storage import StudyIdentity
from autoplan.tuning.trials.study import knob_choices
from cost_models.config import TrainConfig
from cost_models.hardware.platform import TargetPlatform


def known_at_once(jobs: JobRunner) -> StudyIdentity:
    """Return the part of the identity that is known before the source has run."""
    source = jobs.source
    return {
        "source": source.sha256,
        "function": source.function,
        "arguments": list(source.args),
        "fit": source.fit_index,
        **({"input shapes": source.input_shapes} if source.input_shapes else {}),
        "hardware": local_hardware.identity(jobs.cluster),
        "devices": jobs.cluster.devices,
        "memory": formatting.size(jobs.usable_bytes()),
        "settings": this_machine.settings(),
        "autoplan": __version__,
        **_platform(jobs),
    }


def identity(jobs: JobRunner, findings: Findings) -> StudyIdentity:
    """Return the identity of a study: trials are reused only in a study of an equal identity."""
    environment = findings.observation.environment
    return {
        **known_at_once(jobs),
        "structure": findings.observation.structure,
        "keras": environment.get("keras"),
        "backend": f"{jobs.backend} {environment.get('backend_version')}",
        "baseline": _stored_name(findings.space.baseline),
        "knobs": knob_choices([findings.space.baseline, *findings.space.configs]),
    }


def _platform(jobs: JobRunner) -> dict[str, str]:
    """Return the platform as which steps for hardware that is not here are compiled."""
    return {} if jobs.cluster.local else {"platform": str(TargetPlatform.of(jobs.cluster.chip))}


def _stored_name(config: TrainConfig) -> str:
    """Return the configuration in the wording that stored studies have; `describe` may change its wording."""
    batch, accumulated = config.batch, config.batch.accumulation
    size = f"batch {batch.global_size}" + f"x{accumulated}" * (accumulated > 1)
    return config.describe().replace(batch.describe(), size).replace("keep_freed_memory on", "freed memory kept")


def stem(source: SourceSpec) -> str:
    """Return the name of the source, with which the folder of its study begins."""
    return Path(source.path or source.module or source.function).stem
