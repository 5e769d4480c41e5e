"""Defines the version number of this distribution, which plans and studies record."""

__version__ = "0.1.0"
