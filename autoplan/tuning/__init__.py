"""The tuning procedure: surveys a training, runs trials or compilers, and builds a plan."""
