"""A training in a package: python -m packaged."""
