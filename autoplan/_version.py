"""The version of this distribution, below every module that writes it into a plan or a study."""

__version__ = "0.1.0"
