"""Models how XLA compiles a Workload; a rule lives in one of the folders here and is listed in `profiles/`."""
