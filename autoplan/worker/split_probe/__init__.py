"""Finds out by a few real micro-steps whether an update of a model may be split and padded."""
