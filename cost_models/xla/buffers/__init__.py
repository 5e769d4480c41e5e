"""Models XLA's buffer assignment: lifetimes of tensors, reuse of buffers, and peak memory."""
