"""Models XLA's passes before fusion: each rewrites a Workload."""
