"""Runs trials, and stores them in a study that can be resumed."""
