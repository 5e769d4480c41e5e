"""Models communication between devices: data parallelism and collectives."""
