"""Models the order in which XLA runs kernels."""
