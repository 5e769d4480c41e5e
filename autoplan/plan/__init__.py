"""Defines plans, the table of knobs, and the plan file."""
