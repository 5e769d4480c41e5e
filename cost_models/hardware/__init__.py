"""Describes hardware: the catalogue (`devices/*.yaml`), clusters, prices and compile targets."""
