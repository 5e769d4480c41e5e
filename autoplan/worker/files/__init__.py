"""Keeps trials from changing the user's files."""
