"""Formats results as text for the terminal: one module per command or table."""
