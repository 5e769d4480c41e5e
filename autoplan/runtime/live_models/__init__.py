"""Packs, rebuilds and copies Keras models that exist only in memory."""
