"""Sources of trainings."""

from autoplan.sources.source import SourceSpec

SOURCE = SourceSpec(kind="script", path="train.py", sha256="0" * 64)
