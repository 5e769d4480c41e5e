"""Defines `Workload`: one training step as operations on tensors."""
