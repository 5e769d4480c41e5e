"""Verifies in clean processes that a winner is faster and trains the same."""
