"""Finds the least change with which a baseline that runs out of memory runs."""
