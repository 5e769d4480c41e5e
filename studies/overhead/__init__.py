"""What does a trial cost besides compiling and training? Runs trials as `tune` does and adds up their phases."""
