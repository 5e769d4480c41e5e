"""`ConfigurationEstimate`: the result of `autoplan estimate`, with the compiler's figures where it was run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from autoplan.errors import WorkerError
from autoplan.plan.records import CompilerEvidence, Evidence, Failure, FailureKind, to_plain
from cost_models.config import TrainConfig
from cost_models.estimate import SCHEMA, Estimate, Explanation


@dataclass(frozen=True)
class ConfigurationEstimate:
    """The estimate of one configuration and, where its compiler was asked, what that says.

    analytic     the cost model's estimate
    compiled     the compiler's figures, or the program that it found too large; None where no compiler was asked
    explanation  the largest temporaries at the memory peak, where they were asked for
    notes        what was assumed
    largest      a sentence that names the largest part of the memory; None where no part stands out
    """

    analytic: Estimate
    compiled: CompilerEvidence | Failure | None = None
    explanation: Explanation | None = None
    notes: tuple[str, ...] = ()
    largest: str | None = None

    @property
    def config(self) -> TrainConfig:
        """The configuration that is estimated."""
        return self.analytic.config

    @property
    def evidence(self) -> Evidence:
        """The tier of memory and time."""
        return Evidence.ANALYTIC if self.compiled is None else Evidence.COMPILED

    def to_dict(self) -> dict[str, Any]:
        """Return the document of `estimate --format json`."""
        explained = {} if self.explanation is None else {"explanation": self.explanation.to_dict()}
        analytic = self.analytic.to_dict() | explained
        if self.compiled is None:
            return {**analytic, **self._largest(), "notes": list(self.notes)}
        return {
            "schema": SCHEMA,
            "hardware": self.analytic.hardware,
            "evidence": self.evidence.value,
            "config": self.config.to_dict(),
            **_compiled(self.analytic, self.compiled),
            "analytic": analytic,
            **self._largest(),
            "notes": list(self.notes),
        }

    def _largest(self) -> dict[str, str]:
        return {} if self.largest is None else {"largest_part": self.largest}


def answered(found: CompilerEvidence | Failure, config: TrainConfig) -> CompilerEvidence | Failure:
    """Return the compiler's answer. "Too large" is an answer too; WorkerError where there is none."""
    if isinstance(found, Failure) and found.kind is not FailureKind.COMPILE_OOM:
        raise WorkerError(f"{config.describe()} could not be compiled ({found.kind.value}: {found.message})")
    return found


def _compiled(analytic: Estimate, found: CompilerEvidence | Failure) -> dict[str, Any]:
    """Return memory, time and the compiler's own figures. A compiled figure is no interval: it fits or it does not."""
    limits = {"capacity_bytes": analytic.capacity_bytes, "headroom": analytic.headroom}
    if isinstance(found, Failure):
        sizes = {"total": found.needed_bytes}
        memory = {**limits, "per_device_bytes": sizes, "fits": False, "may_fit": False}
        return {"memory": memory, "time": None, "failure": to_plain(found)}
    needed = found.memory.must_fit_bytes
    fits = analytic.capacity.fits(needed)
    memory = {**limits, "per_device_bytes": compiled_sizes(found), "must_fit_bytes": needed}
    if found.memory.other_batches_bytes:
        memory["other_batches_bytes"] = found.memory.other_batches_bytes
    return {
        "memory": {**memory, "fits": fits, "may_fit": fits},
        "time": None if found.time is None else found.time.to_dict(),
        "compiler": to_plain(found),
    }


def compiled_sizes(found: CompilerEvidence) -> dict[str, int | None]:
    """Return the compiler's figures in bytes by what they count, without the suffix of their unit."""
    plain = to_plain(found.memory)
    own = [name for name in plain if name.endswith("_bytes") and name != "other_batches_bytes"]
    return {name.removesuffix("_bytes"): plain[name] for name in own}
