"""Models XLA's fusion: which operations share a kernel, and which values are written to memory."""
