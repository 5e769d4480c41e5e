"""Traces a Keras training step to a Workload."""
