"""Reads from the code of the user's own classes which names they use."""
