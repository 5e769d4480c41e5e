"""Converts the user's script, builder or function to a value that a worker process can run."""
