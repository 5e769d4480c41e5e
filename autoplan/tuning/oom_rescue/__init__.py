"""Searches for the smallest change that lets an out-of-memory baseline run."""
